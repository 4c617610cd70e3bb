// Answers questions about rows of logits where they are, on the GPU: what comes to the host is the
// answers. One thread, one stream.
#pragma once

#include <cstddef>
#include <span>

#include "engine_adapter/reference/model/cuda/step_arena.h"
#include "engine_adapter/reference/model/model.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"

namespace kvtier::engine::cuda {

class Teller {
 public:
  Teller() = default;
  ~Teller();
  Teller(const Teller&) = delete;
  Teller& operator=(const Teller&) = delete;

  // `logits`: [questions][vocabulary], of work that is queued on `stream`, which is waited for.
  // Throws CudaError.
  void tell(const float* logits, std::size_t vocabulary, std::span<const RowQuestion> questions,
            std::span<RowAnswer> answers, StreamView stream);

 private:
  struct Counts;
  void make_room(const Counts& counts, std::size_t vocabulary, StreamView stream);
  void hand_out(std::span<const RowQuestion> questions, std::span<RowAnswer> answers,
                const Counts& counts);

  StepArena arena_;  // what is asked
  kernels::cuda::DeviceArray<std::byte> sample_workspace_, likeliest_workspace_;
  kernels::cuda::DeviceArray<double> log_sums_;
  // [tokens][logprobs][likeliest], on the GPU and, pinned, here.
  kernels::cuda::DeviceArray<std::byte> results_;
  std::byte* results_host_ = nullptr;
  std::size_t results_host_bytes_ = 0;
};

}  // namespace kvtier::engine::cuda
