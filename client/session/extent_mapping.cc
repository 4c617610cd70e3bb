#include "client/session/extent_mapping.h"

#include <sys/stat.h>

#include "kvtier/record_layout.h"

namespace kvtier::session {

Result<void> check_size(const UniqueFd& fd, std::uint64_t bytes) {
  struct stat info {};
  if (!fd) return make_error(Errc::malformed, "shared memory came without its descriptor");
  if (::fstat(fd.get(), &info) != 0) return errno_error(Errc::io, "fstat of shared memory");
  if (bytes == 0 || static_cast<std::uint64_t>(info.st_size) < bytes) {
    return make_error(Errc::malformed, "shared memory of " + std::to_string(info.st_size) +
                                           " bytes is said to have " + std::to_string(bytes));
  }
  return {};
}

Result<void> check_shape(std::uint64_t bytes, std::uint64_t slot_bytes) {
  if (slot_bytes == 0 || slot_bytes % kRecordAlignment != 0 || slot_bytes > bytes) {
    return make_error(Errc::malformed,
                      "an extent with slots of " + std::to_string(slot_bytes) + " bytes");
  }
  return {};
}

Result<std::unique_ptr<ExtentMapping>> ExtentMapping::map(const UniqueFd& fd, Tier tier,
                                                          std::uint64_t bytes,
                                                          std::uint64_t slot_bytes,
                                                          Mapping::Access access) {
  if (auto good = check_shape(bytes, slot_bytes); !good) return good.error();
  if (auto good = check_size(fd, bytes); !good) return good.error();
  auto mapping = Mapping::map(fd.get(), bytes, access);
  if (!mapping) return mapping.error();
  if (tier == Tier::host) advise_huge_pages(mapping->bytes());
  auto extent = std::make_unique<ExtentMapping>();
  extent->tier = tier;
  extent->slot_bytes = slot_bytes;
  extent->read_only = access == Mapping::Access::read;
  extent->mapping = std::move(*mapping);
  extent->bytes = extent->mapping.bytes();
  return extent;
}

}  // namespace kvtier::session
