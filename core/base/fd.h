// Owners of kernel resources: a file descriptor and a memory mapping.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "kvtier/result.h"

namespace kvtier {

// "what: strerror(code)".
inline Error errno_error(Errc kind, const std::string& what, int code = errno) {
  return make_error(kind, what + ": " + std::strerror(code));
}

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  // Errors: io.
  Result<UniqueFd> duplicate() const;

 private:
  int fd_ = -1;
};

// A shared mapping of a whole file, unmapped on destruction.
class Mapping {
 public:
  enum class Access { read, read_write };

  Mapping() = default;
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      unmap();
      bytes_ = std::exchange(other.bytes_, {});
    }
    return *this;
  }
  ~Mapping() { unmap(); }

  // Errors: io.
  static Result<Mapping> map(int fd, std::size_t bytes, Access access);

  std::span<std::byte> bytes() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return !bytes_.empty(); }

 private:
  void unmap() noexcept {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
    bytes_ = {};
  }

  std::span<std::byte> bytes_;
};

// Shared memory gets huge pages on first use, whoever uses it first, where that one has advised it
// and the host allows it (shmem_enabled = advise).
void advise_huge_pages(std::span<std::byte> bytes) noexcept;

// Gives shared memory its pages now, huge ones where the kernel can, for every process that maps
// it; what it holds stays. A tenth of a second a GiB or several, and as long no thread of this
// process maps memory: for a start, or a process of its own (storage/memory/huge_page_helper.h).
// Small pages, on first use, where huge ones cannot be had.
void fill_with_huge_pages(std::span<std::byte> bytes) noexcept;

// Gives memory its pages, whole ones, piece by piece; what it holds stays. To be called before it
// is pinned: pinning what has no pages yet holds the whole process's address space for a second a
// GiB and more, and every thread that maps memory waits.
void populate_in_pieces(std::span<std::byte> bytes) noexcept;

// A memfd of `bytes` zero bytes, close-on-exec, sealed against resizing and, but with Seals::open,
// against further seals: whoever is given it could otherwise add one, and nobody could map it for
// writing any more. Errors: io, no_space.
enum class Seals { closed, open };
Result<UniqueFd> make_memfd(const std::string& name, std::size_t bytes,
                            Seals seals = Seals::closed);
// The seals of make_memfd() for memory that came from elsewhere, which may have them. Errors: io.
Result<void> seal_memfd(int fd);

}  // namespace kvtier
