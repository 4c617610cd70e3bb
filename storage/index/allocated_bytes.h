// What the files under a directory take on disk.
#pragma once

#include <cstdint>
#include <filesystem>

namespace kvtier::storage {

// The blocks allocated for the directory and all below it, in bytes. What disappears meanwhile is
// not counted.
std::uint64_t allocated_bytes(const std::filesystem::path& directory);

}  // namespace kvtier::storage
