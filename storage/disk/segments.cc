#include "storage/disk/segments.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "client/base/check.h"
#include "client/base/fd.h"
#include "client/record/digest.h"

namespace kvtier::storage {
namespace {

std::uint64_t checksum_of(SegmentHeader header) noexcept {
  header.checksum = 0;
  return xxh3_64(std::as_bytes(std::span(&header, 1)));
}

// The number in "NNNNNN.seg"; none for any other name.
std::optional<std::uint32_t> number_in(const std::filesystem::path& name) {
  const std::string text = name.stem().string();
  std::uint32_t number = 0;
  const auto end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (name.extension() != ".seg" || text.size() < 6 || parsed.ec != std::errc{} ||
      parsed.ptr != end) {
    return std::nullopt;
  }
  return number;
}

// Errors: io, corrupt (not a header page).
Result<SegmentHeader> read_header(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return errno_error(Errc::io, "cannot open " + path.string());
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return errno_error(Errc::io, "stat of " + path.string());
  SegmentHeader header{};
  const ssize_t n = ::pread(fd.get(), &header, sizeof header, 0);
  if (n < 0) return errno_error(Errc::io, "cannot read " + path.string());
  const bool whole = n == sizeof header && header.magic == kSegmentMagic &&
                     header.version == kSegmentVersion && header.checksum == checksum_of(header) &&
                     static_cast<std::uint64_t>(status.st_size) == header.segment_bytes;
  if (!whole) return make_error(Errc::corrupt, path.string() + " has no valid segment header");
  return header;
}

}  // namespace

std::uint32_t slots_per_segment(std::uint64_t segment_bytes, std::uint64_t slot_bytes) noexcept {
  if (slot_bytes == 0 || segment_bytes <= kSegmentHeaderBytes) return 0;
  return static_cast<std::uint32_t>((segment_bytes - kSegmentHeaderBytes) / slot_bytes);
}

Segments::Segments(std::filesystem::path directory, StoreId store, std::uint64_t segment_bytes,
                   std::uint32_t segments_max)
    : directory_(std::move(directory)),
      store_(store),
      segment_bytes_(segment_bytes),
      segments_max_(segments_max),
      slot_bytes_(segments_max, 0) {}

Result<void> Segments::load() {
  std::error_code failed;
  std::filesystem::create_directories(directory_, failed);
  if (failed) {
    return make_error(Errc::io, "cannot make " + directory_.string() + ": " + failed.message());
  }
  std::filesystem::directory_iterator file(directory_, failed);
  for (; !failed && file != std::filesystem::directory_iterator(); file.increment(failed)) {
    if (const auto noted = note_file(file->path()); !noted) return noted.error();
  }
  if (failed) {
    return make_error(Errc::io, "cannot list " + directory_.string() + ": " + failed.message());
  }
  return {};
}

Result<void> Segments::note_file(const std::filesystem::path& path) {
  const auto number = number_in(path.filename());
  if (!number) return {};
  ++files_;
  if (*number >= segments_max_) {
    past_capacity_.push_back(path);
    return {};
  }
  const auto header = read_header(path);
  if (!header && header.error().code == Errc::io) return header.error();
  if (!header || header->segment != *number || header->store != store_ ||
      header->segment_bytes != segment_bytes_ ||
      slots_per_segment(segment_bytes_, header->slot_bytes) == 0) {
    spdlog::warn("{} is not a segment of this store; what it held is forgotten", path.string());
    return {};
  }
  slot_bytes_[*number] = header->slot_bytes;
  return {};
}

Result<void> Segments::prepare(std::uint32_t segment, std::uint64_t slot_bytes) {
  KVTIER_CHECK(slots_per_segment(segment_bytes_, slot_bytes) > 0);
  if (segment >= segments_max_) {
    return make_error(Errc::invalid, path_of(segment).string() + " would be past the capacity");
  }
  if (slot_bytes_[segment] == slot_bytes) return {};
  const auto path = path_of(segment);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const bool made = !fd;
  if (made) {
    fd.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd) return errno_error(Errc::io, "cannot make " + path.string());
  }
  Result<void> ready = {};
  if (slot_bytes_[segment] == 0) {
    const int code = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(segment_bytes_));
    if (code != 0) {
      const Errc kind = code == ENOSPC || code == EDQUOT ? Errc::no_space : Errc::io;
      ready = errno_error(kind, "cannot allocate " + path.string(), code);
    } else if (::ftruncate(fd.get(), static_cast<off_t>(segment_bytes_)) != 0) {
      ready = errno_error(Errc::io, "cannot size " + path.string());
    }
  }
  if (ready) ready = write_header(fd.get(), segment, slot_bytes);
  if (ready && made) ready = sync_directory();
  if (!ready) {
    if (made) ::unlink(path.c_str());
    return ready.error();
  }
  if (made) ++files_;
  slot_bytes_[segment] = slot_bytes;
  return {};
}

Result<void> Segments::write_header(int fd, std::uint32_t segment, std::uint64_t slot_bytes) const {
  std::array<std::byte, kSegmentHeaderBytes> page{};
  SegmentHeader header{kSegmentMagic,  kSegmentVersion, segment, slot_bytes,
                       segment_bytes_, store_,          0};
  header.checksum = checksum_of(header);
  std::memcpy(page.data(), &header, sizeof header);
  if (::pwrite(fd, page.data(), page.size(), 0) != static_cast<ssize_t>(page.size())) {
    return errno_error(Errc::io, "cannot write the header of " + path_of(segment).string());
  }
  return {};
}

Result<void> Segments::sync_directory() const {
  UniqueFd fd(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return errno_error(Errc::io, "sync of " + directory_.string());
  return {};
}

Result<void> Segments::remove_past_capacity() {
  for (const auto& path : std::exchange(past_capacity_, {})) {
    if (::unlink(path.c_str()) != 0) return errno_error(Errc::io, "cannot remove " + path.string());
    --files_;
    spdlog::info("removed {}: past the capacity", path.string());
  }
  return {};
}

std::uint64_t Segments::slot_bytes_of(std::uint32_t segment) const noexcept {
  return segment < segments_max_ ? slot_bytes_[segment] : 0;
}

bool Segments::holds(DiskLocation at, std::uint64_t record_bytes) const noexcept {
  const std::uint64_t slot_bytes = slot_bytes_of(at.segment);
  return at.slot < slots_per_segment(segment_bytes_, slot_bytes) && record_bytes > 0 &&
         record_bytes <= slot_bytes;
}

std::vector<std::uint32_t> Segments::present() const {
  std::vector<std::uint32_t> ids;
  for (std::uint32_t id = 0; id < segments_max_; ++id) {
    if (slot_bytes_[id] != 0) ids.push_back(id);
  }
  return ids;
}

std::filesystem::path Segments::path_of(std::uint32_t segment) const {
  char name[32];
  std::snprintf(name, sizeof name, "%06u.seg", segment);
  return directory_ / name;
}

}  // namespace kvtier::storage
