#include "client/base/fd.h"

#include <fcntl.h>

namespace kvtier {

Result<UniqueFd> UniqueFd::duplicate() const {
  UniqueFd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (!copy) return errno_error(Errc::io, "cannot duplicate a file descriptor");
  return copy;
}

Result<Mapping> Mapping::map(int fd, std::size_t bytes, Access access) {
  const int protection = access == Access::read ? PROT_READ : PROT_READ | PROT_WRITE;
  void* at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    return errno_error(Errc::io, "cannot map " + std::to_string(bytes) + " bytes of shared memory");
  }
  Mapping mapping;
  mapping.bytes_ = {static_cast<std::byte*>(at), bytes};
  return mapping;
}

Result<UniqueFd> make_memfd(const std::string& name, std::size_t bytes) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return errno_error(Errc::io, "memfd_create(" + name + ")");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return errno_error(Errc::no_space,
                       "cannot size " + name + " to " + std::to_string(bytes) + " bytes");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return errno_error(Errc::io, "cannot seal " + name);
  }
  return fd;
}

}  // namespace kvtier
