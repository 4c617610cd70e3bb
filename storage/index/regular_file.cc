#include "storage/index/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace kvtier::storage {
namespace {

constexpr mode_t kMode = 0600;

Error not_a_file(const std::filesystem::path& path) {
  return make_error(
      Errc::io, "disk tier: " + path.string() + " is not a file: take away what lies in its place");
}

Error cannot_open(const std::filesystem::path& path) {
  const Errc kind = errno == ENOENT                      ? Errc::not_found
                    : errno == ENOSPC || errno == EDQUOT ? Errc::no_space
                                                         : Errc::io;
  return errno_error(kind, "disk tier: cannot open " + path.string());
}

}  // namespace

Result<UniqueFd> open_regular(const std::filesystem::path& path, int flags) {
  // Not blocking: opening a FIFO waits for its other end.
  UniqueFd fd(::open(path.c_str(), flags | O_NONBLOCK | O_CLOEXEC, kMode));
  if (!fd) return errno == ENXIO || errno == EISDIR ? not_a_file(path) : cannot_open(path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return cannot_open(path);
  if (!S_ISREG(status.st_mode)) return not_a_file(path);
  const int now = ::fcntl(fd.get(), F_GETFL);
  if (now < 0 || ::fcntl(fd.get(), F_SETFL, now & ~O_NONBLOCK) != 0) return cannot_open(path);
  return fd;
}

Result<std::string> read_small_file(const std::filesystem::path& path) {
  auto fd = open_regular(path, O_RDONLY);
  if (!fd) return fd.error();
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t got = ::read(fd->get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error(Errc::io, "disk tier: cannot read " + path.string());
    if (got == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
}

Result<void> only_regular_files_in(const std::filesystem::path& directory) {
  std::error_code failed;
  std::filesystem::directory_iterator file(directory, failed);
  if (failed == std::errc::no_such_file_or_directory) return {};
  for (; !failed && file != std::filesystem::directory_iterator(); file.increment(failed)) {
    const auto status = file->symlink_status(failed);
    if (failed) break;
    if (!std::filesystem::is_regular_file(status) && !std::filesystem::is_directory(status))
      return not_a_file(file->path());
  }
  if (failed) {
    return make_error(Errc::io,
                      "disk tier: cannot list " + directory.string() + ": " + failed.message());
  }
  return {};
}

}  // namespace kvtier::storage
