// The bytes of batches, against those that vLLM's own encoder makes: msgspec 0.23 and the structs
// of vLLM 0.32's kv_events.py, to which the two fields of ours were added where they are.
#include "daemon/events/block_event.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "daemon/limits.h"

namespace kvtier::daemon::events {
namespace {

Key key_from(unsigned first) {
  Key key;
  for (std::size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = std::byte(first + i);
  return key;
}

std::string hex(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

const Key kA = key_from(1), kB = key_from(0xf0);
constexpr double kTime = 1764456789.25;

SpaceRef space(const std::string& adapter = "", std::uint32_t block_tokens = 4) {
  return std::make_shared<const Space>(Space{{key_from(0).bytes}, block_tokens, "m@1", adapter});
}

TEST(BlockEvent, what_vllm_itself_would_send_is_the_same_byte_for_byte) {
  const BlockEvent events[] = {{BlockEvent::Kind::stored, Tier::host, nullptr, {kA}, {}, {7}, 1},
                               {BlockEvent::Kind::removed, Tier::device, nullptr, {kA}, {}, {}}};
  EXPECT_EQ(
      hex(encode_batch(kTime, events, Config::BlockHashes::int64)),
      "93cb41da4ade555000009288a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf090a"
      "0b0c0d0e0f10b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739107aa626c6f636b5f7369"
      "7a6501a76c6f72615f6964c0a66d656469756da3435055a96c6f72615f6e616d65c083a474797065ac426c6f636b"
      "52656d6f766564ac626c6f636b5f68617368657391cf090a0b0c0d0e0f10a66d656469756da347505500");
}

TEST(BlockEvent, fields_of_ours_come_behind_vllms) {
  const BlockEvent events[] = {
      {BlockEvent::Kind::cleared, Tier::host, nullptr, {}, {}, {}},
      {BlockEvent::Kind::stored,
       Tier::host,
       space(),
       {kA, kB},
       {},
       {1, 127, 128, 255, 256, 65535, 65536, 4294967295},
       4},
      {BlockEvent::Kind::stored, Tier::disk, space("lora"), {kB}, kA, {}, 4},
      {BlockEvent::Kind::removed, Tier::device, space(), {kA}, {}, {}}};
  EXPECT_EQ(
      hex(encode_batch(kTime, events, Config::BlockHashes::int64)),
      "93cb41da4ade555000009481a474797065b0416c6c426c6f636b73436c65617265648aa474797065ab426c6f636b"
      "53746f726564ac626c6f636b5f68617368657392cf090a0b0c0d0e0f10cff8f9fafbfcfdfeffb1706172656e745f"
      "626c6f636b5f68617368c0a9746f6b656e5f69647398017fcc80ccffcd0100cdffffce00010000ceffffffffaa62"
      "6c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3435055a96c6f72615f6e616d65c0a96e616d65"
      "7370616365d9203030303130323033303430353036303730383039306130623063306430653066a56d6f64656ca3"
      "6d40318aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cff8f9fafbfcfdfeffb170"
      "6172656e745f626c6f636b5f68617368cf090a0b0c0d0e0f10a9746f6b656e5f69647390aa626c6f636b5f73697a"
      "6504a76c6f72615f6964c0a66d656469756da753544f52414745a96c6f72615f6e616d65a46c6f7261a96e616d65"
      "7370616365d9203030303130323033303430353036303730383039306130623063306430653066a56d6f64656ca3"
      "6d403184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf090a0b0c0d0e0f10a6"
      "6d656469756da3475055a96e616d657370616365d920303030313032303330343035303630373038303930613062"
      "306330643065306600");
}

TEST(BlockEvent, keys_can_be_bytes) {
  const BlockEvent events[] = {
      {BlockEvent::Kind::stored, Tier::host, space("", 16), {kA}, kB, {}, 16}};
  EXPECT_EQ(
      hex(encode_batch(kTime, events, Config::BlockHashes::bytes)),
      "93cb41da4ade55500000918aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391c41001"
      "02030405060708090a0b0c0d0e0f10b1706172656e745f626c6f636b5f68617368c410f0f1f2f3f4f5f6f7f8f9fa"
      "fbfcfdfeffa9746f6b656e5f69647390aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da343"
      "5055a96c6f72615f6e616d65c0a96e616d657370616365d920303030313032303330343035303630373038303930"
      "6130623063306430653066a56d6f64656ca36d403100");
}

TEST(BatchMaker, blocks_that_follow_one_another_are_one_event) {
  BatchMaker batch;
  const SpaceRef of = space();
  const std::vector<Token> tokens{1, 2, 3, 4};
  batch.stored(Tier::host, of, kA, {}, tokens);
  batch.stored(Tier::host, of, kB, kA, tokens);
  batch.stored(Tier::disk, of, kB, kA, tokens);       // another tier
  batch.stored(Tier::disk, of, key_from(3), kB, {});  // its tokens are not known
  batch.stored(Tier::disk, of, key_from(4), kB, {});  // does not follow
  batch.removed(Tier::host, of, kA);
  batch.removed(Tier::host, of, key_from(9));
  const auto events = batch.take();
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[0].keys, (std::vector<Key>{kA, kB}));
  EXPECT_EQ(events[0].tokens.size(), 8U);
  EXPECT_EQ(events[1].parent, kA);
  EXPECT_TRUE(events[2].tokens.empty());
  EXPECT_EQ(events[4].keys, (std::vector<Key>{kA, key_from(9)}));
  EXPECT_TRUE(batch.empty());
}

TEST(BatchMaker, is_full_at_its_size_whatever_a_block_is) {
  for (const std::uint32_t block_tokens : {16U, 1024U}) {
    BatchMaker batch;
    const SpaceRef of = space("", block_tokens);
    const std::vector<Token> tokens(block_tokens, 0xFFFFFFFF);
    while (!batch.full()) batch.stored(Tier::host, of, kA, {}, tokens);
    const auto bytes = encode_batch(kTime, batch.take(), Config::BlockHashes::bytes);
    EXPECT_GT(bytes.size(), limits::kEventBatchBytes / 2);
    EXPECT_LT(bytes.size(), limits::kEventBatchBytes + (8U << 10));
    EXPECT_FALSE(batch.full());
  }
}

}  // namespace
}  // namespace kvtier::daemon::events
