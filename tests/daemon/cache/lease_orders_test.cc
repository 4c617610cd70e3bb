// The holds of a lease, taken and let go of together, against hold(), unhold() and touch() of each
// block: both leave the same orders and have told of the same.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "daemon/cache/catalogue/catalogue.h"

namespace kvtier::daemon {
namespace {

constexpr std::uint32_t kBlocksMax = 400;
constexpr std::array kMemoryTiers{Tier::device, Tier::host};

Namespace small_namespace() {
  Namespace ns;
  ns.model = "m";
  ns.layers = 1;
  ns.kv_heads = 1;
  ns.head_dim_k = ns.head_dim_v = 16;
  ns.block_tokens = 16;
  ns.format = StorageFormat::f32;
  return ns;
}

struct Cached {
  explicit Cached(EvictionPolicy policy)
      : directory(DirectoryWriter::create(kBlocksMax, std::array<std::byte, 16>{}).value()),
        catalogue(kBlocksMax, directory, Tenants(), policy) {
    catalogue.on_evictable = [this](Tier tier, Place at, TenantId, bool evictable,
                                    std::uint32_t count) {
      told[{tier, at.container}] += evictable ? std::int64_t{count} : -std::int64_t{count};
    };
  }
  // From the next to go to the last, of each class after the other.
  std::vector<std::vector<std::uint32_t>> orders() const {
    std::vector<std::vector<std::uint32_t>> found;
    for (const Tier tier : kAllTiers) {
      std::map<std::uint64_t, std::vector<std::uint32_t>> by_oldest;
      catalogue.each([&](BlockId id) {
        const Block& block = catalogue.block(id);
        if (!block.tiers.has(tier) || block.holds[index_of(tier)] != 0) return true;
        std::vector<std::uint32_t> newer;
        for (BlockId at = id; at != kNoBlock; at = catalogue.evicted_after(at, tier))
          newer.push_back(at.value);
        by_oldest[id.value] = newer;
        return true;
      });
      for (auto& [id, newer] : by_oldest) found.push_back(newer);
    }
    return found;
  }
  DirectoryWriter directory;
  Catalogue catalogue;
  std::map<std::pair<Tier, std::uint32_t>, std::int64_t> told;
};

class LeaseOrdersTest : public ::testing::TestWithParam<EvictionPolicy> {
 protected:
  // In both alike.
  void add_prefix(std::uint64_t blocks) {
    std::vector<BlockId> prefix;
    Key parent;
    for (std::uint32_t i = 0; i < blocks; ++i) {
      const Token tokens[] = {static_cast<Token>(prefixes_.size()), static_cast<Token>(i)};
      const Key key = chain_key(ns_id_, parent, tokens);
      BlockId id = kNoBlock;
      const bool on_device = random_() % 3 == 0, in_host = !on_device || random_() % 2 == 0;
      for (Cached* cached : both_) {
        Catalogue& catalogue = cached->catalogue;
        id = catalogue.add(ns_, key, parent, i);
        catalogue.came(id);
        if (on_device) catalogue.place(id, Tier::device, Place{i / 7, i}, parent);
        if (in_host) catalogue.place(id, Tier::host, Place{i / 5, i}, parent);
        if (i % 4 == 0) catalogue.place(id, Tier::disk, Place{0, id.value}, parent);
      }
      prefix.push_back(id);
      parent = key;
    }
    prefixes_.push_back(prefix);
  }
  Tier held_in(BlockId id) const {
    return one_by_one_.catalogue.block(id).tiers.has(Tier::device) ? Tier::device : Tier::host;
  }
  void lease() {
    const auto& prefix = prefixes_[random_() % prefixes_.size()];
    std::vector<BlockId> held(prefix.begin(),
                              prefix.begin() + 1 + static_cast<long>(random_() % prefix.size()));
    // A client may name what it likes.
    for (std::uint64_t more = random_() % 4 == 0 ? 3 : 0; more > 0; --more)
      held.insert(held.begin() + static_cast<long>(random_() % held.size()),
                  held[random_() % held.size()]);
    if (random_() % 4 == 0) std::swap(held[random_() % held.size()], held[random_() % held.size()]);
    for (const BlockId id : held) {
      EXPECT_TRUE(one_by_one_.catalogue.hold(id, held_in(id)));
      EXPECT_TRUE(together_.catalogue.hold_in_order(id, held_in(id)));
    }
    together_.catalogue.leave_orders(held);
    for (Cached* cached : both_)
      cached->catalogue.use(held, 7, cached->catalogue.tick(), Prompt{100, 16});
    leased_.push_back(held);
  }
  void release() {
    if (leased_.empty()) return;
    std::swap(leased_[random_() % leased_.size()], leased_.back());
    const std::vector<BlockId> held = leased_.back();
    leased_.pop_back();
    for (const BlockId id : held) {
      one_by_one_.catalogue.unhold(id, held_in(id));
      together_.catalogue.unhold_out_of_order(id, held_in(id));
    }
    one_by_one_.catalogue.touch(held);
    together_.catalogue.enter_orders(held);
  }

  Cached one_by_one_{GetParam()}, together_{GetParam()};
  const std::array<Cached*, 2> both_{&one_by_one_, &together_};
  const std::vector<std::byte> encoded_ = encode(small_namespace());
  const NamespaceId ns_id_ = id_of(small_namespace());
  const std::uint16_t ns_ = open();
  std::uint16_t open() {
    for (Cached* cached : both_) EXPECT_EQ(cached->catalogue.open_namespace(encoded_).value(), 0U);
    return 0;
  }
  std::mt19937 random_{GetParam() == EvictionPolicy::lru ? 1U : 2U};
  std::vector<std::vector<BlockId>> prefixes_;
  std::vector<std::vector<BlockId>> leased_;
};

TEST_P(LeaseOrdersTest, HoldsThatAreTakenTogetherLeaveTheOrdersThatHoldsOfEachDo) {
  for (int i = 0; i < 8; ++i) add_prefix(1 + random_() % 40);
  for (std::uint32_t step = 0; step < 600; ++step) {
    if (step % 20 == 0) {
      for (Cached* cached : both_) cached->catalogue.pass_time(1 + step);
    }
    // A rank, and with it orders of several kinds.
    if (step % 97 == 50) {
      const BlockId id = prefixes_[step % prefixes_.size()].front();
      const Rank rank = step % 2 == 0 ? Rank::kept : Rank::normal;
      for (Cached* cached : both_) cached->catalogue.set_rank(id, held_in(id), rank);
    }
    random_() % 2 == 0 && leased_.size() < 5 ? lease() : release();
    ASSERT_EQ(together_.orders(), one_by_one_.orders()) << step;
    ASSERT_EQ(together_.told, one_by_one_.told) << step;
    for (const Tier tier : kMemoryTiers)
      ASSERT_EQ(together_.catalogue.oldest(tier), one_by_one_.catalogue.oldest(tier)) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(, LeaseOrdersTest,
                         ::testing::Values(EvictionPolicy::lru, EvictionPolicy::hit_density),
                         [](const auto& policy) {
                           return policy.param == EvictionPolicy::lru ? "lru" : "hit_density";
                         });

}  // namespace
}  // namespace kvtier::daemon
