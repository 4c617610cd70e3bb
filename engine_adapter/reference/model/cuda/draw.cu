#include "engine_adapter/reference/model/cuda/draw.h"
#include "engine_adapter/reference/model/weights/random_value.h"
#include "kernels/cuda/error.h"

namespace kvtier::engine::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kBlocks = 2048;

__global__ void __launch_bounds__(kThreads)
    draw_kernel(kernels::cuda::Bf16* out, std::size_t count, std::uint64_t seed, float spread) {
  const std::size_t step = std::size_t{gridDim.x} * kThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    out[i] = __float2bfloat16_rn(random_value(seed, i, spread));
  }
}

}  // namespace

void draw(kernels::cuda::Bf16* out, std::size_t count, std::uint64_t seed, float spread,
          StreamView stream) {
  draw_kernel<<<kBlocks, kThreads, 0, stream.get()>>>(out, count, seed, spread);
  kernels::cuda::check_launch("draw");
}

}  // namespace kvtier::engine::cuda
