#include "core/record/private_head.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace kvtier {
namespace {

class Record : public testing::TestWithParam<StorageFormat> {
 protected:
  Record() {
    ns_.model = "m";
    ns_.layers = 3;
    ns_.kv_heads = 2;
    ns_.head_dim_k = 24;
    ns_.head_dim_v = 8;
    ns_.format = GetParam();
    layout_ = RecordLayout::of(ns_);
    tokens_ = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    const NamespaceId id = id_of(ns_);
    const Key parent = chain_key(id, Key{}, tokens_);
    identity_ = {id, chain_key(id, parent, tokens_), parent, 1};
    bytes_.resize(layout_.record_bytes);
    std::mt19937 random(7);
    for (auto& b : bytes_) b = static_cast<std::byte>(random());
    write_header(bytes_, layout_, identity_, tokens_);
  }

  Namespace ns_;
  RecordLayout layout_;
  std::vector<Token> tokens_;
  BlockIdentity identity_;
  std::vector<std::byte> bytes_;
};

TEST_P(Record, its_parts_lie_behind_one_another_and_a_layer_is_one_piece) {
  const std::size_t k = head_bytes(ns_.format, 16, 24, false);
  const std::size_t v = head_bytes(ns_.format, 16, 8, true);
  EXPECT_EQ(layout_.header_bytes % kRecordAlignment, 0U);
  EXPECT_EQ(layout_.record_bytes % kRecordAlignment, 0U);
  EXPECT_EQ(layout_.layer_bytes, 2 * (k + v));
  EXPECT_GE(layout_.scales_offset, layout_.proof_offset + 16 * sizeof(Token));
  EXPECT_LE(layout_.scale_offset(2, true, 1) + sizeof(float), layout_.header_bytes);
  std::size_t at = layout_.header_bytes;
  for (std::size_t layer = 0; layer < 3; ++layer) {
    for (std::size_t head = 0; head < 2; ++head, at += k) {
      EXPECT_EQ(layout_.k_offset(layer, head), at);
    }
    for (std::size_t head = 0; head < 2; ++head, at += v) {
      EXPECT_EQ(layout_.v_offset(layer, head), at);
    }
  }
  EXPECT_EQ(at, layout_.header_bytes + layout_.payload_bytes);
  EXPECT_LE(at, layout_.record_bytes);
}

TEST_P(Record, a_header_is_accepted_only_for_its_own_identity_and_tokens) {
  EXPECT_TRUE(verify_header(bytes_, layout_, identity_, tokens_));
  auto other = identity_;
  other.ns.bytes[3] ^= std::byte{1};
  EXPECT_EQ(verify_header(bytes_, layout_, other, tokens_).error().code, Errc::corrupt);
  other = identity_;
  other.key.bytes[15] ^= std::byte{1};
  EXPECT_FALSE(verify_header(bytes_, layout_, other, tokens_));
  other = identity_;
  other.parent = Key{};
  EXPECT_FALSE(verify_header(bytes_, layout_, other, tokens_));
  other = identity_;
  other.block_index = 2;
  EXPECT_FALSE(verify_header(bytes_, layout_, other, tokens_));
  EXPECT_FALSE(verify_header(std::span(bytes_).first(100), layout_, identity_, tokens_));
}

// As if two prompts had the same key: the tokens decide.
TEST_P(Record, other_tokens_under_the_same_key_are_not_accepted) {
  for (Token& token : tokens_) {
    const Token right = token;
    token ^= 1;
    const auto verified = verify_header(bytes_, layout_, identity_, tokens_);
    ASSERT_FALSE(verified);
    EXPECT_NE(verified.error().message.find("proof"), std::string::npos);
    token = right;
  }
}

TEST_P(Record, any_flipped_bit_that_is_used_is_found_after_sealing) {
  ASSERT_TRUE(seal_checksums(bytes_));
  ASSERT_TRUE(verify_checksums(bytes_, identity_.ns, identity_.key));
  const std::size_t used = layout_.header_bytes + layout_.payload_bytes;
  std::mt19937 random(11);
  for (std::size_t at = 0; at < used; at += at < 256 ? 1 : 1 + random() % 37) {
    const auto flip = static_cast<std::byte>(1U << random() % 8);
    bytes_[at] ^= flip;
    EXPECT_FALSE(verify_checksums(bytes_, identity_.ns, identity_.key)) << "byte " << at;
    bytes_[at] ^= flip;
  }
  EXPECT_TRUE(verify_checksums(bytes_, identity_.ns, identity_.key));
}

TEST_P(Record, a_sound_record_of_another_block_or_namespace_is_not_accepted) {
  ASSERT_TRUE(seal_checksums(bytes_));
  auto key = identity_.key;
  key.bytes[0] ^= std::byte{1};
  EXPECT_FALSE(verify_checksums(bytes_, identity_.ns, key));
  auto ns = identity_.ns;
  ns.bytes[0] ^= std::byte{1};
  EXPECT_FALSE(verify_checksums(bytes_, ns, identity_.key));
}

TEST_P(Record, random_bytes_and_wrong_sizes_are_refused_without_harm) {
  std::mt19937 random(5);
  for (int i = 0; i < 5'000; ++i) {
    auto changed = bytes_;
    for (int j = 0; j < 3; ++j) changed[8 + random() % 104] = static_cast<std::byte>(random());
    (void)verify_found(changed);
    (void)seal_checksums(changed);
  }
  for (const std::size_t size : {0, 1, 127, 128, 4095, 4096}) {
    EXPECT_FALSE(verify_found(std::span(bytes_).first(size)));
  }
}

TEST_P(Record, the_proof_is_read_back) {
  PrivateHead head;
  ASSERT_TRUE(head.read(bytes_));
  EXPECT_TRUE(std::ranges::equal(head.proof(), std::as_bytes(std::span(tokens_))));
}

INSTANTIATE_TEST_SUITE_P(Formats, Record,
                         testing::Values(StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2,
                                         StorageFormat::bf16, StorageFormat::f32,
                                         StorageFormat::int8, StorageFormat::int4),
                         [](const auto& format) { return std::string(name(format.param)); });

}  // namespace
}  // namespace kvtier
