// What the tests of CUDA kernels share: a skip where there is no GPU, work run as a graph, values
// to and from BF16, outputs that begin as NaN and have a guard behind them.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/stream.h"
#include "tests/kernels/isa.h"

namespace kvtier::kernels::cuda {

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
    stream_ = Stream(Stream::Priority::normal);
  }
  StreamView stream() const { return stream_.view(); }

  // Captures what `work` launches on stream() into a graph, runs that once and waits.
  template <typename Work>
  void run_as_graph(const Work& work) {
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "begin capture");
    work();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t instance = nullptr;
    check(cudaStreamEndCapture(stream_.get(), &graph), "end capture");
    check(cudaGraphInstantiate(&instance, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphLaunch(instance, stream_.get()), "cudaGraphLaunch");
    check(cudaStreamSynchronize(stream_.get()), "the captured work");
    check(cudaGraphExecDestroy(instance), "cudaGraphExecDestroy");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }

 private:
  Stream stream_;
};

inline std::vector<Bf16> to_bf16(const std::vector<float>& values) {
  const auto bytes = packed(values, DType::bf16);
  std::vector<Bf16> result(values.size());
  std::memcpy(static_cast<void*>(result.data()), bytes.data(), bytes.size());
  return result;
}

inline std::vector<float> to_floats(const std::vector<Bf16>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(Bf16));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return unpacked(bytes, DType::bf16);
}

inline std::vector<float> random_bf16_floats(std::size_t count, unsigned seed,
                                             float deviation = 1) {
  return to_floats(to_bf16(random_floats(count, seed, deviation)));
}

// An output: every byte 0xFF, which is NaN in every format, and a guard that must stay so.
template <typename T>
class Output {
 public:
  static constexpr std::size_t kGuard = 64;
  explicit Output(std::size_t count) : array_(count + kGuard) { array_.fill_bytes(0xFF); }
  T* get() const { return array_.get(); }
  // Fails the test where the guard was written.
  std::vector<T> values() const {
    auto all = array_.download();
    std::vector<std::byte> guard(kGuard * sizeof(T));
    std::memcpy(guard.data(), all.data() + all.size() - kGuard, guard.size());
    for (const std::byte byte : guard) {
      if (byte != std::byte{0xFF}) {
        ADD_FAILURE() << "written beyond the end";
        break;
      }
    }
    all.resize(all.size() - kGuard);
    return all;
  }

 private:
  DeviceArray<T> array_;
};

template <typename T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Half a step of BF16, and what FP32 arithmetic of another order makes of it.
inline void expect_bf16_near(double got, double expected, const char* what, std::size_t index) {
  ASSERT_NEAR(got, expected, std::abs(expected) * (1.0 / 256) * 1.01 + 1e-30)
      << what << " at " << index;
}

}  // namespace kvtier::kernels::cuda
