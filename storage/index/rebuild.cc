#include "storage/index/rebuild.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/fd.h"
#include "core/record/key_hash.h"
#include "core/record/private_head.h"
#include "storage/index/points.h"

namespace kvtier::storage {
namespace {

// Reads at a time, each from a segment of its own: devices have queues, and most of the time is
// waiting.
constexpr std::uint32_t kReaders = 32;
// Segments that are read ahead of the one whose turn it is.
constexpr std::size_t kAheadMax = std::size_t{4} * kReaders;
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
  std::vector<DiskEntry> take_found() noexcept { return std::move(found_); }

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

// Segments that several threads read, handed out in their order, whichever was read first. The
// threads go on to the next one that nobody reads, and keep within kAheadMax of what was handed
// out.
class Readers {
 public:
  Readers(const Segments& segments, const Erasures& erasures, std::span<const std::uint32_t> ids)
      : segments_(segments), erasures_(erasures), ids_(ids), read_(ids.size()) {
    const std::size_t readers = std::min<std::size_t>(kReaders, ids.size());
    for (std::size_t i = 0; i < readers; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { run(stop); });
    }
  }
  ~Readers() {
    for (std::jthread& thread : threads_) thread.request_stop();
    threads_.clear();
  }
  Readers(const Readers&) = delete;

  // What lies in the next segment; once for each of them.
  std::vector<DiskEntry> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return read_[handed_out_].has_value(); });
    std::vector<DiskEntry> found = std::move(*read_[handed_out_]);
    read_[handed_out_++].reset();
    changed_.notify_all();
    return found;
  }

 private:
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (;;) {
      const bool going_on = changed_.wait(
          lock, stop, [this] { return begun_ == ids_.size() || begun_ < handed_out_ + kAheadMax; });
      if (!going_on || stop.stop_requested() || begun_ == ids_.size()) return;
      const std::size_t at = begun_++;
      lock.unlock();
      SegmentScan scan(segments_, erasures_, ids_[at]);
      scan.run();
      lock.lock();
      read_[at] = scan.take_found();
      changed_.notify_all();
    }
  }

  const Segments& segments_;
  const Erasures& erasures_;
  const std::span<const std::uint32_t> ids_;
  std::mutex mutex_;  // of all below
  std::condition_variable_any changed_;
  std::vector<std::optional<std::vector<DiskEntry>>> read_;
  std::size_t begun_ = 0, handed_out_ = 0;
  std::vector<std::jthread> threads_;
};

class Scan {
 public:
  Scan(Index& index, const Segments& segments, const Erasures& erasures,
       const RecordStoreOptions& options)
      : index_(index), segments_(segments), erasures_(erasures), options_(options) {}

  Result<std::uint64_t> run() {
    const auto ids = segments_.present();
    Readers readers(segments_, erasures_, ids);
    for (std::size_t done = 0; done < ids.size(); ++done) {
      if (options_.cancelled && options_.cancelled())
        return make_error(Errc::unavailable, "making the index anew was given up");
      if (const auto added = add(readers.next()); !added) return added.error();
      if ((done + 1) % kSegmentsPerProgress == 0 || done + 1 == ids.size())
        tell(done + 1, ids.size());
    }
    return found_.size();
  }

 private:
  Result<void> add(const std::vector<DiskEntry>& entries) {
    for (const DiskEntry& entry : entries) {
      // The same record may lie in a slot that was given up as well; either copy is right.
      if (found_.insert(entry.identity.key).second) batch_.put(entry);
    }
    KVTIER_STORAGE_POINT("storage.rebuild.segment_scanned");
    return index_.commit(batch_, Index::Log::none);
  }

  void tell(std::size_t read, std::size_t of) {
    const auto text = fmt::format("rebuilding the index: {} of {} segments read, {} records found",
                                  read, of, found_.size());
    spdlog::info(text);
    if (options_.progress) options_.progress(text);
  }

  Index& index_;
  const Segments& segments_;
  const Erasures& erasures_;
  const RecordStoreOptions& options_;
  Index::Batch batch_;
  std::unordered_set<Key, KeyHash> found_;
};

}  // namespace

Result<std::uint64_t> rebuild_index(Index& index, const Segments& segments,
                                    const Erasures& erasures, const RecordStoreOptions& options) {
  return Scan(index, segments, erasures, options).run();
}

}  // namespace kvtier::storage
