// Random weights, drawn where they are used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace kvtier::engine::cuda {

// out[i] = random_value(seed, i, spread), rounded to BF16.
void draw(kernels::cuda::Bf16* out, std::size_t count, std::uint64_t seed, float spread,
          StreamView stream);

}  // namespace kvtier::engine::cuda
