// What paged memory and continuous batches give: the same requests, all at once, through the same
// engine with the same memory, in the ways of earlier engines and in today's.
#pragma once

#include <cstdint>

#include "bench/serve/serve_engine.h"
#include "bench/serve/serve_measure.h"

namespace kvtier::bench {

// The workload of this kind in each way, without a cache. `longest_context`: tokens for which
// requests get memory where they get it in one piece; 0: as many as the model has positions. Rows
// "KIND.batching.WAY.*" and the table that a terminal shows. Returns how many answers differ from
// the first way's. Throws std::runtime_error.
std::size_t measure_batching(WorkloadKind kind, ServeEngine& engine, const ServeOptions& options,
                             std::uint32_t longest_context, Report& report);

}  // namespace kvtier::bench
