#include "engine_adapter/reference/model/instance.h"
#include "engine_adapter/reference/model/weights/engine_memory.h"

#include <gtest/gtest.h>

#include "core/base/units.h"
#include "engine_adapter/reference/model/weights/random_weights.h"

namespace kvtier::engine {
namespace {

ModelConfig llama_8b() {
  return random_shape("llama-3.1-8b").value().config;
}

TEST(CapacityTest, kv_of_a_known_shape_takes_what_its_paper_form_says) {
  // 32 layers x (K and V) x 8 heads x 128 values.
  const auto plan =
      plan_capacity(llama_8b(), 32768, {StorageFormat::fp8_e4m3, StorageFormat::bf16}, {}).value();
  EXPECT_EQ(plan.attention, "GQA");
  EXPECT_EQ(plan.blocks_per_request, 2048U);
  ASSERT_EQ(plan.formats.size(), 2U);
  EXPECT_EQ(plan.formats[0].token_bytes, 64_KiB);
  EXPECT_EQ(plan.formats[1].token_bytes, 128_KiB);
  EXPECT_EQ(plan.formats[0].block_bytes, 1_MiB + 4_KiB);
  EXPECT_EQ(plan.formats[1].block_bytes, 2_MiB + 4_KiB);
  EXPECT_EQ(plan.formats[0].request_bytes, 2048 * (1_MiB + 4_KiB));
}

TEST(CapacityTest, int4_takes_little_more_than_half_of_fp8) {
  const auto plan =
      plan_capacity(llama_8b(), 1024, {StorageFormat::int8, StorageFormat::int4}, {}).value();
  EXPECT_EQ(plan.formats[0].token_bytes, 66_KiB);
  EXPECT_EQ(plan.formats[1].token_bytes, 34_KiB);
}

TEST(CapacityTest, raw_is_no_format_of_this_engine) {
  EXPECT_EQ(parse_engine_format("int4").value(), StorageFormat::int4);
  EXPECT_NE(parse_engine_format("raw").error().message.find("give f32"), std::string::npos);
  EXPECT_EQ(parse_engine_format("fp4").error().code, Errc::invalid);
}

TEST(CapacityTest, fewer_kv_heads_take_as_much_less) {
  ModelConfig config = llama_8b();
  std::vector<std::uint64_t> token_bytes;
  std::vector<std::string> kinds;
  for (const std::uint32_t kv_heads : {32U, 8U, 1U}) {
    config.kv_heads = kv_heads;
    const auto plan = plan_capacity(config, 1024, {StorageFormat::bf16}, {}).value();
    token_bytes.push_back(plan.formats[0].token_bytes);
    kinds.push_back(plan.attention);
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"MHA", "GQA", "MQA"}));
  EXPECT_EQ(token_bytes, (std::vector<std::uint64_t>{512_KiB, 128_KiB, 16_KiB}));
}

EngineMemory engine_memory(const ModelConfig& config, StorageFormat format, std::uint32_t context,
                           const EngineHost& host, const SharedUsers& users = {}) {
  const auto plan = plan_capacity(config, context, {format}, {}).value();
  return plan_engine_memory(config, plan.formats[0], context, host, users);
}

// As the checkpoints of these names have them.
TEST(EngineMemoryTest, known_models_have_as_many_weights_as_their_checkpoints) {
  const std::pair<const char*, std::uint64_t> known[] = {{"llama-3.1-8b", 8'030'261'248},
                                                         {"llama-3.1-70b", 70'553'706'496},
                                                         {"llama-3.2-1b", 1'235'814'400},
                                                         {"qwen2.5-7b", 7'615'616'512},
                                                         {"qwen3-8b", 8'190'735'360}};
  for (const auto& [shape, weights] : known)
    EXPECT_EQ(parameters_of(random_shape(shape)->config), weights) << shape;
}

TEST(EngineMemoryTest, what_weights_and_activations_leave_holds_whole_pages) {
  const EngineHost host{.gpu_bytes = 80'000'000'000};
  const auto fp8 = engine_memory(llama_8b(), StorageFormat::fp8_e4m3, 32768, host);
  EXPECT_EQ(fp8.weight_bytes, 2 * 8'030'261'248ULL);
  EXPECT_EQ(fp8.kv_bytes, 72'000'000'000 - fp8.weight_bytes - fp8.activation_bytes);
  EXPECT_EQ(fp8.tokens, fp8.kv_bytes / (1_MiB + 4_KiB) * 16);
  EXPECT_EQ(fp8.requests, fp8.tokens / 32768);
  EXPECT_EQ(fp8.token_bytes, 64_KiB);
  EXPECT_EQ(fp8.mha_token_bytes, 256_KiB) << "32 heads, of which each has its own";
  const auto bf16 = engine_memory(llama_8b(), StorageFormat::bf16, 32768, host);
  EXPECT_EQ(bf16.kv_bytes, fp8.kv_bytes);
  EXPECT_LT(bf16.tokens, fp8.tokens * 51 / 100);
}

TEST(EngineMemoryTest, gpus_share_weights_and_heads_and_say_what_is_missing) {
  const ModelConfig large = random_shape("llama-3.1-70b")->config;
  EngineHost host{.gpus = 1, .gpu_bytes = 80'000'000'000};
  const auto one = engine_memory(large, StorageFormat::bf16, 32768, host);
  EXPECT_EQ(one.kv_bytes, 0U);
  EXPECT_EQ(one.tokens, 0U);
  EXPECT_EQ(one.missing_bytes, one.weight_bytes + one.activation_bytes - 72'000'000'000);
  host.gpus = 4;
  const auto four = engine_memory(large, StorageFormat::bf16, 32768, host);
  EXPECT_EQ(four.weight_bytes, one.weight_bytes / 4);
  EXPECT_EQ(four.token_bytes, one.token_bytes / 4) << "two of eight KV heads";
  EXPECT_EQ(four.missing_bytes, 0U);
  EXPECT_GT(four.requests, 0U);
  host.gpus = 16;
  EXPECT_EQ(engine_memory(large, StorageFormat::bf16, 32768, host).token_bytes, one.token_bytes / 8)
      << "a head is not cut";
}

TEST(EngineMemoryTest, what_users_begin_with_alike_is_held_once) {
  const EngineHost host{.gpu_bytes = 80'000'000'000};
  // 3,000 tokens begin 188 pages; 1,000 fill 62.
  const auto users = engine_memory(llama_8b(), StorageFormat::fp8_e4m3, 3000, host,
                                   {.users = 1000, .shared_tokens = 1000});
  EXPECT_EQ(users.users_tokens_apart, 1000 * 188 * 16U);
  EXPECT_EQ(users.users_tokens, 1000 * 188 * 16U - 999 * 62 * 16U);
  const auto alone = engine_memory(llama_8b(), StorageFormat::fp8_e4m3, 3000, host,
                                   {.users = 7, .shared_tokens = 0});
  EXPECT_EQ(alone.users_tokens, alone.users_tokens_apart);
  EXPECT_EQ(engine_memory(llama_8b(), StorageFormat::fp8_e4m3, 3000, host).users_tokens, 0U);
}

TEST(EngineMemoryTest, pages_take_what_is_left_of_the_part_that_the_engine_may_have) {
  EXPECT_EQ(pages_within(0.5, 100_MiB, 10_MiB, 1_MiB).value(), 40U);
  EXPECT_EQ(pages_within(1.0, 100_MiB, 0, 3_MiB).value(), 33U);
  EXPECT_EQ(pages_within(0.11, 100_MiB, 10_MiB, 1_MiB).value(), 1U);
  const auto none = pages_within(0.1, 100_MiB, 10_MiB, 1_MiB);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::invalid);
  EXPECT_NE(none.error().message.find("--memory-utilization: 10 MiB of 100 may be taken"),
            std::string::npos);
  EXPECT_FALSE(pages_within(0.1, 100_MiB, 90_MiB, 1_MiB));
  // As many tokens as fit into 32 bits.
  EXPECT_EQ(pages_within(1.0, std::uint64_t{1} << 60, 0, 4_KiB).value(),
            ~std::uint32_t{0} / kBlockTokens);
}

TEST(CapacityTest, an_extent_and_a_segment_hold_whole_records_alone) {
  const std::uint64_t record = 1_MiB + 4_KiB;
  // Three in an extent, which takes no more than they do: three extents, and two at the end.
  EXPECT_EQ(records_in({Tier::host, 12_MiB, 4_MiB}, record), 11U);
  EXPECT_EQ(records_in({Tier::host, 1_MiB, 4_MiB}, record), 0U);
  // An extent is at least a record, whatever its configured size.
  EXPECT_EQ(records_in({Tier::host, 3 * record, 4_KiB}, record), 3U);
  // A GPU's memory is taken 2 MiB at a time: one record in each.
  EXPECT_EQ(records_in({Tier::device, 8_MiB, 2_MiB, 2_MiB}, record), 4U);
  // A segment is as large as it is, and has a header.
  EXPECT_EQ(records_in({Tier::disk, 12_MiB, 4_MiB}, record), 9U);
  EXPECT_EQ(records_in({Tier::disk, 4_MiB, 4_MiB}, 1_MiB), 3U);
  EXPECT_EQ(records_in({Tier::disk, 12_MiB, 4_MiB, 4_KiB, 2}, record), 18U);
}

TEST(CapacityTest, parts_of_a_tier_add_up_and_a_tier_without_room_is_left_out) {
  const auto plan = plan_capacity(llama_8b(), 1000, {StorageFormat::fp8_e4m3},
                                  {{Tier::disk, 1_GiB, 256_MiB, 4_KiB, 2},
                                   {Tier::disk, 256_MiB, 256_MiB},
                                   {Tier::host, 0, 1_GiB},
                                   {Tier::device, 256_MiB, 256_MiB, 2_MiB, 2}})
                        .value();
  const auto& tiers = plan.formats[0].tiers;
  ASSERT_EQ(tiers.size(), 2U);
  EXPECT_EQ(tiers[0].tier, Tier::device);
  EXPECT_EQ(tiers[0].capacity_bytes, 512_MiB);
  EXPECT_EQ(tiers[0].blocks, 2 * 255U);
  EXPECT_EQ(tiers[1].tier, Tier::disk);
  EXPECT_EQ(tiers[1].blocks, 9 * 255U);
  EXPECT_EQ(tiers[1].tokens, tiers[1].blocks * 16);
  EXPECT_EQ(plan.blocks_per_request, 62U);  // 1000 tokens are 62 blocks and 8 tokens
  EXPECT_EQ(tiers[1].requests, tiers[1].blocks / 62);
}

TEST(CapacityTest, a_context_that_cannot_be_is_refused_with_what_can) {
  for (const std::uint32_t context : {0U, 15U, 131073U}) {
    const auto plan = plan_capacity(llama_8b(), context, {StorageFormat::bf16}, {});
    ASSERT_FALSE(plan) << context;
    EXPECT_EQ(plan.error().code, Errc::invalid);
    EXPECT_NE(plan.error().message.find("16 (a block) to 131072"), std::string::npos)
        << plan.error().message;
  }
}

}  // namespace
}  // namespace kvtier::engine
