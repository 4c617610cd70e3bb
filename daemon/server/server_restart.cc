// A daemon's start with the memory of an earlier one.
#include <spdlog/spdlog.h>

#include "daemon/limits.h"
#include "daemon/server/server.h"

namespace kvtier::daemon {

Result<void> Server::take_memory() {
  KeptMemory::Room room{config_.host.capacity_bytes, config_.device.capacity_bytes, {}, nullptr};
  room.tenants = &cache_->catalogue().tenants();
  for (const Gpu& gpu : gpus_) {
    room.gpus.push_back(
        {gpu.uuid, static_cast<int>(gpu.number), config_.device.backend == DeviceBackend::cuda});
  }
  auto extents = kept_.take(passed_, room);
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
  const auto writers = cache_->adopt(
      {std::move(*extents), [this](const NamespaceId& id) { return kept_.encoding(id); }});
  if (!writers) return writers.error();
  kept_.taken();
  watch_writers(*writers);
  // Pinned on the disks' own threads, while clients are served.
  cache_->memory(Tier::host).each_extent([this](storage::Extent& e) { register_with_disks(e); });
  return {};
}

// Slots that a client of the earlier daemon may be writing to are free once its process has ended,
// or once it says that it does not (letGo).
void Server::watch_writers(const std::vector<ProcessId>& writers) {
  std::vector<ProcessId> daemons;
  for (const ProcessId& writer : writers) {
    if (writer.start_time == 0) {
      daemons.push_back(writer);
      continue;
    }
    // One that could never be seen from here is watched when it connects again, and until then
    // nobody can say that it has ended.
    if (writer.pid == 0) continue;
    const auto watched = processes_.watch(static_cast<pid_t>(writer.pid));
    if (!watched || !(*watched == writer)) cache_->end_process(writer);
  }
  if (daemons.empty()) return;
  late_reads_timer_.expires_after(limits::kLateReadsMax);
  late_reads_timer_.async_wait([this, daemons](boost::system::error_code error) {
    if (error) return;
    for (const ProcessId& daemon : daemons) cache_->end_process(daemon);
  });
}

}  // namespace kvtier::daemon
