// What makes a filled block visible, and what becomes of the slots of one that does not.
#include "daemon/cache/commits.h"

#include "tests/daemon/support/cache_parts.h"

namespace kvtier::daemon::testing {
namespace {

class CommitsTest : public ::testing::Test {
 protected:
  SlotName lend(Tier tier = Tier::host, SessionId session = 1) {
    return loans.lend(loans.borrower(session, {100, 1}, ns, tier, 0, 0), 1, false).at(0);
  }
  SlotName filled(Tier tier = Tier::host, SessionId session = 1) {
    const SlotName slot = lend(tier, session);
    fill_record(record(slot, tier), parts.known(ns).layout, block);
    return slot;
  }
  std::span<std::byte> record(SlotName slot, Tier tier) {
    const Place at = place_named(slot);
    return parts.memory.of(tier, at).slot(at);
  }
  bool commit(std::vector<SlotName> slots, SessionId session = 1) {
    return commits.commit(
        session, ns,
        {block.key(), block.identity.parent, block.identity.block_index, block.proof(), slots});
  }

  CacheParts parts;
  std::uint16_t ns = parts.open(small_namespace("m"));
  TestBlock block = parts.prefix(ns, 1, 1)[0];
  Reservations reservations;
  LoanShares shares{parts.catalogue, parts.memory, reservations};
  Loans loans{parts.catalogue, parts.memory, parts.eviction, parts.room, reservations, shares};
  Commits commits{parts.catalogue,  parts.memory, parts.disk, parts.remote,
                  parts.placements, parts.room,   loans,      parts.counts};
};

TEST_F(CommitsTest, a_filled_slot_becomes_a_block_and_is_lent_no_more) {
  EXPECT_TRUE(commit({filled()}));
  EXPECT_EQ(parts.tiers(block), CacheParts::kHost);
  EXPECT_EQ(reservations.reserved(), 0U);
  EXPECT_EQ(parts.disk.queued(), 1U);
}

TEST_F(CommitsTest, a_record_that_does_not_prove_what_it_is_is_refused_and_its_slot_freed) {
  EXPECT_FALSE(commit({lend()})) << "nothing was filled in";
  const SlotName slot = filled();
  block.tokens[0] ^= 1;
  EXPECT_FALSE(commit({slot})) << "not the key of these tokens";
  EXPECT_EQ(parts.counts.refused_commits, 2U);
  EXPECT_EQ(parts.memory.host().used_bytes(), 0U);
  EXPECT_EQ(reservations.reserved(), 0U);
}

TEST_F(CommitsTest, a_slot_of_another_session_is_left_to_it) {
  const SlotName slot = filled(Tier::host, 2);
  EXPECT_FALSE(commit({slot}, 1));
  EXPECT_EQ(reservations.reserved(), 1U);
}

TEST_F(CommitsTest, a_second_writer_loses_quietly_with_all_its_slots) {
  ASSERT_TRUE(commit({filled()}));
  EXPECT_FALSE(commit({filled(), filled(Tier::device)}));
  EXPECT_EQ(parts.tiers(block), CacheParts::kHost);
  EXPECT_EQ(parts.counts.refused_commits, 0U);
  EXPECT_EQ(parts.memory.host().used_bytes(), kRecordBytes);
}

TEST_F(CommitsTest, nothing_is_taken_under_a_closed_namespace) {
  const SlotName slot = filled();
  parts.catalogue.namespaces().close(ns);
  EXPECT_FALSE(commit({slot}));
  EXPECT_TRUE(parts.tiers(block).empty());
}

class CommitsOfMoreTest : public CommitsTest {
 protected:
  // Of this namespace from now on; the record is filled with what the block is.
  void use(const TestBlock& next, std::uint16_t of) {
    block = next;
    ns = of;
  }
  // A commit of the block with this proof, whatever the record says.
  bool commit_with(const std::vector<std::byte>& proof) {
    const SlotName slot = filled();
    const bool taken =
        commits.commit(1, ns, {block.key(), block.identity.parent, 0, proof, {&slot, 1}});
    EXPECT_EQ(reservations.reserved(), 0U) << "none of its slots stays lent";
    return taken;
  }
  std::vector<std::byte> proof() const { return {block.proof().begin(), block.proof().end()}; }
  // What a proof of the right size must not be, and every wrong size.
  void expect_only_its_own_proof() {
    const auto good = proof();
    for (std::size_t bytes = 0; bytes <= good.size() + 80; ++bytes) {
      if (bytes == good.size()) continue;
      auto wrong = good;
      wrong.resize(bytes);
      EXPECT_FALSE(commit_with(wrong)) << bytes;
    }
    for (std::size_t at = 0; at < good.size(); ++at) {
      auto wrong = good;
      wrong[at] ^= std::byte{1};
      EXPECT_FALSE(commit_with(wrong)) << at;
    }
    auto huge = good;
    huge.resize(kProofBytesMax);
    EXPECT_FALSE(commit_with(huge));
    EXPECT_EQ(parts.tiers(block), TierSet{});
    EXPECT_TRUE(commit_with(good));
    EXPECT_EQ(parts.tiers(block), CacheParts::kHost);
  }
};

TEST_F(CommitsOfMoreTest, extra_bytes_are_part_of_what_is_proven) {
  const Namespace with_extra = namespace_with_extra("image");
  const auto of = parts.open(with_extra);
  use(blocks_with_extra(with_extra, 1, 1, "a picture")[0], of);
  expect_only_its_own_proof();
  use(blocks_with_extra(with_extra, 1, 1, "another one")[0], of);
  EXPECT_TRUE(commit({filled()})) << "the same tokens with another image are another block";
}

TEST_F(CommitsOfMoreTest, a_digest_and_its_parents_are_the_proof) {
  const Namespace of_digests = namespace_of_digests("digest");
  const auto blocks = blocks_of_digests(of_digests, 2, 1);
  const auto of = parts.open(of_digests);
  use(blocks[0], of);
  expect_only_its_own_proof();
  use(blocks[1], of);
  EXPECT_TRUE(commit({filled()}));
}

TEST_F(CommitsOfMoreTest, more_extra_bytes_than_the_namespace_says_are_refused) {
  Namespace little = namespace_with_extra("image");
  const Namespace more = little;
  little.extra_bytes_max = 16;
  // The key follows from the proof in the namespace of little: only its length is wrong.
  TestBlock of = blocks_with_extra(more, 1, 1, "a picture")[0];
  of.identity.ns = id_of(little);
  of.identity.key = chain_key(id_of(little), Key{}, kBlockTokens, of.proof());
  const auto number = parts.open(little);
  const SlotName slot =
      loans.lend(loans.borrower(1, {100, 1}, number, Tier::host, 0, 0), 1, false).at(0);
  EXPECT_FALSE(commits.commit(1, number, {of.key(), Key{}, 0, of.proof(), {&slot, 1}}));
  EXPECT_EQ(parts.counts.refused_commits, 1U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
