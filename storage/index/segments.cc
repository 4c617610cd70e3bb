#include "storage/index/segments.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/check.h"
#include "core/base/fd.h"
#include "core/record/digest.h"
#include "storage/index/points.h"
#include "storage/index/regular_file.h"

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

// Errors: io, not_found (zeros), corrupt (not a header page).
Result<SegmentHeader> read_header(const std::filesystem::path& path) {
  const auto file = open_regular(path, O_RDONLY);
  if (!file) return make_error(Errc::io, file.error().message);
  const UniqueFd& fd = *file;
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return errno_error(Errc::io, "stat of " + path.string());
  SegmentHeader header{};
  const ssize_t n = ::pread(fd.get(), &header, sizeof header, 0);
  if (n < 0) return errno_error(Errc::io, "cannot read " + path.string());
  if (n == sizeof header && header.magic == 0) {
    return make_error(Errc::not_found, path.string() + " has no header yet");
  }
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
      slot_bytes_(segments_max, 0),
      file_(segments_max, File::absent) {}

Segments::~Segments() {
  if (ahead_) ahead_->made.wait();
}

Result<void> Segments::load() {
  std::error_code failed;
  std::filesystem::create_directory(directory_, failed);
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

void Segments::set_file(std::uint32_t segment, File state) {
  if (file_[segment] != File::absent) --files_;
  file_[segment] = state;
  if (state != File::absent) ++files_;
}

Result<void> Segments::note_file(const std::filesystem::path& path) {
  const auto number = number_in(path.filename());
  if (!number) return {};
  if (*number >= segments_max_) {
    ++files_;
    past_capacity_.push_back(path);
    return {};
  }
  set_file(*number, File::damaged);
  const auto header = read_header(path);
  if (!header && header.error().code == Errc::io) return header.error();
  if (!header && header.error().code == Errc::not_found) return {};  // made ahead, never used
  if (!header || header->segment != *number || header->store != store_ ||
      header->segment_bytes != segment_bytes_ ||
      slots_per_segment(segment_bytes_, header->slot_bytes) == 0) {
    spdlog::warn("{} is not a segment of this store; what it held is forgotten", path.string());
    return {};
  }
  set_file(*number, File::whole);
  slot_bytes_[*number] = header->slot_bytes;
  return {};
}

Result<void> Segments::prepare(std::uint32_t segment, std::uint64_t slot_bytes) {
  KVTIER_CHECK(slots_per_segment(segment_bytes_, slot_bytes) > 0);
  if (segment >= segments_max_) {
    return make_error(Errc::invalid, path_of(segment).string() + " would be past the capacity");
  }
  if (slot_bytes_[segment] == slot_bytes) return {};
  const bool converts = slot_bytes_[segment] != 0;
  if (const auto there = wait_for_file(segment); !there) return there;
  const auto fd = open_regular(path_of(segment), O_RDWR);
  if (!fd) return make_error(Errc::io, fd.error().message);
  KVTIER_STORAGE_POINT("storage.segment.before_header");
  slot_bytes_[segment] = 0;  // until the header is there
  if (const auto ready = write_header(fd->get(), segment, slot_bytes); !ready) return ready;
  KVTIER_STORAGE_POINT("storage.segment.header_written");
  slot_bytes_[segment] = slot_bytes;
  if (converts) {
    KVTIER_STORAGE_POINT("storage.segment.converted");
  } else {
    KVTIER_STORAGE_POINT("storage.segment.made");
  }
  return {};
}

Result<void> Segments::wait_for_file(std::uint32_t segment) {
  if (ahead_ && ahead_->segment == segment) take_ahead();
  if (file_[segment] == File::whole) return {};
  const auto made = allocate(segment);
  set_file(segment, made ? File::whole : File::absent);
  return made;
}

bool Segments::take_ahead() {
  const bool made = ahead_->made.get().has_value();
  set_file(ahead_->segment, made ? File::whole : File::absent);
  ahead_.reset();
  return made;
}

void Segments::make_one_ahead() {
  if (ahead_) {
    if (ahead_->made.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    if (!take_ahead()) return;
  }
  const auto missing =
      std::find_if(file_.begin(), file_.end(), [](File file) { return file != File::whole; });
  if (missing == file_.end()) return;
  const auto segment = static_cast<std::uint32_t>(missing - file_.begin());
  ahead_ =
      Ahead{segment, std::async(std::launch::async, [this, segment] { return allocate(segment); })};
}

// Makes the file, or makes one that is damaged whole again. Its pages read as zeros.
Result<void> Segments::allocate(std::uint32_t segment) const {
  const auto path = path_of(segment);
  const auto size = static_cast<off_t>(segment_bytes_);
  const auto fd = open_regular(path, O_RDWR | O_CREAT);
  if (!fd) return fd.error();
  Result<void> ready = {};
  if (const int code = ::posix_fallocate(fd->get(), 0, size); code != 0) {
    const Errc kind = code == ENOSPC || code == EDQUOT ? Errc::no_space : Errc::io;
    const char* const mend = code == EFBIG ? " (raise RLIMIT_FSIZE, LimitFSIZE= in a unit)" : "";
    ready = errno_error(kind, "cannot allocate " + path.string() + mend, code);
  } else if (::ftruncate(fd->get(), size) != 0) {
    ready = errno_error(Errc::io, "cannot size " + path.string());
  } else {
    KVTIER_STORAGE_POINT("storage.segment.allocated");
    ready = sync_directory();
  }
  if (!ready) ::unlink(path.c_str());
  return ready;
}

Result<void> Segments::look_again() {
  if (ahead_) take_ahead();
  for (std::uint32_t id = 0; id < segments_max_; ++id) {
    if (file_[id] == File::absent) continue;
    const auto path = path_of(id);
    std::error_code failed;
    const bool there = std::filesystem::exists(path, failed);
    if (failed) return make_error(Errc::io, path.string() + ": " + failed.message());
    const auto header = there ? read_header(path) : Result<SegmentHeader>(Error{});
    if (there && !header && header.error().code == Errc::io) return header.error();
    if (header && header->segment == id && header->store == store_ &&
        header->slot_bytes == slot_bytes_[id]) {
      continue;
    }
    if (slot_bytes_[id] != 0) {
      spdlog::warn("{} is not what it was; what it held is forgotten", path.string());
    }
    slot_bytes_[id] = 0;
    set_file(id, there ? File::damaged : File::absent);
  }
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
