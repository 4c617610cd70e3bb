#include "storage/index/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "core/base/fd.h"

namespace kvtier::storage {

Error file_error(const char* verb, const std::filesystem::path& path) {
  const Errc kind = errno == ENOSPC || errno == EDQUOT ? Errc::no_space : Errc::io;
  return errno_error(kind, std::string("disk tier: cannot ") + verb + " " + path.string());
}

Result<void> write_all(int fd, std::span<const std::byte> bytes,
                       const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return file_error("write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> replace_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const auto temporary = std::filesystem::path(path) += ".tmp";
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return file_error("make", temporary);
  if (const auto written = write_all(fd.get(), bytes, temporary); !written) return written;
  if (::fsync(fd.get()) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0)
    return file_error("write", path);
  const UniqueFd parent(::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent || ::fsync(parent.get()) != 0) return file_error("sync", path.parent_path());
  return {};
}

}  // namespace kvtier::storage
