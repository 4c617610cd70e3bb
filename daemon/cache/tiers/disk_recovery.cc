#include "daemon/cache/tiers/disk_recovery.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "core/base/points.h"
#include "daemon/cache/catalogue/eviction_order.h"

namespace kvtier::daemon {

namespace {

// Has the kernel give the index its memory a little before it is used, on a thread of its own: in a
// virtual machine, whose host gives pages slowly, that is a third of the restart of a large one. A
// small one ends before it begins.
class MemoryAhead {
 public:
  explicit MemoryAhead(const Catalogue& catalogue)
      : catalogue_(catalogue), thread_([this] { run(); }) {}
  ~MemoryAhead() {
    reached(kEnd);
    thread_.join();
  }
  MemoryAhead(const MemoryAhead&) = delete;

  // So many entries are in use.
  void reached(std::uint32_t entries) noexcept {
    if (entries != kEnd && entries < told_ + kPiece) return;
    told_ = entries;
    reached_.store(entries);
    reached_.notify_one();
  }

 private:
  static constexpr std::uint32_t kPiece = 1U << 16;
  static constexpr std::uint32_t kAhead = 8 * kPiece;
  static constexpr std::uint32_t kEnd = ~0U;

  void run() noexcept {
    std::uint32_t done = 0;
    for (std::uint32_t seen = 0;;) {
      reached_.wait(seen);
      seen = reached_.load();
      if (seen == kEnd) return;
      done = std::max(done, seen);
      while (done < std::min(catalogue_.capacity(), seen + kAhead) && reached_.load() == seen) {
        const std::uint32_t count = std::min(kPiece, catalogue_.capacity() - done);
        catalogue_.populate(done, count, Tier::disk);
        done += count;
      }
    }
  }

  const Catalogue& catalogue_;
  std::uint32_t told_ = 0;
  std::atomic<std::uint32_t> reached_{0};
  std::thread thread_;
};

}  // namespace

Result<void> DiskRecovery::open_namespaces() {
  if (std::exchange(namespaces_opened_, true)) return {};
  for (const auto& on : devices_.all()) {
    auto namespaces = on->store().namespaces();
    if (!namespaces) return namespaces.error();
    for (const auto& [id, encoded] : *namespaces) {
      if (auto opened = catalogue_.namespaces().open(encoded); !opened) {
        spdlog::warn("disk tier: namespace {} is not understood: {}", to_hex(id),
                     opened.error().message);
      }
    }
  }
  return {};
}

Result<std::uint64_t> DiskRecovery::recover() {
  std::uint64_t newest = 0;
  std::vector<BlockId> taken;
  taken.reserve(catalogue_.capacity());  // of which only what is used gets memory
  // All namespaces first: one store may know of a namespace what another, whose index was lost,
  // does not.
  if (auto good = open_namespaces(); !good) return good.error();
  for (std::uint32_t number = 0; number < devices_.size(); ++number) {
    const auto newest_there = take_over_all(number, taken);
    if (!newest_there) return newest_there;
    newest = std::max(newest, *newest_there);
  }
  sort_newest_first(catalogue_, taken);
  catalogue_.enlist_newest(taken, Tier::disk);
  for (const auto& on : devices_.all()) on->store().recovered();
  KVTIER_POINT("daemon.recovered");
  if (devices_.size() != 0) {
    spdlog::info("disk tier: {} blocks, {} bytes taken over, {} of namespaces not known yet",
                 catalogue_.counts(Tier::disk).blocks, catalogue_.counts(Tier::disk).bytes,
                 catalogue_.namespaces().orphan_blocks());
  }
  return newest;
}

std::string DiskRecovery::unknown_directory() const {
  for (std::uint32_t number = 0; number < devices_.size(); ++number) {
    if (devices_[number].store().unknown() || late_.contains(number))
      return devices_[number].directory();
  }
  return {};
}

void DiskRecovery::invalidated(const NamespaceFilter& filter) {
  if (!unknown_directory().empty()) invalidated_.push_back(filter);
}

bool DiskRecovery::takes_health(std::uint32_t number, storage::DiskState state,
                                const std::string& why) {
  if (const auto late = late_.find(number); late != late_.end()) {
    late->second = state;
    devices_[number].set_why(why);
    return true;
  }
  if (state == storage::DiskState::offline || !devices_[number].store().to_recover()) return false;
  begin_late(number);
  return true;
}

void DiskRecovery::begin_late(std::uint32_t number) {
  DiskDevice& on = devices_[number];
  late_[number] = storage::DiskState::online;
  on.set_why("its blocks are being taken over");
  on.leave_out_bad_places();
  const auto namespaces = on.store().namespaces();
  for (const auto& [id, encoded] : *namespaces) on_late_namespace(encoded);
  take_over_late(number);
}

// In steps: others are served meanwhile, though not from this device, which comes online at the
// end. Its blocks come newest first, and before what it may be given then.
void DiskRecovery::take_over_late(std::uint32_t number) {
  DiskDevice& on = devices_[number];
  std::vector<Key> unusable;
  last_.reset();
  (void)on.store().recover([&](const storage::DiskEntry& entry) {
    on_late_stamp(entry.last_access);
    const auto ns = catalogue_.namespaces().find(entry.identity.ns);
    const bool gone = ns && std::ranges::any_of(invalidated_, [&](const NamespaceFilter& filter) {
                        return filter.matches(catalogue_.namespaces()[*ns]);
                      });
    const auto id = gone ? Result<BlockId>(make_error(Errc::not_found, "invalidated"))
                         : take_over(number, entry);
    if (id) return catalogue_.enlist_oldest(*id, Tier::disk);
    spdlog::debug("disk tier: block {} is not taken over: {}", to_hex(entry.identity.key),
                  id.error().message);
    unusable.push_back(entry.identity.key);
  });
  if (!unusable.empty()) on.erase(std::move(unusable), {});
  KVTIER_POINT("daemon.late.step");
  if (on.store().to_recover()) {
    const auto next = [this, number] { take_over_late(number); };
    return later_ ? later_(next) : next();
  }
  const storage::DiskState state = late_.extract(number).mapped();
  if (unknown_directory().empty()) invalidated_.clear();
  spdlog::info("disk tier: {} came late, {} blocks taken over", on.directory(), on.blocks());
  devices_.set_state(number, state, on.why());
}

// The entries come in the order of their keys. Each is taken over a little after it came, when the
// words of the tables that it will change have been loaded. Returns the newest stamp.
Result<std::uint64_t> DiskRecovery::take_over_all(std::uint32_t number,
                                                  std::vector<BlockId>& taken) {
  constexpr std::size_t kPiece = 32;
  constexpr std::size_t kBlocksPerProgress = 1 << 18;
  std::vector<storage::DiskEntry> piece, before;
  std::vector<Key> unusable;
  std::uint64_t newest = 0;
  last_.reset();
  const auto take = [&](const storage::DiskEntry& entry) {
    const auto id = take_over(number, entry);
    if (id) {
      newest = std::max(newest, catalogue_.block(*id).last_access);
      return taken.push_back(*id);
    }
    spdlog::warn("disk tier: block {} is not taken over: {}", to_hex(entry.identity.key),
                 id.error().message);
    unusable.push_back(entry.identity.key);
  };
  DiskDevice& on = devices_[number];
  on.leave_out_bad_places();
  MemoryAhead ahead(catalogue_);
  std::size_t next_progress = taken.size();
  // A piece is taken over while what the next will read is on its way from memory.
  const auto turn = [&] {
    std::array<Key, kPiece> keys;
    for (std::size_t i = 0; i < piece.size(); ++i) keys[i] = piece[i].identity.key;
    catalogue_.prefetch({keys.data(), piece.size()});
    for (const auto& entry : piece) on.prefetch(entry.at);
    for (const auto& entry : before) take(entry);
    before.swap(piece);
    piece.clear();
    ahead.reached(catalogue_.size());
    if (taken.size() < next_progress) return;
    next_progress = taken.size() + kBlocksPerProgress;
    if (on_recovering) on_recovering(on.directory(), taken.size());
  };
  const auto read = on.store().recover([&](const storage::DiskEntry& entry) {
    piece.push_back(entry);
    if (piece.size() == kPiece) turn();
  });
  if (!read) return read.error();
  turn();
  turn();
  if (!unusable.empty()) on.erase(std::move(unusable), {});
  return newest;
}

Result<std::uint16_t> DiskRecovery::namespace_of(const storage::DiskEntry& entry) {
  if (last_ && last_->first == entry.identity.ns) return last_->second;
  auto ns = catalogue_.namespaces().find(entry.identity.ns);
  if (!ns) {
    const auto added = catalogue_.namespaces().add_orphan(entry.identity.ns, entry.record_bytes);
    if (!added) return added.error();
    ns = *added;
  }
  last_ = {entry.identity.ns, *ns};
  return *ns;
}

Result<BlockId> DiskRecovery::take_over(std::uint32_t number, const storage::DiskEntry& entry) {
  // What is in memory too is one block in both places.
  const BlockId known = catalogue_.find_any(entry.identity.key);
  if (known != kNoBlock) {
    const Block& block = catalogue_.block(known);
    if (block.tiers.has(Tier::disk)) return make_error(Errc::corrupt, "indexed twice");
    if (block.write_queued) return make_error(Errc::corrupt, "being written to another disk");
    if (block.doomed && block.spoilt().empty()) return make_error(Errc::corrupt, "dropped");
    if (catalogue_.namespaces()[block.ns].id != entry.identity.ns ||
        block.block_index != entry.identity.block_index) {
      return make_error(Errc::corrupt, "another block in memory has its key");
    }
  } else if (catalogue_.size() == catalogue_.capacity()) {
    return make_error(Errc::no_space, "the index is full: raise index.blocks_max");
  }
  const auto ns = namespace_of(entry);
  if (!ns) return ns.error();
  if (catalogue_.namespaces()[*ns].layout.record_bytes != entry.record_bytes) {
    return make_error(Errc::corrupt, "its size is not its namespace's");
  }
  if (auto claimed = devices_[number].space().claim(entry.at, entry.record_bytes); !claimed) {
    return claimed.error();
  }
  const BlockId id = known != kNoBlock
                         ? known
                         : catalogue_.add(*ns, entry.identity.key, entry.identity.parent,
                                          entry.identity.block_index);
  catalogue_.set_last_access(id, std::max(catalogue_.block(id).last_access, entry.last_access));
  devices_[number].set_block(entry.at, id);
  catalogue_.place_unlisted(id, Tier::disk, disk_place(number, entry.at));
  devices_.add_usage(catalogue_.tenant(id), entry.record_bytes);
  return id;
}

}  // namespace kvtier::daemon
