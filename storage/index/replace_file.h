// A small file of a store's directory, in its place at once or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "kvtier/result.h"

namespace kvtier::storage {

// All of them, at the file's offset. Errors: io, no_space, naming `path`.
Result<void> write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);

// Through a temporary file beside it (`path` and ".tmp") and a rename: it is the old one or the new
// one, and durable when this returns. Errors: io, no_space.
Result<void> replace_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

// errno as an error: io or no_space, "disk tier: cannot VERB PATH".
Error file_error(const char* verb, const std::filesystem::path& path);

}  // namespace kvtier::storage
