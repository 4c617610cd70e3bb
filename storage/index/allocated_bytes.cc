#include "storage/index/allocated_bytes.h"

#include <sys/stat.h>

#include <system_error>

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kBlockBytes = 512;  // of st_blocks, whatever the file system's own

std::uint64_t allocated_for(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return 0;
  return static_cast<std::uint64_t>(status.st_blocks) * kBlockBytes;
}

}  // namespace

std::uint64_t allocated_bytes(const std::filesystem::path& directory) {
  std::uint64_t bytes = allocated_for(directory);
  std::error_code failed;
  std::filesystem::recursive_directory_iterator file(directory, failed);
  for (; !failed && file != decltype(file)(); file.increment(failed)) {
    bytes += allocated_for(file->path());
  }
  return bytes;
}

}  // namespace kvtier::storage
