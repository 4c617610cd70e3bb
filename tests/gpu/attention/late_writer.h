// A kernel that lets the one after it begin at once and writes only later, as slow as a kernel can
// be whose dependent has been launched: who does not wait for it reads what was there before.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/kernels.h"

namespace kvtier::kernels::cuda {

void write_late(std::byte* to, const std::byte* from, std::size_t bytes, StreamView stream);

}  // namespace kvtier::kernels::cuda
