// Loads and stores of page pools as engines have them, by layout and by format of the records,
// beside one plain copy over the same link.
#pragma once

#include "bench/gpu/client_setup.h"
#include "bench/support/report.h"

namespace kvtier::bench {

// Throws std::runtime_error.
void measure_layouts(ClientSetup setup, std::uint32_t rounds, Report& report);

}  // namespace kvtier::bench
