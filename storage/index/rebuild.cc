#include "storage/index/rebuild.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "core/base/fd.h"
#include "core/record/private_head.h"
#include "storage/index/points.h"

namespace kvtier::storage {
namespace {

// Reads at a time, each from a segment of its own: devices have queues, and most of the time is
// waiting.
constexpr std::size_t kSegmentsAtATime = 16;
constexpr std::size_t kSegmentsPerProgress = 64;

// Reads the heads of what lies in one segment.
class SegmentScan {
 public:
  SegmentScan(const Segments& segments, const Erasures& erasures, std::uint32_t segment)
      : segments_(segments), erasures_(erasures), segment_(segment) {}

  void run() {
    const auto path = segments_.path_of(segment_);
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) {
      spdlog::warn("{} cannot be read: {}", path.string(), std::strerror(errno));
      return;
    }
    // No page is asked for but the heads'.
    (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
    const std::uint64_t slot_bytes = segments_.slot_bytes_of(segment_);
    for (std::uint32_t slot = 0; segments_.holds({segment_, slot}, slot_bytes); ++slot) {
      if (const auto header = head_at(fd.get(), slot, slot_bytes)) {
        DiskEntry entry;
        entry.identity = {header->ns, header->key, header->parent, header->block_index};
        entry.at = {segment_, slot};
        entry.record_bytes = header->record_bytes;
        found_.push_back(entry);
      }
    }
    (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  const std::vector<DiskEntry>& found() const noexcept { return found_; }

 private:
  bool read(int fd, std::uint64_t offset, std::size_t begin, std::size_t bytes) {
    first_.resize(begin + bytes);
    const ssize_t got =
        ::pread(fd, first_.data() + begin, bytes, static_cast<off_t>(offset + begin));
    return got == static_cast<ssize_t>(bytes);
  }

  // None: a slot that was never written, or whose head is not whole, or was erased.
  std::optional<RecordHeader> head_at(int fd, std::uint32_t slot, std::uint64_t slot_bytes) {
    const std::uint64_t offset = slot_offset(slot, slot_bytes);
    if (!read(fd, offset, 0, kRecordAlignment)) return std::nullopt;
    RecordHeader header;
    std::memcpy(&header, first_.data(), sizeof header);
    if (header.magic != kRecordMagic) return std::nullopt;
    if (header.header_bytes > first_.size() && header.header_bytes <= slot_bytes &&
        !read(fd, offset, first_.size(), header.header_bytes - first_.size())) {
      return std::nullopt;
    }
    if (!head_.read_first(first_, slot_bytes) || !head_.holds()) return std::nullopt;
    if (erasures_.covers(head_.header())) return std::nullopt;
    return head_.header();
  }

  const Segments& segments_;
  const Erasures& erasures_;
  const std::uint32_t segment_;
  std::vector<std::byte> first_;
  PrivateHead head_;
  std::vector<DiskEntry> found_;
};

class Scan {
 public:
  using Progress = std::function<void(const std::string&)>;
  Scan(Index& index, const Segments& segments, const Erasures& erasures, const Progress& progress)
      : index_(index), segments_(segments), erasures_(erasures), progress_(progress) {}

  Result<std::uint64_t> run() {
    const auto ids = segments_.present();
    for (std::size_t begin = 0; begin < ids.size(); begin += kSegmentsAtATime) {
      const std::size_t end = std::min(begin + kSegmentsAtATime, ids.size());
      if (const auto done = scan(std::span(ids).subspan(begin, end - begin)); !done)
        return done.error();
      if (end / kSegmentsPerProgress > begin / kSegmentsPerProgress || end == ids.size())
        tell(end, ids.size());
    }
    return found_.size();
  }

 private:
  // In the order of the segments, whichever has been read first.
  Result<void> scan(std::span<const std::uint32_t> ids) {
    std::vector<SegmentScan> scans;
    scans.reserve(ids.size());
    for (const std::uint32_t id : ids) scans.emplace_back(segments_, erasures_, id);
    {
      std::vector<std::jthread> threads;
      for (SegmentScan& one : std::span(scans).subspan(1))
        threads.emplace_back([&one] { one.run(); });
      scans.front().run();
    }
    for (const SegmentScan& one : scans) {
      for (const DiskEntry& entry : one.found()) {
        // The same record may lie in a slot that was given up as well; either copy is right.
        if (found_.insert(entry.identity.key).second) batch_.put(entry);
      }
      KVTIER_STORAGE_POINT("storage.rebuild.segment_scanned");
      if (const auto committed = index_.commit(batch_); !committed) return committed;
    }
    return {};
  }

  void tell(std::size_t read, std::size_t of) {
    const auto text = fmt::format("rebuilding the index: {} of {} segments read, {} records found",
                                  read, of, found_.size());
    spdlog::info(text);
    if (progress_) progress_(text);
  }

  Index& index_;
  const Segments& segments_;
  const Erasures& erasures_;
  const Progress& progress_;
  Index::Batch batch_;
  std::set<Key> found_;
};

}  // namespace

Result<std::uint64_t> rebuild_index(Index& index, const Segments& segments,
                                    const Erasures& erasures,
                                    const std::function<void(const std::string&)>& progress) {
  return Scan(index, segments, erasures, progress).run();
}

}  // namespace kvtier::storage
