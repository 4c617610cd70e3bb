// The measurements of kvtier-gpu-bench, all at the shape of Llama-3.1-8B. Each adds its rows; each
// throws std::runtime_error where it cannot measure.
#pragma once

#include "bench/support/report.h"

namespace kvtier::bench {

// Between pinned host memory and pages, with 16 thread blocks where the link is the limit.
void measure_transfers(Report& report);
// Kernels that memory bounds, against a copy inside the GPU's memory; choosing tokens.
void measure_elementwise(Report& report);
void measure_gemm(Report& report);
// Decode, and the last rows of a prompt whose beginning is stored, against a copy inside the GPU's
// memory; prefill in multiply-adds a second, those under the diagonal counted.
void measure_decode_attention(Report& report);
void measure_tail_attention(Report& report);
void measure_prefill_attention(Report& report);

}  // namespace kvtier::bench
