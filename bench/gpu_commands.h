// The measurements of kvtier-gpu-bench; each adds its rows to the report.
#pragma once

#include "bench/report.h"

namespace kvtier::bench {

// Attention in the shape of Llama-3.1-8B: decode against the copy bandwidth of the same run,
// prefill in multiply-adds a second, those under the diagonal counted.
void measure_decode_attention(Report& report);
void measure_prefill_attention(Report& report);

}  // namespace kvtier::bench
