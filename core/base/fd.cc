#include "core/base/fd.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>

namespace kvtier {
namespace {

constexpr std::size_t kHugePage = 2U << 20;

// Addresses for a large mapping, on a huge page's boundary: a file's huge pages can be mapped as
// such only where file and address agree. Null, for the kernel to choose, where there are none.
void* reserve_aligned(std::size_t bytes) {
  if (bytes < 2 * kHugePage) return nullptr;
  void* at = ::mmap(nullptr, bytes + kHugePage, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  const std::uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  constexpr std::size_t kPage = 4096;
  const std::uintptr_t end = aligned + (bytes + kPage - 1) / kPage * kPage;
  if (aligned > begin) ::munmap(at, aligned - begin);
  if (end < begin + bytes + kHugePage) {
    ::munmap(reinterpret_cast<void*>(end), begin + bytes + kHugePage - end);
  }
  return reinterpret_cast<void*>(aligned);
}

}  // namespace

Result<UniqueFd> UniqueFd::duplicate() const {
  UniqueFd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (!copy) return errno_error(Errc::io, "cannot duplicate a file descriptor");
  return copy;
}

Result<Mapping> Mapping::map(int fd, std::size_t bytes, Access access) {
  const int protection = access == Access::read ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const wanted = reserve_aligned(bytes);
  void* at = ::mmap(wanted, bytes, protection, MAP_SHARED | (wanted ? MAP_FIXED : 0), fd, 0);
  if (at == MAP_FAILED) {
    if (wanted) ::munmap(wanted, bytes);
    return errno_error(Errc::io, "cannot map " + std::to_string(bytes) + " bytes of shared memory");
  }
  Mapping mapping;
  mapping.bytes_ = {static_cast<std::byte*>(at), bytes};
  return mapping;
}

void advise_huge_pages(std::span<std::byte> bytes) noexcept {
  if (bytes.size() >= kHugePage) (void)::madvise(bytes.data(), bytes.size(), MADV_HUGEPAGE);
}

void fill_with_huge_pages(std::span<std::byte> bytes) noexcept {
  if (bytes.size() < 2 * kHugePage) return;
  advise_huge_pages(bytes);
  // The advice is often configured out for shared memory (shmem_enabled); collapsing what is there
  // works all the same. Nothing is collapsed where nothing is there: each gets one small page.
  constexpr std::size_t kPage = 4096;
  for (std::size_t at = 0; at < bytes.size(); at += kHugePage) {
    (void)::madvise(bytes.data() + at, std::min(kPage, bytes.size() - at), MADV_POPULATE_WRITE);
  }
#ifdef MADV_COLLAPSE
  constexpr int kCollapse = MADV_COLLAPSE;
#else
  constexpr int kCollapse = 25;  // since Linux 6.1; older headers have no name for it
#endif
  (void)::madvise(bytes.data(), bytes.size() / kHugePage * kHugePage, kCollapse);
}

void populate_in_pieces(std::span<std::byte> bytes) noexcept {
  constexpr std::size_t kPiece = 8U << 20;
  constexpr std::uintptr_t kPage = 4096;
  const std::size_t before = reinterpret_cast<std::uintptr_t>(bytes.data()) % kPage;
  bytes = {bytes.data() - before, bytes.size() + before};  // madvise() wants a page's begin
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    (void)::madvise(piece.data(), piece.size(), MADV_POPULATE_WRITE);
  }
}

Result<void> seal_memfd(int fd) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const int has = ::fcntl(fd, F_GET_SEALS);
  if (has >= 0 && (has & kSeals) == kSeals) return {};
  // One that has the last seal already is as it will be.
  if (::fcntl(fd, F_ADD_SEALS, kSeals) == 0 || (has >= 0 && (has & F_SEAL_SEAL) != 0)) return {};
  return errno_error(Errc::io, "cannot seal shared memory");
}

Result<UniqueFd> make_memfd(const std::string& name, std::size_t bytes, Seals seals) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return errno_error(Errc::io, "memfd_create(" + name + ")");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return errno_error(Errc::no_space,
                       "cannot size " + name + " to " + std::to_string(bytes) + " bytes");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return errno_error(Errc::io, "cannot seal " + name);
  if (seals == Seals::closed) {
    if (const auto sealed = seal_memfd(fd.get()); !sealed) return sealed.error();
  }
  // Whoever is given a descriptor for reading must not open it again for writing by its name in
  // /proc.
  if (::fchmod(fd.get(), S_IRUSR) != 0) return errno_error(Errc::io, "cannot protect " + name);
  return fd;
}

}  // namespace kvtier
