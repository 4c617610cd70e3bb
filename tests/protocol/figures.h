// What a run shows at its end.
#pragma once

#include "tests/protocol/tally.h"

namespace kvtier::protocol {

void print_figures(const Tally& tally);
// A failure where the honest client's p99 of loads from memory is more than `most` times what it is
// alone.
void judge_slowdown(Tally& tally, double most);

}  // namespace kvtier::protocol
