// The matrix products of a step on a GPU, with the algorithms that its rows take: as quick as may
// be, or such that a row's bits do not depend on the other rows (adr/0071).
#pragma once

#include <cstddef>

#include "engine_adapter/reference/model/cuda/cuda_plan.h"
#include "engine_adapter/reference/model/cuda/cuda_weights.h"
#include "kernels/cuda/gemm.h"

namespace kvtier::engine::cuda {

class CudaProducts {
 public:
  explicit CudaProducts(bool batch_invariant) : batch_invariant_(batch_invariant) {}

  // out[rows][n] = in[rows][k] * transpose(weight[n][k]) + bias, of all rows of the step.
  void run(const CudaPlan& plan, const CudaLinear& linear, const Bf16* in, Bf16* out, std::size_t n,
           std::size_t k, StreamView stream);
  // A product a head of all rows of the step, which `products` does not say.
  void run_heads(const CudaPlan& plan, const kernels::cuda::HeadProducts& products,
                 StreamView stream);
  // logits[logit_rows][n] = in[logit_rows][k] * transpose(head[n][k]).
  void run_logits(const CudaPlan& plan, const Bf16* head, const Bf16* in, float* logits,
                  std::size_t n, std::size_t k, StreamView stream);

 private:
  template <class F>
  void each_part(const CudaPlan& plan, const F& f);

  kernels::cuda::Gemm gemm_;
  const bool batch_invariant_;
};

}  // namespace kvtier::engine::cuda
