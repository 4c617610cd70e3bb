#include "storage/store/record_store.h"

#include <spdlog/spdlog.h>

#include <set>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/base/fd.h"
#include "storage/device/block_device.h"
#include "storage/device/throttled_device.h"
#include "storage/index/erasures.h"
#include "storage/index/index.h"
#include "storage/index/points.h"
#include "storage/index/rebuild.h"
#include "storage/index/segments.h"
#include "storage/index/store_directory.h"
#include "storage/store/late_store.h"
#include "storage/store/thread/store_loop.h"

namespace kvtier::storage {
namespace {

// Stamps beyond are forgotten: the LRU order is then a little older after a restart.
constexpr std::uint64_t kStampsQueuedMax = 1 << 16;

Index::Options index_options(const StoreDirectory& directory, const RecordStoreOptions& options,
                             Index::Compaction compaction) {
  return {directory.index(), directory.id(), index_capacity_bytes(options), compaction,
          options.index_env};
}

// Makes a new index from what the segments hold.
Result<std::unique_ptr<Index>> rebuilt_index(const StoreDirectory& directory,
                                             const Segments& segments, const Erasures& erasures,
                                             const RecordStoreOptions& options) {
  if (const auto removed = Index::remove(directory.index()); !removed) return removed.error();
  KVTIER_STORAGE_POINT("storage.rebuild.index_removed");
  auto index = Index::open(index_options(directory, options, Index::Compaction::runs));
  if (!index) return index;
  const auto records = rebuild_index(**index, segments, erasures, options);
  if (!records) return records.error();
  if (const auto marked = (*index)->mark_complete(); !marked) return marked.error();
  KVTIER_STORAGE_POINT("storage.rebuild.complete");
  spdlog::info("rebuilt the index {}: {} records", directory.index().string(), *records);
  return index;
}

struct OpenedIndex {
  std::unique_ptr<Index> index;
  Index::Contents contents;
};

Result<OpenedIndex> open_index(const StoreDirectory& directory, const Segments& segments,
                               const Erasures& erasures, const RecordStoreOptions& options) {
  OpenedIndex opened;
  auto index = Index::open(index_options(directory, options, Index::Compaction::held));
  auto contents = index ? (*index)->load(options.progress) : Result<Index::Contents>(index.error());
  if (!contents && contents.error().code != Errc::corrupt) return contents.error();
  const bool missing = contents && (*index)->is_incomplete() && !segments.present().empty();
  if (!contents || missing) {
    spdlog::warn("the index is rebuilt from the segments: {}",
                 contents ? directory.index().string() + " was missing or incomplete"
                          : contents.error().message);
    if (index) index->reset();
    index = rebuilt_index(directory, segments, erasures, options);
    if (!index) return index.error();
    contents = (*index)->load(options.progress);
    if (!contents) return contents.error();
  } else if ((*index)->is_incomplete()) {
    if (const auto marked = (*index)->mark_complete(); !marked) return marked.error();
  }
  KVTIER_STORAGE_POINT("storage.open.index_opened");
  opened.index = std::move(*index);
  opened.contents = std::move(*contents);
  return opened;
}

// Forgets entries whose slot is not there any more, and what lies past a lowered capacity.
Result<void> prune(OpenedIndex& opened, Segments& segments) {
  std::vector<Key> gone = std::move(opened.contents.unreadable);
  std::size_t forgotten = 0;
  for (auto& entries : opened.contents.parts) {
    forgotten += entries.erase_if([&](const DiskEntry& entry) {
      const bool held = segments.holds(entry.at, entry.record_bytes);
      if (!held) gone.push_back(entry.identity.key);
      return !held;
    });
  }
  if (forgotten > 0) spdlog::warn("{} index entries without a slot forgotten", forgotten);
  // First what takes the most room: an entry of a segment that is gone does no harm.
  if (const auto removed = segments.remove_past_capacity(); !removed) return removed;
  return opened.index->prune(gone);
}

std::uint32_t segments_max(const RecordStoreOptions& options) noexcept {
  return static_cast<std::uint32_t>(segment_capacity_bytes(options) / options.segment_bytes);
}

BlockDevice::Limits device_limits(const RecordStoreOptions& options) noexcept {
  BlockDevice::Limits limits;
  limits.depth = options.reads_in_flight_max + options.writes_in_flight_max + kScrubsMax +
                 OwnMemory::kPartsMax + 2;
  limits.files = segments_max(options);
  return limits;
}

class DiskRecordStore final : public RecordStore {
 public:
  DiskRecordStore(const RecordStoreOptions& options, StoreDirectory directory,
                  std::unique_ptr<Segments> segments, Erasures erasures, BadPlaces bad,
                  OpenedIndex opened, std::unique_ptr<BlockDevice> device, Post post)
      : options_(options),
        directory_(std::move(directory)),
        segments_(std::move(segments)),
        erasures_(std::move(erasures)),
        bad_(std::move(bad)),
        bad_before_(bad_.all().begin(), bad_.all().end()),
        index_(std::move(opened.index)),
        recovered_(std::move(opened.contents.parts)),
        device_(std::move(device)),
        loop_(options, directory_, *device_, *index_, *segments_, erasures_, bad_, counters_,
              std::move(post)),
        thread_([this] { loop_.run(); }) {}

  ~DiskRecordStore() override { close(); }

  Result<void> recover(const std::function<void(const DiskEntry&)>& visit) override {
    for (IndexEntries& entries : std::exchange(recovered_, {})) entries.hand_over(visit);
    return {};
  }
  void recovered() override { index_->resume_compaction(); }

  Result<void> register_extent(const Extent& extent) override {
    if (extent.bytes().empty()) {
      return make_error(Errc::invalid, "extent " + std::to_string(extent.id().value) +
                                           " is memory that the daemon cannot address");
    }
    if (is_closed()) return closed();
    if (registered_->contains(extent.id()) ||
        registered_->size() + OwnMemory::kBuffers >= device_->limits().buffers) {
      return make_error(Errc::invalid, "extent " + std::to_string(extent.id().value) +
                                           (registered_->contains(extent.id())
                                                ? " is registered already"
                                                : ": too many extents are registered"));
    }
    registered_->insert(extent.id());
    loop_.send(RegisterCommand{extent.id(), extent.bytes(), extent.shape().slot_bytes});
    return {};
  }

  void forget_extent(ExtentId extent, std::function<void()> done) override {
    if (is_closed()) return done();
    // It takes the place of one that is registered until the loop has let go of it.
    loop_.send(ForgetCommand{extent, [registered = registered_, extent, done = std::move(done)] {
                               registered->erase(extent);
                               done();
                             }});
  }

  Result<void> write(const Write& write, Done<void> done) override {
    if (const auto usable = check_usable(counters_.online); !usable) return usable;
    if (counters_.writes_pending >= options_.writes_queued_max) {
      ++writes_refused_;
      return make_error(Errc::no_space, "the disk tier's write queue is full");
    }
    ++counters_.writes_pending;
    loop_.send(WriteCommand{write, std::move(done), 0, 0, {}});
    return {};
  }

  bool has_room() const noexcept override { return !counters_.index_full; }

  Result<void> read(const Read& read, Done<void> done) override {
    if (const auto usable = check_usable(counters_.readable); !usable) return usable;
    if (counters_.reads_pending >= options_.reads_queued_max) {
      return make_error(Errc::no_space, "the disk tier's read queue is full");
    }
    ++counters_.reads_pending;
    loop_.send(ReadCommand{read, std::move(done)});
    return {};
  }

  Result<void> test_place(DiskLocation at, std::uint64_t slot_bytes, Done<void> done) override {
    if (const auto usable = check_usable(counters_.online); !usable) return usable;
    if (counters_.place_tests_pending >= kPlaceTestsMax) {
      return make_error(Errc::no_space, "as many tests of places as there can be are under way");
    }
    ++counters_.place_tests_pending;
    loop_.send(PlaceTestCommand{at, slot_bytes, std::move(done), {}});
    return {};
  }
  std::vector<BadPlace> bad_places() const override { return bad_before_; }

  Result<void> scrub(const Scrub& scrub, Done<void> done) override {
    if (const auto usable = check_usable(counters_.readable); !usable) return usable;
    if (counters_.scrubs_pending >= kScrubsMax) {
      return make_error(Errc::no_space, "as many scrubs as there can be are under way");
    }
    ++counters_.scrubs_pending;
    loop_.send(ScrubCommand{scrub, std::move(done), {}, 0});
    return {};
  }

  void on_lost(RecordsLost lost) override {
    if (!is_closed()) loop_.send(LostCommand{std::move(lost)});
  }
  void on_health(Changed changed) override {
    if (!is_closed()) loop_.send(HealthCommand{std::move(changed)});
  }

  void erase(std::vector<Key> keys, Done<void> done) override {
    if (!is_closed()) loop_.send(EraseCommand{std::move(keys), std::move(done)});
  }

  void erase_for_good(std::vector<Erasure> what) override {
    if (!is_closed() && !what.empty()) loop_.send(EraseForGoodCommand{std::move(what)});
  }

  void touch(std::vector<std::pair<Key, std::uint64_t>> stamps) override {
    if (is_closed() || stamps.empty() ||
        counters_.stamps_pending + stamps.size() > kStampsQueuedMax) {
      return;
    }
    counters_.stamps_pending += stamps.size();
    loop_.send(TouchCommand{std::move(stamps)});
  }

  void remember_namespace(const NamespaceId& id, std::vector<std::byte> encoded) override {
    if (!is_closed()) loop_.send(NamespaceCommand{id, std::move(encoded)});
  }
  void forget_namespace(const NamespaceId& id) override {
    if (!is_closed()) loop_.send(NamespaceCommand{id, {}});
  }

  Result<std::vector<std::pair<NamespaceId, std::vector<std::byte>>>> namespaces() override {
    return index_->namespaces();
  }

  void flush(Done<void> done) override {
    if (!is_closed()) loop_.send(FlushCommand{std::move(done)});
  }

  RecordStoreStats stats() const override {
    RecordStoreStats stats;
    stats.records_read = counters_.records_read;
    stats.bytes_read = counters_.bytes_read;
    stats.read_failures = counters_.read_failures;
    stats.checksum_failures = counters_.checksum_failures;
    stats.memory_faults = counters_.memory_faults;
    stats.records_written = counters_.records_written;
    stats.bytes_written = counters_.bytes_written;
    stats.write_failures = counters_.write_failures;
    stats.writes_refused = writes_refused_;
    stats.records_given_up = counters_.records_given_up;
    stats.index_memory_bytes = counters_.index_memory_bytes;
    stats.file_bytes = segments_->file_bytes() + counters_.index_bytes;
    return stats;
  }

  void close() override {
    if (is_closed()) return;
    loop_.send(CloseCommand{});
    thread_.join();
  }

 private:
  bool is_closed() const noexcept { return !thread_.joinable(); }
  Result<void> check_usable(bool usable) const {
    if (is_closed()) return closed();
    if (usable) return {};
    return make_error(Errc::unavailable, counters_.readable ? "the disk tier is read-only"
                                                            : "the disk tier is offline");
  }
  static Error closed() { return make_error(Errc::unavailable, "the record store is closed"); }

  const RecordStoreOptions options_;
  StoreDirectory directory_;
  std::unique_ptr<Segments> segments_;
  Erasures erasures_;
  BadPlaces bad_;
  const std::vector<BadPlace> bad_before_;  // the others are the loop's
  std::unique_ptr<Index> index_;
  std::vector<IndexEntries> recovered_;
  std::unique_ptr<BlockDevice> device_;
  StoreCounters counters_;
  std::uint64_t writes_refused_ = 0;
  // The tasks that are posted may outlive this.
  const std::shared_ptr<std::set<ExtentId>> registered_ = std::make_shared<std::set<ExtentId>>();
  StoreLoop loop_;
  std::thread thread_;
};

// As the host and the environment have it.
Result<std::unique_ptr<BlockDevice>> make_device(const RecordStoreOptions& options) {
  auto device = make_block_device(
      device_limits(options), {.sqpoll = options.sqpoll, .force_threads = options.force_threads});
  const auto throttle = throttle_from_environment();
  if (!throttle) return throttle.error();
  if (!*throttle) return device;
  spdlog::warn("KVTIER_DISK_BYTES_PER_S: the disk tier is held back to {} bytes/s",
               (*throttle)->bytes_per_s);
  return make_throttled_device(std::move(device), **throttle);
}

// `make_device`: called once the directory is open.
template <class MakeDevice>
Result<std::unique_ptr<RecordStore>> open_store(const RecordStoreOptions& options,
                                                RecordStore::Post post,
                                                const MakeDevice& make_device) {
  auto directory = StoreDirectory::open(options);
  if (!directory) return directory.error();
  auto segments = std::make_unique<Segments>(directory->segments(), directory->id(),
                                             options.segment_bytes, segments_max(options));
  if (const auto loaded = segments->load(); !loaded) return loaded.error();
  auto erasures = Erasures::open(directory->erased());
  if (!erasures) return erasures.error();
  auto bad = BadPlaces::open(directory->bad_places());
  if (!bad) return bad.error();
  auto opened = open_index(*directory, *segments, *erasures, options);
  if (!opened) return opened.error();
  if (const auto pruned = prune(*opened, *segments); !pruned) return pruned.error();
  KVTIER_STORAGE_POINT("storage.open.pruned");
  Result<std::unique_ptr<BlockDevice>> device = make_device();
  if (!device) return device.error();
  if ((*device)->limits().files < segments_max(options)) {
    return make_error(Errc::invalid, "the device takes fewer files than the capacity has segments");
  }
  return std::unique_ptr<RecordStore>(std::make_unique<DiskRecordStore>(
      options, std::move(*directory), std::move(segments), std::move(*erasures), std::move(*bad),
      std::move(*opened), std::move(*device), std::move(post)));
}

}  // namespace

Result<std::unique_ptr<RecordStore>> open_record_store(const RecordStoreOptions& options,
                                                       RecordStore::Post post) {
  return open_store(options, std::move(post), [&] { return make_device(options); });
}

Result<std::unique_ptr<RecordStore>> open_record_store(const RecordStoreOptions& options,
                                                       RecordStore::Post post,
                                                       std::unique_ptr<BlockDevice> device) {
  if (!device) return open_record_store(options, std::move(post));
  return open_store(options, std::move(post), [&] { return std::move(device); });
}

Result<std::unique_ptr<RecordStore>> open_wrapped_record_store(const RecordStoreOptions& options,
                                                               RecordStore::Post post,
                                                               const WrapDevice& wrap) {
  return open_store(options, std::move(post), [&]() -> Result<std::unique_ptr<BlockDevice>> {
    auto device = make_device(options);
    if (!device || !wrap) return device;
    return wrap(std::move(*device));
  });
}

}  // namespace kvtier::storage
