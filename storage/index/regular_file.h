// Files of a store's directory, opened so that nothing else in their place is taken for one.
#pragma once

#include <filesystem>
#include <string>

#include "core/base/fd.h"
#include "kvtier/result.h"

namespace kvtier::storage {

// As open(2), but a FIFO, a socket, a device or a directory of that name is refused by name, and
// none of them is ever waited for. Errors: not_found, no_space, io.
Result<UniqueFd> open_regular(const std::filesystem::path& path, int flags);
// All of a small file. Errors: as above.
Result<std::string> read_small_file(const std::filesystem::path& path);
// Whether all that lies in the directory, which may be missing, are files and directories. Errors:
// io, naming what is neither.
Result<void> only_regular_files_in(const std::filesystem::path& directory);

}  // namespace kvtier::storage
