// Stores for measurements whose payloads nobody reads: their segments are holes.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/base/fd.h"
#include "storage/index/store_directory.h"
#include "storage/index/store_options.h"

namespace kvtier::bench {

// Of exactly so many segments, larger than the file system or not.
storage::RecordStoreOptions sparse_options(const std::filesystem::path& directory,
                                           std::uint64_t segment_bytes, std::uint64_t segments);
// The capacity of which `segments` segments are what is left beside the index.
std::uint64_t capacity_of(storage::RecordStoreOptions options, std::uint64_t segments);
// Where the segment of this number lies.
std::filesystem::path segment_path(const storage::StoreDirectory& directory, std::uint32_t number);
// Makes it, with its header and nothing behind it. Throws std::runtime_error.
UniqueFd make_sparse_segment(const storage::StoreDirectory& directory, std::uint32_t number,
                             std::uint64_t segment_bytes, std::uint64_t slot_bytes);

}  // namespace kvtier::bench
