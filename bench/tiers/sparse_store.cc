#include "bench/tiers/sparse_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

#include "core/base/units.h"
#include "core/record/digest.h"
#include "storage/index/segments.h"

namespace kvtier::bench {

using namespace storage;

std::uint64_t capacity_of(RecordStoreOptions options, std::uint64_t segments) {
  constexpr std::uint64_t kStep = 16_MiB;
  const std::uint64_t wanted = segments * options.segment_bytes;
  for (options.capacity_bytes = wanted; segment_capacity_bytes(options) < wanted;)
    options.capacity_bytes += kStep;
  return options.capacity_bytes;
}

RecordStoreOptions sparse_options(const std::filesystem::path& directory,
                                  std::uint64_t segment_bytes, std::uint64_t segments) {
  RecordStoreOptions options;
  options.directory = directory;
  options.segment_bytes = segment_bytes;
  options.capacity_bytes = capacity_of(options, segments);
  options.check_free_space = false;
  return options;
}

std::filesystem::path segment_path(const StoreDirectory& directory, std::uint32_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "%06u.seg", number);
  return directory.segments() / name;
}

UniqueFd make_sparse_segment(const StoreDirectory& directory, std::uint32_t number,
                             std::uint64_t segment_bytes, std::uint64_t slot_bytes) {
  SegmentHeader header{kSegmentMagic, kSegmentVersion, number, slot_bytes,
                       segment_bytes, directory.id(),  0};
  header.checksum = xxh3_64(std::as_bytes(std::span(&header, 1)));
  std::filesystem::create_directories(directory.segments());
  UniqueFd fd(::open(segment_path(directory, number).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(segment_bytes)) != 0 ||
      ::pwrite(fd.get(), &header, sizeof header, 0) != sizeof header) {
    throw std::runtime_error(std::string("cannot make a segment: ") + std::strerror(errno));
  }
  return fd;
}

}  // namespace kvtier::bench
