#include "daemon/server/tiers.h"

#include <spdlog/fmt/fmt.h>
#include <sys/random.h>

#include <algorithm>

#include "core/base/units.h"
#include "daemon/limits.h"
#include "daemon/peers/access.h"

namespace kvtier::daemon {

namespace {

// Every size of record needs extents of its own: where no size of extents was chosen, a small tier
// has room for some of each of many.
std::uint64_t extent_bytes_of(const Config::Memory& memory, const Config::Memory& defaults) {
  constexpr std::uint64_t kExtents = 16;
  if (memory.extent_bytes != defaults.extent_bytes) return memory.extent_bytes;
  return std::clamp<std::uint64_t>(memory.capacity_bytes / kExtents, 1_MiB, memory.extent_bytes);
}

// So that a slow disk cannot pin the host tier.
std::uint64_t write_queue_bytes_max(std::uint64_t host_cap_bytes) {
  return host_cap_bytes / 4;
}

// So that a slow network cannot either.
constexpr std::uint64_t kRemoteQueuePart = 8;

RemoteTier::Options remote_options(const Config& config) {
  RemoteTier::Options options;
  options.admission = config.remote.admission;
  options.known_max = config.remote.blocks_known_max;
  options.lookup_timeout = config.remote.lookup_timeout;
  options.read_timeout = config.remote.read_timeout;
  options.write_queue_max = limits::kRemoteWriteQueueMax;
  options.write_queue_bytes_max = config.host.capacity_bytes / kRemoteQueuePart;
  const Tenants tenants = tenants_of(config);
  for (TenantId tenant = 0; tenant < tenants.size(); ++tenant) {
    const bool shares = std::ranges::find(config.remote.tenants, tenants[tenant].name) !=
                        config.remote.tenants.end();
    options.stays_here.push_back(tenants[tenant].isolated && !shares);
  }
  return options;
}

BlockCache::Options cache_options(const Config& config, std::uint64_t segments_bytes) {
  const Config defaults;
  BlockCache::Options options;
  options.blocks_max = config.index_blocks_max;
  options.tenants = tenants_of(config);
  options.policy = config.policy;
  options.leases_per_session = config.limits.leases_per_session;
  options.leases_per_user = config.limits.leases_per_user;
  options.leased_percent = config.limits.leased_percent;
  options.hints = {config.limits.kept_percent, config.limits.prefetched_percent};
  options.host = {config.host.capacity_bytes, extent_bytes_of(config.host, defaults.host)};
  options.device = {config.device.capacity_bytes, extent_bytes_of(config.device, defaults.device)};
  options.pinned_percent_max = config.pinned_percent_max;
  options.remote = remote_options(config);
  if (config.disk.directories.empty()) return options;
  options.disk.segments_bytes = segments_bytes;
  options.disk.segment_bytes = config.disk.segment_bytes;
  options.disk.write_queue_max = limits::kWriteThroughQueueMax;
  options.disk.write_queue_bytes_max = write_queue_bytes_max(config.host.capacity_bytes);
  options.disk.admission = config.disk.admission;
  options.disk.write_budget = config.disk.write_budget;
  return options;
}

}  // namespace

Result<void> Tiers::open(const Config& config) {
  if (auto good = backing_.open(config); !good) return good;
  if (::getrandom(boot_id_.data(), boot_id_.size(), 0) != static_cast<ssize_t>(boot_id_.size()))
    return make_error(Errc::io, "no random bytes for the boot id");
  auto directory = DirectoryWriter::create(config.index_blocks_max, boot_id_);
  if (!directory) return directory.error();
  directory_ = std::make_unique<DirectoryWriter>(std::move(*directory));
  make_cache(config);
  kept_room_ = {config.host.capacity_bytes, config.device.capacity_bytes, {}, nullptr};
  kept_room_.tenants = &cache_->catalogue().tenants();
  for (const auto& gpu : backing_.gpus()) {
    kept_room_.gpus.push_back(
        {gpu.uuid, static_cast<int>(gpu.number), config.device.backend == DeviceBackend::cuda});
  }
  return {};
}

void Tiers::make_cache(const Config& config) {
  BlockCache::Ports ports{{},
                          &backing_.host(),
                          {},
                          directory_.get(),
                          [this] { return kept_.next_extent(); },
                          backing_.remote()};
  for (const auto& gpu : backing_.gpus()) ports.devices.push_back(gpu.extents.get());
  for (const auto& disk : backing_.disks())
    ports.disks.push_back({disk.store.get(), disk.directory});
  cache_ = std::make_unique<BlockCache>(cache_options(config, backing_.segments_bytes()),
                                        std::move(ports));
  cache_->later = ports_.post;
  cache_->disk().later = ports_.post;
  cache_->remote().later = ports_.post;
  cache_->remote().after = ports_.after;
  cache_->disk().on_recovering = [this](const std::string& directory, std::uint64_t blocks) {
    ports_.progress(
        fmt::format("Taking over what is on disk: {} blocks, in {}", blocks, directory));
  };
  connect(cache_->memory(Tier::host));
  for (std::uint32_t device = 0; device < cache_->devices(); ++device)
    connect(cache_->memory(Tier::device, device));
}

void Tiers::connect(MemoryTier& memory) {
  memory.on_created = [this](storage::Extent& extent) {
    kept_.created(extent);
    backing_.register_extent(extent);
  };
  memory.on_retired = [this](storage::Extent& extent) {
    kept_.retired(extent);
    // Later: who asks the cache for something may be about to tell of a slot in it.
    ports_.post([this, gone = extent.id()] {
      if (on_extent_gone) on_extent_gone(gone);
    });
  };
  memory.dispose = [this](std::unique_ptr<storage::Extent> extent, std::function<void()> gone) {
    backing_.dispose(std::move(extent), std::move(gone));
  };
}

Result<std::vector<ProcessId>> Tiers::take_memory() {
  auto extents = kept_.take(passed_, kept_room_);
  if (!extents) return extents.error();
  cache_->on_namespace = [this](const KnownNamespace& ns) { kept_.remember(ns.encoded); };
  kept_.live = [this] {
    std::vector<std::span<const std::byte>> live;
    const Namespaces& known = cache_->catalogue().namespaces();
    for (std::uint16_t ns = 0; ns < known.size(); ++ns) {
      if (known[ns].remembered) live.emplace_back(known[ns].encoded);
    }
    return live;
  };
  auto writers = cache_->adopt(
      {std::move(*extents), [this](const NamespaceId& id) { return kept_.encoding(id); }});
  if (!writers) return writers;
  kept_.taken();
  // Pinned on the disks' own threads, while clients are served.
  cache_->memory(Tier::host).each_extent([this](storage::Extent& extent) {
    backing_.register_extent(extent);
  });
  return writers;
}

void Tiers::set_host_cap(std::uint64_t bytes) {
  cache_->memory(Tier::host).set_cap(bytes);
  cache_->disk().set_write_queue_bytes_max(write_queue_bytes_max(bytes));
}

Result<void> Tiers::set_device_cap(std::uint64_t bytes) {
  if (auto good = backing_.fits_gpus(bytes); !good) return good;
  for (std::uint32_t device = 0; device < cache_->devices(); ++device)
    cache_->memory(Tier::device, device).set_cap(bytes);
  return {};
}

}  // namespace kvtier::daemon
