#include "bench/gpu/gpu_memory.h"

#include <algorithm>
#include <cstdint>
#include <random>

#include "bench/support/report.h"

namespace kvtier::bench {

using kernels::cuda::check;

void fill_with_numbers(const DeviceMemory& memory) {
  constexpr std::size_t kPattern = std::size_t{16} << 20;
  std::vector<std::uint16_t> numbers(kPattern / 2);
  std::mt19937 engine(7);
  for (std::uint16_t& bits : numbers) {
    const auto random = static_cast<std::uint32_t>(engine());
    bits = static_cast<std::uint16_t>((random & 0x807F) | (0x3F80 - (random >> 16 & 3) * 0x80));
  }
  const auto copy = [&](std::size_t to, const void* from) {
    check(cudaMemcpy(memory.as<std::byte>() + to, from, std::min(kPattern, memory.bytes() - to),
                     cudaMemcpyDefault),
          "fill");
  };
  copy(0, numbers.data());
  for (std::size_t at = kPattern; at < memory.bytes(); at += kPattern) {
    copy(at, memory.as<std::byte>());
  }
}

namespace {

// Median seconds between events around `work` on `stream`, over `rounds` runs after one.
double median_seconds(StreamView stream, const std::function<void()>& work, int rounds) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<double> seconds;
  for (int round = 0; round <= rounds; ++round) {
    check(cudaEventRecord(begin, stream.get()), "record");
    work();
    check(cudaEventRecord(end, stream.get()), "record");
    check(cudaStreamSynchronize(stream.get()), "benchmark");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "elapsed");
    if (round != 0) seconds.push_back(milliseconds * 1e-3);
  }
  check(cudaEventDestroy(begin), "destroy");
  check(cudaEventDestroy(end), "destroy");
  return median(seconds);
}

}  // namespace

double graph_seconds(const std::function<void(StreamView)>& work, int rounds) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
  const kernels::cuda::Stream stream(kernels::cuda::Stream::Priority::normal);
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin capture");
  work(stream.view());
  check(cudaStreamEndCapture(stream.get(), &graph), "end capture");
  check(cudaGraphInstantiate(&instance, graph, 0), "instantiate");
  const double seconds = median_seconds(
      stream.view(), [&] { check(cudaGraphLaunch(instance, stream.get()), "launch of a graph"); },
      rounds);
  check(cudaGraphExecDestroy(instance), "destroy");
  check(cudaGraphDestroy(graph), "destroy");
  return seconds;
}

double copy_bandwidth() {
  const DeviceMemory from(std::size_t{4} << 30);
  const DeviceMemory to(from.bytes());
  fill_with_numbers(from);
  const kernels::cuda::Stream stream(kernels::cuda::Stream::Priority::normal);
  const auto copy = [&] {
    check(cudaMemcpyAsync(to.as<void>(), from.as<void>(), from.bytes(), cudaMemcpyDeviceToDevice,
                          stream.get()),
          "copy");
  };
  const double seconds = median_seconds(stream.view(), copy, 5);
  return 2 * static_cast<double>(from.bytes()) / seconds;
}

}  // namespace kvtier::bench
