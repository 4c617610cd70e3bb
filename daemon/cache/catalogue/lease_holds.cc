// The holds of a lease, of all its blocks together.
#include "core/base/check.h"
#include "daemon/cache/catalogue/catalogue.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

// Tells of placements one by one: those that follow one another in one container at once.
class Catalogue::EvictableRun {
 public:
  EvictableRun(const Catalogue& catalogue, Tier tier, TenantId tenant, bool evictable) noexcept
      : catalogue_(catalogue), tier_(tier), tenant_(tenant), evictable_(evictable) {}
  EvictableRun(const EvictableRun&) = delete;
  ~EvictableRun() { tell(); }
  void add(Place at) {
    if (count_ != 0 && at.container != at_.container) tell();
    at_ = at;
    ++count_;
  }

 private:
  void tell() {
    if (count_ != 0 && catalogue_.on_evictable)
      catalogue_.on_evictable(tier_, at_, tenant_, evictable_, count_);
    count_ = 0;
  }
  const Catalogue& catalogue_;
  const Tier tier_;
  const TenantId tenant_;
  const bool evictable_;
  Place at_;
  std::uint32_t count_ = 0;
};

bool Catalogue::hold_in_order(BlockId id, Tier tier) {
  std::uint16_t& holds = index_[id].holds[index_of(tier)];
  KVTIER_CHECK(index_[id].tiers.has(tier));
  if (holds == limits::kHoldsMax) return false;
  ++holds;
  return true;
}

// Blocks side by side in the prefix for which `is(block)`, as far as they are of one order and each
// is there once: a client may name what it likes.
template <class Is, class Visit>
void Catalogue::each_piece(std::span<const BlockId> prefix, Tier tier, Is&& is, Visit&& visit) {
  const auto only = only_order(prefix.front(), tier);
  for (std::size_t begin = 0; begin < prefix.size();) {
    if (!is(prefix[begin])) {
      ++begin;
      continue;
    }
    const Order order = only ? *only : order_of(prefix[begin], tier);
    std::size_t end = begin + 1;
    while (end < prefix.size() && is(prefix[end]) &&
           index_[prefix[end]].block_index > index_[prefix[end - 1]].block_index &&
           (only || order_of(prefix[end], tier) == order)) {
      ++end;
    }
    visit(prefix.subspan(begin, end - begin), list(tier, order));
    begin = end;
  }
}

void Catalogue::leave_orders(std::span<const BlockId> prefix) {
  if (prefix.empty()) return;
  for (const Tier tier : {Tier::device, Tier::host}) {
    if (devices_[index_of(tier)] == 0) continue;
    EvictableRun told(*this, tier, tenant(prefix.front()), false);
    each_piece(
        prefix, tier,
        [&](BlockId id) {
          return index_[id].holds[index_of(tier)] != 0 && index_.is_listed(id, tier);
        },
        [&](std::span<const BlockId> piece, ClassLists& lists) {
          for (auto id = piece.rbegin(); id != piece.rend(); ++id) {
            if (hit_density_) hit_density_->delisted(*id, tier);
            told.add(index_[*id].places[index_of(tier)]);
          }
          lists.remove(piece);
        });
  }
}

void Catalogue::unhold_out_of_order(BlockId id, Tier tier) {
  std::uint16_t& holds = index_[id].holds[index_of(tier)];
  KVTIER_CHECK(index_[id].tiers.has(tier) && holds > 0);
  --holds;
}

void Catalogue::enter_orders(std::span<const BlockId> prefix) {
  if (prefix.empty()) return;
  for (const Tier tier : {Tier::device, Tier::host}) {
    if (devices_[index_of(tier)] == 0) continue;
    EvictableRun told(*this, tier, tenant(prefix.front()), true);
    std::size_t pieces = 0, entered = 0;
    each_piece(
        prefix, tier,
        [&](BlockId id) {
          const Block& block = index_[id];
          return block.tiers.has(tier) && block.holds[index_of(tier)] == 0 &&
                 !index_.is_listed(id, tier);
        },
        [&](std::span<const BlockId> piece, ClassLists& lists) {
          lists.push_newest(piece);
          ++pieces;
          entered += piece.size();
          for (const BlockId id : piece) {
            if (hit_density_) hit_density_->enlisted(id, tier);
            told.add(index_[id].places[index_of(tier)]);
          }
        });
    // In one piece they stand as they are to.
    if (pieces != 1 || entered != prefix.size()) touch(prefix, tier);
  }
  touch(prefix, Tier::disk);
}

}  // namespace kvtier::daemon
