#include "storage/index/rebuild.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <cstring>
#include <set>
#include <vector>

#include "core/base/fd.h"
#include "storage/index/points.h"

namespace kvtier::storage {
namespace {

constexpr std::size_t kSegmentsPerProgress = 64;

class Scan {
 public:
  using Progress = std::function<void(const std::string&)>;
  Scan(Index& index, const Segments& segments, const Progress& progress)
      : index_(index), segments_(segments), progress_(progress) {}

  Result<std::uint64_t> run() {
    const auto ids = segments_.present();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (const auto scanned = scan(ids[i]); !scanned) return scanned.error();
      if ((i + 1) % kSegmentsPerProgress == 0 || i + 1 == ids.size()) {
        const auto text =
            fmt::format("rebuilding the index: {} of {} segments read, {} records found", i + 1,
                        ids.size(), found_.size());
        spdlog::info(text);
        if (progress_) progress_(text);
      }
    }
    return found_.size();
  }

 private:
  Result<void> scan(std::uint32_t segment) {
    const auto path = segments_.path_of(segment);
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) {
      spdlog::warn("{} cannot be read: {}", path.string(), std::strerror(errno));
      return {};
    }
    (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    const std::uint64_t slot_bytes = segments_.slot_bytes_of(segment);
    slot_.resize(slot_bytes);
    for (std::uint32_t slot = 0; segments_.holds({segment, slot}, slot_bytes); ++slot) {
      add(fd.get(), {segment, slot}, slot_bytes);
    }
    (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    KVTIER_STORAGE_POINT("storage.rebuild.segment_scanned");
    return index_.commit(batch_);
  }

  // A slot that was never written, or whose write was cut short, is none.
  void add(int fd, DiskLocation at, std::uint64_t slot_bytes) {
    const auto offset = static_cast<off_t>(slot_offset(at.slot, slot_bytes));
    std::uint64_t magic = 0;
    if (::pread(fd, &magic, sizeof magic, offset) != sizeof magic || magic != kRecordMagic) return;
    if (::pread(fd, slot_.data(), slot_bytes, offset) != static_cast<ssize_t>(slot_bytes)) return;
    const auto header = verify_found(slot_);
    // The same record may lie in a slot that was given up as well; either copy is right.
    if (!header || !found_.insert(header->key).second) return;
    DiskEntry entry;
    entry.identity = {header->ns, header->key, header->parent, header->block_index};
    entry.at = at;
    entry.record_bytes = header->record_bytes;
    batch_.put(entry);
  }

  Index& index_;
  const Segments& segments_;
  const Progress& progress_;
  Index::Batch batch_;
  std::set<Key> found_;
  std::vector<std::byte> slot_;
};

}  // namespace

Result<std::uint64_t> rebuild_index(Index& index, const Segments& segments,
                                    const std::function<void(const std::string&)>& progress) {
  return Scan(index, segments, progress).run();
}

}  // namespace kvtier::storage
