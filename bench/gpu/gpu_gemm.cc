#include <random>

#include "bench/gpu/gpu_commands.h"
#include "bench/gpu/gpu_shape.h"
#include "bench/gpu/gpu_timing.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/memory.h"

namespace kvtier::bench {
namespace {

using kernels::cuda::Bf16;
using kernels::cuda::check;
using kernels::cuda::DeviceArray;
using kernels::cuda::Stream;

struct Product {
  std::size_t n, k;
};
constexpr Product kLayer[] = {
    {(Llama8B::kHeads + 2 * Llama8B::kKvHeads) * Llama8B::kHeadDim, Llama8B::kHidden},
    {Llama8B::kHidden, Llama8B::kHidden},
    {2 * Llama8B::kInner, Llama8B::kHidden},
    {Llama8B::kHidden, Llama8B::kInner}};

// Random numbers: power, and with it the clock, depends on the bits. A random piece over and over.
void fill_random(const DeviceArray<Bf16>& array, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<Bf16> values(std::size_t{1} << 20);
  for (Bf16& value : values) value = __float2bfloat16(normal(random));
  for (std::size_t i = 0; i < array.size(); i += values.size()) {
    check(cudaMemcpy(array.get() + i, values.data(),
                     std::min(values.size(), array.size() - i) * sizeof(Bf16),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
}

}  // namespace

// The four products of a layer, one after another, so that the weights come from memory: 436 MB.
void measure_gemm(Report& report) {
  constexpr std::size_t kRowsMax = 8192;
  const Stream stream(Stream::Priority::normal);
  kernels::cuda::Gemm gemm;
  std::vector<DeviceArray<Bf16>> weights;
  std::size_t weight_elements = 0;
  for (const Product& product : kLayer) {
    weights.emplace_back(product.n * product.k);
    fill_random(weights.back(), 2);
    weight_elements += product.n * product.k;
  }
  const DeviceArray<Bf16> x(kRowsMax * Llama8B::kInner);
  fill_random(x, 3);
  const DeviceArray<Bf16> out(kRowsMax * 2 * Llama8B::kInner);
  // Of prompts, 1,024 with a few fewer and a few more: whole tiles of rows are computed.
  for (const std::size_t rows : {std::size_t{1}, std::size_t{16}, std::size_t{1016},
                                 std::size_t{1032}, std::size_t{2048}, kRowsMax}) {
    const auto tuning = rows < 1000 ? kernels::cuda::Tuning::rows : kernels::cuda::Tuning::prompt;
    const double seconds = gpu_seconds(
        stream,
        [&] {
          for (std::size_t i = 0; i < std::size(kLayer); ++i) {
            gemm.run(x.get(), weights[i].get(), nullptr, out.get(), rows, kLayer[i].n, kLayer[i].k,
                     stream.view(), tuning);
          }
        },
        rows < 1000 ? 20 : 4);
    const std::string name = "gpu.gemm.layer.rows_" + std::to_string(rows);
    const auto elements = static_cast<double>(weight_elements);
    report.add(name, 2 * elements * static_cast<double>(rows) / seconds / 1e12, "TFLOP/s");
    if (rows < 1000) report.add(name + ".weights", elements * 2 / seconds / 1e9, "GB/s");
  }
}

}  // namespace kvtier::bench
