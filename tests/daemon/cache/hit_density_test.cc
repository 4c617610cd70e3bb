// The eviction orders of a catalogue whose policy is hit density.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "daemon/cache/catalogue/catalogue.h"
#include "tests/daemon/cache/policy/keys.h"

namespace kvtier::daemon::testing {
namespace {

constexpr std::uint32_t kBlockTokens = 512;

Namespace some_namespace() {
  Namespace ns;
  ns.model = "m";
  ns.layers = ns.kv_heads = 1;
  ns.head_dim_k = ns.head_dim_v = 16;
  ns.block_tokens = kBlockTokens;
  ns.format = StorageFormat::bf16;
  return ns;
}

class HitDensityTest : public ::testing::Test {
 protected:
  // The keys of a prefix; prompts of one conversation have a number.
  static std::vector<Key> prefix(std::uint64_t conversation, std::size_t blocks) {
    std::vector<Key> keys;
    for (std::size_t i = 0; i < blocks; ++i) keys.push_back(key_of(conversation << 20 | i));
    return keys;
  }
  // What a lease and the commits behind it do. Returns how many blocks were known.
  std::size_t ask(const std::vector<Key>& keys) {
    std::vector<BlockId> ids(keys.size());
    const std::size_t known = catalogue.find_prefix(ns, keys, ids);
    const Prompt prompt{static_cast<std::uint32_t>(keys.size()), kBlockTokens, 0};
    ids.resize(known);
    if (known > 0) catalogue.use(ids, 1, catalogue.tick(), prompt);
    for (std::size_t i = known; i < keys.size(); ++i) commit(keys, i, prompt);
    return known;
  }
  void commit(const std::vector<Key>& keys, std::size_t i, const Prompt& prompt) {
    if (is_there(keys[i])) return;  // behind one that has gone
    const Key parent = i == 0 ? Key{} : keys[i - 1];
    const BlockId id = catalogue.add(ns, keys[i], parent, static_cast<std::uint32_t>(i));
    ASSERT_NE(id, kNoBlock);
    catalogue.came(id, prompt);
    catalogue.place(id, Tier::host, {0, id.value}, parent);
  }
  Key evict() {
    const BlockId id = catalogue.oldest(Tier::host);
    if (id == kNoBlock) return {};
    const Key key = catalogue.block(id).key;
    catalogue.unplace(id, Tier::host, Removal::capacity);
    return key;
  }
  void shrink_to(std::uint64_t blocks) {
    while (catalogue.counts(Tier::host).blocks > blocks) evict();
  }
  bool is_there(const Key& key) const { return catalogue.find(ns, key) != kNoBlock; }
  // Conversations whose second turn comes after 30 seconds, among twice as many long prompts that
  // are never seen again.
  void learn() {
    for (std::uint64_t i = 0; i < 600; ++i) {
      catalogue.pass_time(++now);
      ask(prefix(2 * i, 3));
      ask(prefix(1'000'000 + i, 20));
      if (i >= 30) ask(prefix(2 * (i - 30), 4));
      shrink_to(1500);
    }
  }

  DirectoryWriter directory{DirectoryWriter::create(4096, std::array<std::byte, 16>{}).value()};
  Catalogue catalogue{4096, directory, Tenants(), EvictionPolicy::hit_density};
  const std::uint16_t ns{catalogue.open_namespace(encode(some_namespace())).value()};
  std::uint32_t now = 0;
};

TEST_F(HitDensityTest, before_anything_is_learnt_the_oldest_goes_and_the_tail_before_the_head) {
  ask(prefix(1, 3));
  ask(prefix(2, 2));
  for (const auto& [conversation, block] :
       std::vector<std::pair<std::uint64_t, std::size_t>>{{1, 2}, {1, 1}, {1, 0}, {2, 1}, {2, 0}})
    EXPECT_EQ(evict(), prefix(conversation, 3)[block]);
  EXPECT_EQ(evict(), Key{});
}

// A lease says nothing of the answer, and the blocks behind it do.
TEST_F(HitDensityTest, prompts_are_told_apart_by_the_length_of_their_answer) {
  const auto use_of = [&](const std::vector<Key>& keys, std::size_t i) {
    return catalogue.hit_density()->mark(catalogue.find(ns, keys[i])).use;
  };
  const auto store = [&](const std::vector<Key>& keys, std::size_t from, std::uint32_t answer) {
    for (std::size_t i = from; i < keys.size(); ++i)
      commit(keys, i, {static_cast<std::uint32_t>(keys.size()), kBlockTokens, answer});
  };
  const auto known = prefix(1, 2);
  ask(known);
  for (const std::uint32_t answer : {0U, 10U, 100U, 1000U}) {
    const auto fresh = prefix(10 + answer, 8);
    store(fresh, 0, answer);
    EXPECT_EQ(use_of(fresh, 0), use_class::fresh(8 * kBlockTokens, use_class::answer(answer)));

    auto behind = known;
    for (const Key& key : prefix(5000 + answer, 22)) behind.push_back(key);
    std::vector<BlockId> ids(behind.size());
    ASSERT_EQ(catalogue.find_prefix(ns, behind, ids), known.size());
    ids.resize(known.size());
    catalogue.use(ids, 1, catalogue.tick(), Prompt{24, kBlockTokens, 0});
    store(behind, known.size(), answer);
    EXPECT_EQ(use_of(behind, 2), use_class::fresh(22 * kBlockTokens, use_class::answer(answer)));
  }
}

// A client may name the keys that it likes, and each gets a class by its use.
TEST_F(HitDensityTest, a_use_that_names_blocks_twice_leaves_every_block_in_its_order) {
  learn();
  const auto keys = prefix(70'000, 4);
  ask(keys);
  ask(keys);
  std::vector<BlockId> ids(keys.size());
  ASSERT_EQ(catalogue.find_prefix(ns, keys, ids), keys.size());
  const std::vector<BlockId> twice{ids[0], ids[1], ids[0], ids[1], ids[2], ids[2], ids[0]};
  for (int i = 0; i < 20; ++i) {
    catalogue.pass_time(++now);
    catalogue.use(twice, 1, catalogue.tick(), Prompt{8, kBlockTokens, 0});
  }
  std::uint64_t blocks = catalogue.counts(Tier::host).blocks;
  for (; blocks > 0; --blocks) ASSERT_NE(evict(), Key{});
  EXPECT_EQ(evict(), Key{});
}

TEST_F(HitDensityTest, what_is_never_used_again_goes_before_older_blocks_of_conversations) {
  learn();
  const auto conversation = prefix(50'000, 3), lone = prefix(50'001, 20);
  ask(conversation);
  catalogue.pass_time(now += 5);
  ask(lone);
  catalogue.pass_time(now += 5);
  while (is_there(lone.front())) ASSERT_NE(evict(), Key{});
  EXPECT_TRUE(is_there(conversation[0]));
}

TEST_F(HitDensityTest, the_tail_of_a_prefix_goes_before_its_head_whatever_their_classes) {
  learn();
  const auto turns = prefix(60'000, 30);
  ask({turns.begin(), turns.begin() + 4});
  ask({turns.begin(), turns.begin() + 6});
  ask(turns);  // much that is new behind a conversation
  std::size_t left = turns.size();
  while (left > 0) {
    const Key gone = evict();
    ASSERT_NE(gone, Key{});
    if (std::ranges::find(turns, gone) == turns.end()) continue;
    EXPECT_EQ(gone, turns[left - 1]);
    --left;
  }
}

TEST_F(HitDensityTest, what_is_held_stays_and_goes_again_once_it_is_let_go_of) {
  learn();
  const auto keys = prefix(70'000, 20);
  ask(keys);
  std::vector<BlockId> ids(keys.size());
  ASSERT_EQ(catalogue.find_prefix(ns, keys, ids), keys.size());
  for (const BlockId id : ids) ASSERT_TRUE(catalogue.hold(id, Tier::host));
  while (evict() != Key{}) continue;
  EXPECT_EQ(catalogue.counts(Tier::host).blocks, keys.size());
  for (const BlockId id : ids) catalogue.unhold(id, Tier::host, catalogue.parent(id));
  EXPECT_EQ(evict(), keys.back());
  EXPECT_EQ(evict(), keys[keys.size() - 2]);
}

TEST_F(HitDensityTest, another_block_than_one_is_of_its_class_or_of_another_if_there_is_any) {
  catalogue.pass_time(++now);
  const auto keys = prefix(1, 2);  // a fresh block and the last of its prompt
  ask(keys);
  const BlockId head = catalogue.find(ns, keys[0]), last = catalogue.find(ns, keys[1]);
  EXPECT_EQ(catalogue.other_than(head, Tier::host), last);
  EXPECT_EQ(catalogue.other_than(last, Tier::host), head);
  ask(prefix(2, 2));
  EXPECT_EQ(catalogue.other_than(last, Tier::host), catalogue.find(ns, prefix(2, 2)[1]));
  shrink_to(1);
  EXPECT_EQ(catalogue.other_than(catalogue.oldest(Tier::host), Tier::host), kNoBlock);
}

TEST_F(HitDensityTest, ranks_decide_before_density_does) {
  learn();
  const auto spent = prefix(80'000, 2);
  ask(spent);
  for (const Key& key : spent) catalogue.set_rank(catalogue.find(ns, key), Tier::host, Rank::spent);
  EXPECT_EQ(evict(), spent[1]);
  EXPECT_EQ(evict(), spent[0]);
  const BlockId next = catalogue.oldest(Tier::host);
  const Key kept = catalogue.block(next).key;
  catalogue.set_rank(next, Tier::host, Rank::kept);
  shrink_to(1);
  EXPECT_TRUE(is_there(kept));
}

TEST_F(HitDensityTest, a_block_that_comes_again_after_it_was_evicted_is_known_to_be_used_again) {
  learn();
  const auto keys = prefix(90'000, 3);
  ask(keys);
  while (is_there(keys[0])) evict();
  catalogue.pass_time(now += 3);
  EXPECT_EQ(ask(keys), 0U);
  const HitDensity& policy = *catalogue.hit_density();
  EXPECT_TRUE(policy.rates().samples(keys[0]));
  EXPECT_EQ(policy.mark(catalogue.find(ns, keys[0])).turn, 1);
  EXPECT_EQ(policy.mark(catalogue.find(ns, keys[0])).use, use_class::again(1));
}

TEST_F(HitDensityTest, a_prompt_that_goes_on_from_the_end_of_one_is_its_next_turn) {
  const HitDensity& policy = *catalogue.hit_density();
  const auto keys = prefix(1, 12);
  const auto first = [&](std::size_t n) { return std::vector(keys.begin(), keys.begin() + n); };
  catalogue.pass_time(++now);
  ask(first(4));
  EXPECT_EQ(policy.mark(catalogue.find(ns, keys[0])).use, use_class::fresh(4 * kBlockTokens, 0));
  ask(first(6));
  EXPECT_EQ(policy.mark(catalogue.find(ns, keys[4])).use, use_class::grown(1));
  EXPECT_EQ(policy.mark(catalogue.find(ns, keys[0])).use, use_class::again(1));
  ask(first(8));
  EXPECT_EQ(policy.mark(catalogue.find(ns, keys[6])).use, use_class::grown(2));
  EXPECT_EQ(policy.mark(catalogue.find(ns, keys[0])).use, use_class::again(2));
  // One that leaves it in the middle is not.
  auto other = first(2);
  for (const Key& key : prefix(2, 3)) other.push_back(key);
  ask(other);
  EXPECT_EQ(policy.mark(catalogue.find(ns, other[3])).use, use_class::fresh(3 * kBlockTokens, 0));
}

// Whatever is done, each block that nobody holds goes once, and none that is held.
TEST_F(HitDensityTest, under_random_work_every_order_has_all_of_its_blocks) {
  std::mt19937_64 random(1);
  std::multiset<std::uint32_t> held;
  for (std::uint32_t step = 0; step < 20'000; ++step) {
    if (step % 50 == 0) catalogue.pass_time(++now);
    const auto keys = prefix(random() % 300, 1 + random() % 20);
    switch (random() % 4) {
      case 0:
      case 1:
        shrink_to(1000);
        ask(keys);
        break;
      case 2: {
        const BlockId id = catalogue.find(ns, keys.back());
        if (id == kNoBlock || held.size() >= 200 || !catalogue.hold(id, Tier::host)) break;
        held.insert(id.value);
        break;
      }
      case 3: {
        if (held.empty()) break;
        const BlockId id(*held.begin());
        held.erase(held.begin());
        catalogue.unhold(id, Tier::host, catalogue.parent(id));
        break;
      }
    }
  }
  const std::set<std::uint32_t> staying(held.begin(), held.end());
  for (Key gone = evict(); gone != Key{}; gone = evict()) EXPECT_FALSE(is_there(gone));
  EXPECT_EQ(catalogue.counts(Tier::host).blocks, staying.size());
}

}  // namespace
}  // namespace kvtier::daemon::testing
