// Between kernels/cuda/host_copies.cc and the kernels: stored elements that lie in the GPU's memory
// apart from their records.
#pragma once

#include "kernels/cuda/kernels.h"

namespace kvtier::kernels::cuda {

struct StagedPayload {
  const std::byte* payload = nullptr;  // [blocks][layers][layer_bytes]
  const float* scales = nullptr;       // [blocks][layers][K then V][kv_heads], where there are any
};

// The scales of layers [first_layer, first_layer + layers) of args.records into `scales`.
void gather_scales(const TransferArgs& args, float* scales, Stream stream);
// gather_and_dequantise of args' layers and blocks from `staged`; pages are at [layer * page_pitch
// + block]. At most 2^30 chunks of 16 bytes.
void dequantise_staged(const TransferArgs& args, const StagedPayload& staged,
                       std::uint32_t page_pitch, Stream stream);

}  // namespace kvtier::kernels::cuda
