#include "daemon/cache/remote/remote_writes.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {
namespace {

// After a write that the store refused: its queue is full, or its budget spent.
constexpr std::chrono::milliseconds kPause{50};

}  // namespace

// ---- who is admitted

void RemoteWrites::committed(BlockId id) {
  if (store_ != nullptr && options_.admission == RemoteAdmission::all) offer(id);
}

void RemoteWrites::seen_again(std::span<const BlockId> prefix) {
  if (!minds_use()) return;
  const auto stays = std::ranges::find_if(prefix, [this](BlockId id) { return !offer(id); });
  if (stays == prefix.end()) return;
  for (auto behind = stays + 1; behind != prefix.end(); ++behind) {
    const TierSet tiers = catalogue_.block(*behind).tiers;
    if (tiers.has(Tier::host) && !tiers.has(Tier::remote)) drop(RemoteDrop::parent);
  }
}

bool RemoteWrites::push(BlockId id) {
  return store_ != nullptr && offer(id);
}

// The block, and before it those of its prefix that are neither there nor on their way. True where
// it is there, or goes.
bool RemoteWrites::offer(BlockId id) {
  const Block& block = catalogue_.block(id);
  if (block.tiers.has(Tier::remote) || is_on_its_way(id)) return true;
  if (!block.tiers.has(Tier::host) || block.doomed || !knowledge_.may_have(block.ns)) return false;
  if (const auto why = gather(id)) {
    drop(*why);
    return false;
  }
  for (auto next = gathered_.rbegin(); next != gathered_.rend(); ++next) {
    if (enqueue(*next)) continue;
    drop(RemoteDrop::readers);
    return false;
  }
  pump();
  return true;
}

// Sets `gathered_`, or says why the block cannot be written.
std::optional<RemoteDrop> RemoteWrites::gather(BlockId id) {
  if (!knowledge_.writable()) return RemoteDrop::offline;
  if (options_.now() < paused_until_) return RemoteDrop::refused;
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  gathered_.clear();
  for (BlockId at = id;;) {
    gathered_.push_back(at);
    if (!has_room(gathered_.size(), gathered_.size() * bytes)) return RemoteDrop::queue_full;
    const Key& key = catalogue_.parent(at);
    if (key.is_zero()) return std::nullopt;
    const BlockId parent = catalogue_.find(catalogue_.block(id).ns, key);
    if (parent == kNoBlock) return RemoteDrop::parent;
    if (catalogue_.block(parent).tiers.has(Tier::remote) || is_on_its_way(parent))
      return std::nullopt;
    if (!catalogue_.block(parent).tiers.has(Tier::host)) return RemoteDrop::parent;
    if (gathered_.size() == limits::kTakenAlongMax) return RemoteDrop::queue_full;
    at = parent;
  }
}

// One block may always wait, however small the bound.
bool RemoteWrites::has_room(std::size_t blocks, std::uint64_t bytes) const noexcept {
  if (queued() == 0 && blocks == 1) return true;
  return queued() + blocks <= options_.write_queue_max &&
         queued_bytes_ + bytes <= options_.write_queue_bytes_max;
}

bool RemoteWrites::enqueue(BlockId id) {
  if (!catalogue_.hold(id, Tier::host)) return false;
  queued_bytes_ += catalogue_.record_bytes(id);
  under_way_.insert(id.value);
  queue_.push_back(id);
  KVTIER_POINT("daemon.remote.queued");
  return true;
}

bool RemoteWrites::is_behind_its_parent(BlockId id) const noexcept {
  const Key& key = catalogue_.parent(id);
  if (key.is_zero()) return true;
  const BlockId parent = catalogue_.find_any(key);
  return parent != kNoBlock &&
         (catalogue_.block(parent).tiers.has(Tier::remote) || is_on_its_way(parent));
}

// ---- on its way

void RemoteWrites::state_changed() {
  pump();
}

void RemoteWrites::pump() {
  if (std::exchange(pumping_, true)) return;  // a completion that ran inside submit()
  while (!queue_.empty() && writing_.size() < options_.writes_submitted_max) {
    const BlockId next = queue_.front();
    queue_.pop_front();
    submit(next);
  }
  pumping_ = false;
}

void RemoteWrites::submit(BlockId id) {
  const Block& block = catalogue_.block(id);
  std::optional<RemoteDrop> why;
  if (!knowledge_.writable()) {
    why = RemoteDrop::offline;
  } else if (block.doomed || !knowledge_.may_have(block.ns) || !is_behind_its_parent(id)) {
    why = RemoteDrop::parent;
  } else {
    const Place from = block.places[index_of(Tier::host)];
    const storage::RemoteStore::Write write{
        {catalogue_.namespaces()[block.ns].id, block.key, catalogue_.parent(id), block.block_index},
        storage::ExtentId(from.container),
        from.slot,
        catalogue_.record_bytes(id)};
    writing_.insert(id.value);
    const auto sent =
        store_->write(write, [this, id, began = options_.now()](const Result<void>& result) {
          written(id, result, began);
        });
    KVTIER_POINT("daemon.remote.submitted");
    if (sent) return;
    writing_.erase(id.value);
    why = sent.error().code == Errc::unavailable ? RemoteDrop::offline : RemoteDrop::refused;
    paused_until_ = options_.now() + kPause;
  }
  drop(*why);
  let_go(id);
}

// What nobody is to find any more goes from there again.
void RemoteWrites::written(BlockId id, const Result<void>& result,
                           std::chrono::steady_clock::time_point began) {
  writing_.erase(id.value);
  const Block& block = catalogue_.block(id);
  if (!result) {
    drop(result.error().code == Errc::unavailable ? RemoteDrop::offline : RemoteDrop::failed);
    if (result.error().code != Errc::unavailable) {
      spdlog::warn("remote tier: block {} was not written: {}", to_hex(block.key),
                   result.error().message);
    }
  } else if (block.doomed || !knowledge_.may_have(block.ns)) {
    store_->erase({block.key});
  } else {
    ++counts_.written;
    counts_.write_us.add(static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(options_.now() - began).count()));
    knowledge_.wrote(id);
    if (on_written) on_written(block.key);
  }
  KVTIER_POINT("daemon.remote.written");
  let_go(id);
  pump();
}

void RemoteWrites::let_go(BlockId id) {
  under_way_.erase(id.value);
  queued_bytes_ -= catalogue_.record_bytes(id);
  catalogue_.unhold(id, Tier::host, catalogue_.parent(id));
  on_unheld(id);
}

}  // namespace kvtier::daemon
