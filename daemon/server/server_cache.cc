// What the cache is made of, and what is between those who lend its slots and the sessions.
#include <algorithm>

#include "core/base/units.h"
#include "daemon/server/server.h"

namespace kvtier::daemon {

namespace {

// Every size of record needs extents of its own: where no size of extents was chosen, a small tier
// has room for some of each of many.
std::uint64_t extent_bytes_of(const Config::Memory& memory, const Config::Memory& defaults) {
  constexpr std::uint64_t kExtents = 16;
  if (memory.extent_bytes != defaults.extent_bytes) return memory.extent_bytes;
  return std::clamp<std::uint64_t>(memory.capacity_bytes / kExtents, 1_MiB, memory.extent_bytes);
}

}  // namespace

BlockCache::Options Server::cache_options() const {
  const auto& host = config_.host;
  const auto& device = config_.device;
  const auto& disk = config_.disk;
  BlockCache::Options options;
  options.blocks_max = config_.index_blocks_max;
  options.tenants = tenants_of(config_);
  options.leases_per_session = config_.limits.leases_per_session;
  options.leases_per_user = config_.limits.leases_per_user;
  options.leased_percent = config_.limits.leased_percent;
  const Config defaults;
  options.host = {host.capacity_bytes, extent_bytes_of(host, defaults.host)};
  options.device = {device.capacity_bytes, extent_bytes_of(device, defaults.device)};
  options.pinned_percent_max = config_.pinned_percent_max;
  if (stores_.empty()) return options;
  options.disk.segments_bytes = storage::segment_capacity_bytes(store_options(disk.directories[0]));
  options.disk.segment_bytes = disk.segment_bytes;
  options.disk.write_queue_max = limits::kWriteThroughQueueMax;
  options.disk.write_queue_bytes_max = write_queue_bytes_max();
  options.disk.admission = disk.admission;
  return options;
}

void Server::make_lending() {
  lending_ = std::make_unique<Lending>(
      *cache_,
      Lending::Ports{[this](const Lending::Request& request, std::vector<SlotName> slots) {
                       if (const auto at = sessions_.find(request.to.session);
                           at != sessions_.end()) {
                         const auto session = at->second;  // which telling may end
                         return session->send_reserved(request.id, std::move(slots));
                       }
                       for (const SlotName slot : slots) cache_->abandon(request.to.session, slot);
                     },
                     [this](SessionId id, std::uint64_t number, const BlockCache::Recall& recall) {
                       const auto at = sessions_.find(id);
                       if (at == sessions_.end()) return false;
                       const auto session = at->second;
                       return session->send_recall(number, recall);
                     },
                     [this] { post([this] { lend(); }); }});
  cache_->on_room = [this] { lending_->came_home(); };
}

void Server::lend() {
  if (stopping_) return;
  lending_->turn(std::chrono::steady_clock::now());
  const auto next = lending_->next(std::chrono::steady_clock::now());
  if (!next) return;
  lending_timer_.expires_at(*next);
  lending_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) lend();
  });
}

}  // namespace kvtier::daemon
