#include "daemon/cache/hints/prefetches.h"

#include <utility>

#include "daemon/limits.h"

namespace kvtier::daemon {

Prefetches::Prefetches(Catalogue& catalogue, MemoryTier& host, Loads& loads, HintCounts& counts,
                       std::uint32_t percent, const Later& later)
    : catalogue_(catalogue),
      host_(host),
      loads_(loads),
      counts_(counts),
      percent_(percent),
      later_(later) {
  loads_.on_read = [this](BlockId id, bool good) { landed(id, good); };
}

// The head of a prefix is of use without its tail: what goes past the user's part is the tail.
void Prefetches::ask(UserId user, std::span<const BlockId> blocks) {
  std::size_t taken = 0;
  while (taken < blocks.size() && take(user, blocks[taken])) ++taken;
  counts_.add(HintKind::prefetch, HintOutcome::budget, blocks.size() - taken);
  pump();
}

// False: there is no room for it, and it is not counted.
bool Prefetches::take(UserId user, BlockId id) {
  const Block& block = catalogue_.block(id);
  if (block.loading || waiting_.contains(id.value)) {
    counts_.add(HintKind::prefetch, HintOutcome::already);
    return true;
  }
  const std::uint64_t bytes = catalogue_.record_bytes(id);
  const std::uint64_t all = host_.allowance(catalogue_.tenant(id));
  const std::uint64_t allowed = all / 100 * percent_ + all % 100 * percent_ / 100;
  std::uint64_t& has = bytes_of_user_[user];
  if (blocks() >= limits::kPrefetchesMax || has + bytes > allowed) {
    if (has == 0) bytes_of_user_.erase(user);
    return false;
  }
  has += bytes;
  waiting_.insert(id.value);
  queue_.push_back({id, block.key, block.ns, user, bytes});
  return true;
}

bool Prefetches::has_room(std::uint64_t bytes) const noexcept {
  if (reading_.empty()) return true;
  return loads_.awaited() == 0 && reading_.size() < limits::kPrefetchReadsMax &&
         reading_bytes_ + bytes <= limits::kPrefetchReadBytesMax;
}

void Prefetches::pump() {
  if (std::exchange(pumping_, true)) return;  // a read that ended inside start()
  for (std::uint32_t looked = 0; !queue_.empty() && has_room(queue_.front().bytes); ++looked) {
    // What is not there any more is passed over, and a turn still ends.
    if (later_ && looked == limits::kPrefetchStep) {
      pump_later();
      break;
    }
    const Waiting next = queue_.front();
    queue_.pop_front();
    waiting_.erase(next.id.value);
    start(next);
  }
  pumping_ = false;
}

void Prefetches::pump_later() {
  if (std::exchange(pumps_later_, true)) return;
  later_([this] {
    pumps_later_ = false;
    pump();
  });
}

void Prefetches::start(const Waiting& next) {
  if (catalogue_.find(next.ns, next.key) != next.id) return end(next, HintOutcome::absent);
  const TierSet tiers = catalogue_.reachable(next.id);
  // A lease has fetched it, or is about to.
  if (tiers.has(Tier::host) || catalogue_.block(next.id).loading)
    return end(next, HintOutcome::already);
  if (!loads_.source(tiers)) return end(next, HintOutcome::absent);
  reading_.emplace(next.id.value, next);
  reading_bytes_ += next.bytes;
  if (loads_.ensure(next.id)) return;
  reading_.erase(next.id.value);
  reading_bytes_ -= next.bytes;
  end(next, HintOutcome::failed);
}

// Any block's read has ended, a lease's too.
void Prefetches::landed(BlockId id, bool good) {
  if (auto node = reading_.extract(id.value)) {
    reading_bytes_ -= node.mapped().bytes;
    end(node.mapped(), good ? HintOutcome::taken : HintOutcome::failed);
  }
  pump();
}

void Prefetches::end(const Waiting& what, HintOutcome outcome) {
  counts_.add(HintKind::prefetch, outcome);
  const auto of = bytes_of_user_.find(what.user);
  of->second -= what.bytes;
  if (of->second == 0) bytes_of_user_.erase(of);
}

}  // namespace kvtier::daemon
