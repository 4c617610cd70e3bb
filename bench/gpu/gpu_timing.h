// Time on a GPU's stream.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "bench/support/report.h"
#include "kernels/cuda/error.h"
#include "kernels/cuda/stream.h"

namespace kvtier::bench {

inline constexpr double kGiga = 1e9;

class GpuEvent {
 public:
  GpuEvent() { kernels::cuda::check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~GpuEvent() { cudaEventDestroy(event_); }
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  void record(StreamView stream) {
    kernels::cuda::check(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
  }
  double seconds_since(const GpuEvent& begin) const {
    kernels::cuda::check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    float ms = 0;
    kernels::cuda::check(cudaEventElapsedTime(&ms, begin.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Seconds that `work` takes on `stream`, `repeats` times in a row: the median of several turns,
// after one that does not count.
template <typename Work>
double gpu_seconds(const kernels::cuda::Stream& stream, const Work& work, int repeats = 1,
                   int turns = 5) {
  GpuEvent begin, end;
  std::vector<double> seconds;
  for (int turn = 0; turn <= turns; ++turn) {
    begin.record(stream.view());
    for (int i = 0; i < repeats; ++i) work();
    end.record(stream.view());
    const double taken = end.seconds_since(begin) / repeats;
    if (turn > 0) seconds.push_back(taken);
  }
  return median(seconds);
}

}  // namespace kvtier::bench
