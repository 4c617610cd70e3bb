// A store whose index has many entries, as a daemon leaves it that ran for long: its segments are
// holes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/units.h"
#include "kvtier/namespace.h"
#include "storage/index/store_options.h"

namespace kvtier::bench {

inline constexpr std::uint64_t kIndexSegmentBytes = 1_GiB;

// So many blocks of the smallest records, prefix after prefix, each at its place. Throws
// std::runtime_error.
void make_indexed_store(const storage::RecordStoreOptions& options, std::uint32_t blocks);
// The places of such a store's blocks, by their numbers: those of a disk that has seen evictions,
// and so at random.
std::vector<std::uint32_t> places_of(std::uint32_t blocks);
// The key of the block with that number, which is what the entries of such a store are named by.
Key key_of_number(std::uint64_t number);
inline storage::DiskLocation location_of_place(std::uint32_t place, std::uint32_t per_segment) {
  return {place / per_segment, place % per_segment};
}

}  // namespace kvtier::bench
