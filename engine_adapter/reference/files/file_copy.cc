#include "engine_adapter/reference/files/file_copy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "core/base/fd.h"

namespace kvtier::engine {
namespace {

Error changed_meanwhile(const std::filesystem::path& path) {
  return make_error(
      Errc::io, path.string() + ": was written to while it was read; start again once it is whole");
}

bool same_file(const struct stat& a, const struct stat& b) noexcept {
  const auto same = [](const timespec& x, const timespec& y) {
    return x.tv_sec == y.tv_sec && x.tv_nsec == y.tv_nsec;
  };
  return a.st_size == b.st_size && same(a.st_mtim, b.st_mtim) && same(a.st_ctim, b.st_ctim);
}

// The first `to.size()` bytes of the file.
Result<void> read_whole(int fd, std::span<std::byte> to, const std::filesystem::path& path) {
  while (!to.empty()) {
    const ssize_t count = ::read(fd, to.data(), to.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_error(Errc::io, path.string() + ": cannot be read");
    if (count == 0) return changed_meanwhile(path);
    to = to.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace

FileCopy& FileCopy::operator=(FileCopy&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

FileCopy::~FileCopy() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<FileCopy> FileCopy::read(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return errno_error(errno == ENOENT ? Errc::not_found : Errc::io, path.string());
  struct stat before {};
  if (::fstat(fd.get(), &before) != 0) return errno_error(Errc::io, path.string());
  if (!S_ISREG(before.st_mode)) return make_error(Errc::io, path.string() + ": not a file");
  const auto bytes = static_cast<std::size_t>(before.st_size);
  if (bytes == 0) {
    return make_error(Errc::malformed,
                      path.string() + ": the file is empty, as a failed download leaves it");
  }
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return errno_error(Errc::no_space,
                       path.string() + ": no memory for its " + std::to_string(bytes) + " bytes");
  }
  FileCopy file;
  file.bytes_ = {static_cast<const std::byte*>(at), bytes};
  const auto done = read_whole(fd.get(), {static_cast<std::byte*>(at), bytes}, path);
  if (!done) return done.error();
  // What was read is what is computed with, torn or not; but nobody wants half a model.
  struct stat after {};
  if (::fstat(fd.get(), &after) != 0) return errno_error(Errc::io, path.string());
  if (!same_file(before, after)) return changed_meanwhile(path);
  (void)::mprotect(at, bytes, PROT_READ);
  return file;
}

}  // namespace kvtier::engine
