#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "kvtier/namespace.h"

namespace kvtier {
namespace {

Namespace sample() {
  Namespace ns;
  ns.model = "docs-4m@0123";
  ns.adapter = "lora@2";
  ns.tenant = "salt";
  ns.layers = 6;
  ns.kv_heads = 2;
  ns.head_dim_k = 64;
  ns.head_dim_v = 32;
  ns.positions = "rope theta=10000";
  return ns;
}

std::vector<Token> tokens(std::uint32_t count, std::uint32_t first = 0) {
  std::vector<Token> made(count);
  for (std::uint32_t i = 0; i < count; ++i) made[i] = first + i;
  return made;
}

TEST(Namespace, decoding_gives_back_what_was_encoded) {
  const Namespace ns = sample();
  EXPECT_EQ(decode_namespace(encode(ns)).value(), ns);
}

TEST(Namespace, every_field_changes_the_id) {
  const std::function<void(Namespace&)> changes[] = {
      [](Namespace& n) { n.model += "x"; },
      [](Namespace& n) { n.adapter += "x"; },
      [](Namespace& n) { n.tenant += "x"; },
      [](Namespace& n) { n.layers += 1; },
      [](Namespace& n) { n.kv_heads += 1; },
      [](Namespace& n) { n.head_dim_k += 1; },
      [](Namespace& n) { n.head_dim_v += 1; },
      [](Namespace& n) { n.block_tokens *= 2; },
      [](Namespace& n) { n.format = StorageFormat::fp8_e5m2; },
      [](Namespace& n) { n.ranks = 2; },
      [](Namespace& n) { n.ranks = 2, n.rank = 1; },
      [](Namespace& n) { n.ranks = 0; },
      [](Namespace& n) { n.positions += "x"; },
      // Text that moves from one field to the next must not run into it.
      [](Namespace& n) { n.model = "docs-4m@0123lora@2", n.adapter = ""; },
      [](Namespace& n) { n.model = "docs-4m@012", n.adapter = "3lora@2"; },
  };
  std::set<NamespaceId> ids{id_of(sample())};
  for (const auto& change : changes) {
    Namespace ns = sample();
    change(ns);
    EXPECT_TRUE(ids.insert(id_of(ns)).second);
  }
}

TEST(Namespace, an_encoding_that_is_cut_changed_or_longer_is_refused_or_another_namespace) {
  const auto bytes = encode(sample());
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(decode_namespace(std::span(bytes).first(cut))) << cut;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(decode_namespace(longer).error().code, Errc::malformed);
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    auto changed = bytes;
    changed[random() % changed.size()] ^= static_cast<std::byte>(1 + random() % 255);
    const auto decoded = decode_namespace(changed);
    if (!decoded) continue;
    EXPECT_NE(*decoded, sample());
    EXPECT_EQ(encode(*decoded), changed) << "a second encoding of one namespace";
  }
}

TEST(Namespace, a_field_out_of_range_is_named_with_its_range) {
  Namespace ns = sample();
  ns.block_tokens = 1025;
  EXPECT_NE(ns.validate().error().message.find("block_tokens is 1025; it must be from 1 to 1024"),
            std::string::npos);
  ns = sample();
  ns.rank = 1;
  EXPECT_NE(ns.validate().error().message.find("rank is 1"), std::string::npos);
  ns = sample();
  ns.layers = 1024, ns.kv_heads = 1024, ns.head_dim_k = 4096;
  EXPECT_NE(ns.validate().error().message.find("record bytes"), std::string::npos);
  EXPECT_NE(parse_storage_format("fp4").error().message.find("fp8_e4m3"), std::string::npos);
}

// Computed by another implementation of XXH3 from docs/format.md. They pin the format: a change of
// these is a change of every cache on disk.
TEST(Key, ids_and_keys_do_not_change_between_versions_and_processes) {
  const NamespaceId ns = id_of(sample());
  EXPECT_EQ(to_hex(ns), "50fc4fd259d19179db476e0e36878c37");
  const auto keys = chain_keys(ns, 16, tokens(33));
  ASSERT_EQ(keys.size(), 2U);
  EXPECT_EQ(to_hex(keys[0]), "9a650166f81c8f4515b9b5e588d54b73");
  EXPECT_EQ(to_hex(keys[1]), "9a650166715d04932c62b29216b4277a");
}

TEST(Key, a_key_depends_on_namespace_parent_and_every_token) {
  const NamespaceId ns = id_of(sample());
  Namespace other = sample();
  other.tenant = "other";
  const auto block = tokens(16);
  const Key key = chain_key(ns, Key{}, block);
  EXPECT_NE(key, chain_key(id_of(other), Key{}, block));
  EXPECT_NE(key, chain_key(ns, key, block));
  for (std::size_t i = 0; i < block.size(); ++i) {
    auto changed = block;
    changed[i] ^= 0x10000;
    EXPECT_NE(key, chain_key(ns, Key{}, changed));
  }
}

TEST(Key, hexadecimal_is_read_back_and_nonsense_refused) {
  const Key key = chain_key(id_of(sample()), Key{}, tokens(16));
  EXPECT_EQ(Key{from_hex(to_hex(key)).value()}, key);
  for (const char* bad :
       {"", "12", "g0000000000000000000000000000000", "000000000000000000000000000000000"}) {
    EXPECT_EQ(from_hex(bad).error().code, Errc::invalid) << bad;
  }
}

TEST(Match, the_last_prompt_token_is_never_covered) {
  EXPECT_EQ(blocks_matchable(0, 16), 0U);
  EXPECT_EQ(blocks_matchable(1, 16), 0U);
  EXPECT_EQ(blocks_matchable(16, 16), 0U);
  EXPECT_EQ(blocks_matchable(17, 16), 1U);
  EXPECT_EQ(blocks_matchable(32, 16), 1U);
  EXPECT_EQ(blocks_matchable(33, 16), 2U);
}

}  // namespace
}  // namespace kvtier
