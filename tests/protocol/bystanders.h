// Processes that do no wrong, beside those that do: one that stores and loads through libkvtier and
// knows what must come back, and one that asks for next to nothing and takes the time.
#pragma once

#include <string>

#include "tests/protocol/tally.h"

namespace kvtier::protocol {

// Until tally.round_over.
void run_honest_client(const std::string& socket, Tally& tally, std::uint64_t seed);
void run_probe(const std::string& socket, Tally& tally, bool may_be_ended);

}  // namespace kvtier::protocol
