#include "daemon/cache/tiers/disk_tier.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "core/base/points.h"

namespace kvtier::daemon {

DiskTier::DiskTier(const Options& options, std::span<const Port> ports, Catalogue& catalogue,
                   MemoryTier& host)
    : now_(options.now),
      catalogue_(catalogue),
      devices_({options.segments_bytes, options.segment_bytes, options.now}, ports, catalogue,
               later),
      room_(catalogue, devices_, later),
      writes_({options.write_queue_max, options.write_queue_bytes_max, options.writes_submitted_max,
               options.admission, options.write_budget, options.now},
              catalogue, host, devices_, room_, counts_),
      recovery_(catalogue, devices_, later),
      stamps_(catalogue, devices_) {
  writes_.on_unheld = [this](BlockId id) { on_unheld(id); };
  recovery_.on_recovering = [this](const std::string& directory, std::uint64_t blocks) {
    if (on_recovering) on_recovering(directory, blocks);
  };
  for (std::uint32_t number = 0; number < devices_.size(); ++number) {
    devices_[number].store().on_health(
        [this, number](storage::DiskState state, const std::string& why) {
          if (!recovery_.takes_health(number, state, why)) devices_.set_state(number, state, why);
        });
    devices_[number].store().on_lost(
        [this, number](const std::vector<storage::LostRecord>& records) {
          given_up(number, records);
        });
  }
}

Result<void> DiskTier::read(BlockId id, Place to, std::function<void(Result<void>)> done) {
  const Block& block = catalogue_.block(id);
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  const Place from = devices_.place_of(id);
  storage::RecordStore::Read read;
  read.ns = catalogue_.namespaces()[block.ns].id;
  read.key = block.key;
  read.from = location_of(from);
  read.slot_bytes = bytes;
  read.extent = ExtentId(to.container);
  read.slot = to.slot;
  read.record_bytes = bytes;
  if (!catalogue_.hold(id, Tier::disk)) {
    return make_error(Errc::no_space, "too many readers of one block");
  }
  DiskDevice& on = devices_[device_of(from)];
  const DiskDevice::Time began = on.began();
  auto sent = on.store().read(
      read, [this, id, &on, began, done = std::move(done)](const Result<void>& result) {
        on.ended();
        catalogue_.unhold(id, Tier::disk);
        if (result) {
          on.counts.read_us.add(static_cast<std::uint64_t>(
              std::chrono::duration_cast<std::chrono::microseconds>(now_() - began).count()));
        } else if (result.error().code != Errc::unavailable) {
          // Forgotten, so that it is not asked for again, and its slot is tested.
          ++counts_.failures;
          ++(result.error().code == Errc::corrupt ? on.counts.corrupt : on.counts.failures);
          spdlog::warn("disk tier: block {} did not hold: {}", to_hex(catalogue_.block(id).key),
                       result.error().message);
        }
        done(result);
      });
  if (!sent) {
    on.ended();
    catalogue_.unhold(id, Tier::disk);
  }
  return sent;
}

Result<void> DiskTier::verify(BlockId id, std::function<void(Result<void>)> done) {
  const Block& block = catalogue_.block(id);
  if (!block.tiers.has(Tier::disk)) return make_error(Errc::not_found, "it is not on disk");
  if (!catalogue_.hold(id, Tier::disk))
    return make_error(Errc::no_space, "too many readers of one block");
  const Place at = devices_.place_of(id);
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  const NamespaceId ns = catalogue_.namespaces()[block.ns].id;
  auto sent = devices_[device_of(at)].store().scrub(
      {ns, block.key, location_of(at), bytes, bytes},
      [this, id, done = std::move(done)](const Result<void>& result) {
        catalogue_.unhold(id, Tier::disk, catalogue_.parent(id));
        if (!result && result.error().code != Errc::unavailable) (void)retire(id, result.error());
        on_unheld(id);
        done(result);
      });
  if (!sent) catalogue_.unhold(id, Tier::disk, catalogue_.parent(id));
  return sent;
}

bool DiskTier::retire(BlockId id, const Error& why) {
  if (on_lost) on_lost(id);
  if (catalogue_.block(id).holds[index_of(Tier::disk)] != 0) return false;
  devices_.retire(id, why.code == Errc::corrupt ? Removal::corrupt : Removal::io);
  return true;
}

// What is being read goes with its last hold. What the store has written and this has not heard of
// yet ends as a write that failed.
void DiskTier::given_up(std::uint32_t number, const std::vector<storage::LostRecord>& records) {
  std::vector<BlockId> gone, again;
  for (const auto& [key, at] : records) {
    const BlockId id = catalogue_.find_any(key);
    if (id == kNoBlock) continue;
    const Block& block = catalogue_.block(id);
    if (!block.tiers.has(Tier::disk)) {
      writes_.given_up(id, number, at);
    } else if (devices_.place_of(id) == disk_place(number, at)) {
      if (on_lost) on_lost(id);
      if (block.holds[index_of(Tier::disk)] != 0) {
        catalogue_.spoil(id, TierSet{}.with(Tier::disk));
        continue;
      }
      gone.push_back(id);
      if (block.tiers.has(Tier::host)) again.push_back(id);
    }
  }
  devices_.forget(gone, Removal::io);
  for (const BlockId id : again) writes_.demoted(id);
}

void DiskTier::remember_namespace(std::uint16_t ns) {
  const auto& known = catalogue_.namespaces()[ns];
  for (const auto& on : devices_.all()) on->store().remember_namespace(known.id, known.encoded);
  if (!devices().empty()) KVTIER_POINT("daemon.namespace.remembered");
}

void DiskTier::forget_namespace(const NamespaceId& id) {
  for (const auto& on : devices_.all()) on->store().forget_namespace(id);
}

}  // namespace kvtier::daemon
