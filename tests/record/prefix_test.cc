#include "kvtier/prefix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "core/record/record.h"

namespace kvtier {
namespace {

Namespace space(std::uint32_t extra_bytes_max = 0) {
  Namespace ns;
  ns.model = "prefix-test@1";
  ns.layers = 2;
  ns.kv_heads = 1;
  ns.head_dim_k = ns.head_dim_v = 8;
  ns.block_tokens = 4;
  ns.extra_bytes_max = extra_bytes_max;
  return ns;
}

Namespace digests() {
  Namespace ns = space();
  ns.digest_bytes = 32;
  return ns;
}

std::vector<Token> count_up(std::size_t tokens) {
  std::vector<Token> list(tokens);
  for (std::size_t i = 0; i < tokens; ++i) list[i] = static_cast<Token>(i);
  return list;
}

std::vector<std::byte> bytes(std::size_t count, int value) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

std::vector<Key> keys_of(const Prefix& prefix) {
  return {prefix.keys().begin(), prefix.keys().end()};
}

TEST(Prefix, however_it_grows_its_keys_are_those_of_the_chain) {
  const auto tokens = count_up(103);
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    Prefix prefix(space());
    std::span<const Token> left(tokens);
    while (!left.empty()) {
      const auto part = left.first(std::min<std::size_t>(left.size(), random() % 12));
      ASSERT_TRUE(prefix.append(part));
      left = left.subspan(part.size());
    }
    EXPECT_EQ(keys_of(prefix), chain_keys(prefix.ns(), 4, tokens));
    EXPECT_EQ(prefix.blocks(), 25U);
    EXPECT_EQ(prefix.blocks_matchable(), 25U);
    EXPECT_EQ(prefix.proof(24).size(), 16U);
  }
}

TEST(Prefix, the_block_of_the_last_token_is_not_matchable) {
  Prefix prefix(space());
  EXPECT_EQ(prefix.blocks_matchable(), 0U);
  ASSERT_TRUE(prefix.append(count_up(8)));
  EXPECT_EQ(prefix.blocks(), 2U);
  EXPECT_EQ(prefix.blocks_matchable(), 1U);
}

TEST(Prefix, a_block_that_is_covered_and_all_behind_it_are_others) {
  const auto tokens = count_up(16);
  Prefix plain(space(64)), red(space(64)), red_too(space(64)), blue(space(64)), moved(space(64));
  ASSERT_TRUE(red.cover(4, 6, bytes(8, 1)));
  ASSERT_TRUE(red_too.cover(4, 6, bytes(8, 1)));
  ASSERT_TRUE(blue.cover(4, 6, bytes(8, 2)));
  ASSERT_TRUE(moved.cover(5, 6, bytes(8, 1)));
  for (Prefix* prefix : {&plain, &red, &red_too, &blue, &moved})
    ASSERT_TRUE(prefix->append(tokens));
  EXPECT_EQ(keys_of(red), keys_of(red_too));
  const Prefix* all[] = {&plain, &red, &blue, &moved};
  for (const Prefix* a : all) {
    EXPECT_EQ(a->keys()[0], plain.keys()[0]);
    for (const Prefix* b : all) {
      for (std::uint32_t block = 1; a != b && block < 4; ++block)
        EXPECT_NE(a->keys()[block], b->keys()[block]);
    }
  }
  EXPECT_EQ(red.proof(1).size(), 16U + 8 + 8);
  EXPECT_EQ(red.proof(2).size(), 16U);
}

TEST(Prefix, a_range_covers_every_block_that_has_one_of_its_tokens) {
  Prefix prefix(space(64));
  ASSERT_TRUE(prefix.cover(3, 9, bytes(4, 7)));
  ASSERT_TRUE(prefix.append(count_up(16)));
  const std::size_t sizes[] = {28, 28, 28, 16};
  for (std::uint32_t block = 0; block < 4; ++block)
    EXPECT_EQ(prefix.proof(block).size(), sizes[block]) << block;
  // Where it begins is counted from the block, so that two parts of one image differ.
  EXPECT_NE(std::vector(prefix.proof(1).begin() + 16, prefix.proof(1).end()),
            std::vector(prefix.proof(2).begin() + 16, prefix.proof(2).end()));
}

TEST(Prefix, what_cannot_be_covered_is_refused_by_name_and_changes_nothing) {
  Prefix prefix(space(24)), same(space(24));
  ASSERT_TRUE(prefix.append(count_up(5)));
  ASSERT_TRUE(same.append(count_up(5)));
  EXPECT_NE(prefix.cover(3, 9, bytes(1, 1)).error().message.find("complete already"),
            std::string::npos);
  EXPECT_FALSE(prefix.cover(6, 6, bytes(1, 1)));
  EXPECT_FALSE(prefix.cover(5, 6, {}));
  ASSERT_TRUE(prefix.cover(6, 7, bytes(4, 1)));
  ASSERT_TRUE(same.cover(6, 7, bytes(4, 1)));
  const auto refused = prefix.cover(4, 20, bytes(8, 1));  // 12 and 16 are more than 24
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("extra_bytes_max is 24"), std::string::npos);
  ASSERT_TRUE(prefix.append(count_up(20)));
  ASSERT_TRUE(same.append(count_up(20)));
  EXPECT_EQ(keys_of(prefix), keys_of(same));
  EXPECT_FALSE(Prefix(space()).cover(0, 1, bytes(1, 1)));
}

TEST(Prefix, a_truncated_one_goes_on_as_if_it_had_never_been_longer) {
  const auto tokens = count_up(40);
  std::mt19937 random(5);
  for (std::size_t kept = 0; kept <= 40; ++kept) {
    Prefix longer(space(64)), fresh(space(64));
    for (Prefix* p : {&longer, &fresh}) {
      if (kept > 6) {
        ASSERT_TRUE(p->cover(6, 9, bytes(5, 3)));
      }
    }
    ASSERT_TRUE(longer.append(tokens));
    longer.truncate(kept);
    ASSERT_TRUE(fresh.append(std::span(tokens).first(kept)));
    EXPECT_EQ(longer.tokens(), kept);
    const auto more = count_up(random() % 30);
    ASSERT_TRUE(longer.append(more));
    ASSERT_TRUE(fresh.append(more));
    EXPECT_EQ(keys_of(longer), keys_of(fresh)) << kept;
  }
}

TEST(Prefix, digests_are_chained_and_proven_with_their_parents) {
  Prefix prefix(digests());
  EXPECT_FALSE(prefix.append(count_up(4)));
  EXPECT_FALSE(prefix.append_digest(bytes(16, 1)));
  ASSERT_TRUE(prefix.append_digest(bytes(32, 1)));
  ASSERT_TRUE(prefix.append_digest(bytes(32, 2)));
  EXPECT_EQ(prefix.blocks_matchable(), 2U);
  EXPECT_EQ(std::vector(prefix.proof(1).begin() + 32, prefix.proof(1).end()), bytes(32, 1));
  Prefix other(digests());
  ASSERT_TRUE(other.append_digest(bytes(32, 3)));
  ASSERT_TRUE(other.append_digest(bytes(32, 2)));
  EXPECT_NE(prefix.keys()[1], other.keys()[1]);
  other.truncate(0);
  ASSERT_TRUE(other.append_digest(bytes(32, 1)));
  ASSERT_TRUE(other.append_digest(bytes(32, 2)));
  EXPECT_EQ(keys_of(prefix), keys_of(other));
  EXPECT_FALSE(Prefix(space()).append_digest(bytes(32, 1)));
}

// A record of every kind of proof is the block it says, from memory and from disk, and no other.
TEST(Prefix, records_bear_its_proofs) {
  for (const bool named_by_digests : {false, true}) {
    Namespace ns = named_by_digests ? digests() : space();
    ns.extra_bytes_max = 40;
    ASSERT_TRUE(ns.validate());
    const auto layout = RecordLayout::of(ns);
    Prefix prefix(ns), other(ns);
    ASSERT_TRUE(prefix.cover(1, 2, bytes(9, 1)));
    ASSERT_TRUE(other.cover(1, 2, bytes(9, 2)));
    for (Prefix* p : {&prefix, &other}) {
      ASSERT_TRUE(named_by_digests ? p->append_digest(bytes(32, 1)) : p->append(count_up(4)));
      ASSERT_TRUE(named_by_digests ? p->append_digest(bytes(32, 2)) : p->append(count_up(4)));
    }
    for (std::uint32_t block = 0; block < 2; ++block) {
      std::vector<std::byte> record(layout.record_bytes);
      const BlockIdentity identity{prefix.ns(), prefix.keys()[block], prefix.parent(block), block};
      write_header(record, layout, identity, prefix.proof(block));
      EXPECT_TRUE(verify_header(record, layout, identity, prefix.proof(block)));
      const bool same = std::ranges::equal(prefix.proof(block), other.proof(block));
      EXPECT_EQ(verify_header(record, layout, identity, other.proof(block)).has_value(), same);
      ASSERT_TRUE(seal_checksums(record));
      EXPECT_TRUE(verify_checksums(record, prefix.ns(), prefix.keys()[block]));
      // An extra byte more or less is another block, whatever the checksums say.
      RecordHeader header;
      std::memcpy(&header, record.data(), sizeof header);
      header.extra_bytes ^= 1;
      std::memcpy(record.data(), &header, sizeof header);
      EXPECT_FALSE(verify_header(record, layout, identity, prefix.proof(block)));
      EXPECT_FALSE(verify_checksums(record, prefix.ns(), prefix.keys()[block]));
    }
  }
}

// What version 1 wrote has zeros for what it did not know.
TEST(Prefix, records_of_the_version_before_are_read) {
  const Namespace ns = space();
  const auto layout = RecordLayout::of(ns);
  Prefix prefix(ns);
  ASSERT_TRUE(prefix.append(count_up(4)));
  const BlockIdentity identity{prefix.ns(), prefix.keys()[0], {}, 0};
  std::vector<std::byte> record(layout.record_bytes);
  write_header(record, layout, identity, prefix.proof(0));
  const auto set_version = [&](std::uint32_t version) {
    std::memcpy(record.data() + offsetof(RecordHeader, version), &version, sizeof version);
  };
  set_version(kRecordVersionOldest);
  EXPECT_TRUE(verify_header(record, layout, identity, prefix.proof(0)));
  ASSERT_TRUE(seal_checksums(record));
  EXPECT_TRUE(verify_checksums(record, prefix.ns(), prefix.keys()[0]));
  for (const std::uint32_t version : {0U, kRecordVersion + 1}) {
    set_version(version);
    EXPECT_FALSE(verify_header(record, layout, identity, prefix.proof(0)));
  }
}

}  // namespace
}  // namespace kvtier
