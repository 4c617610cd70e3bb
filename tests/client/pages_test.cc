#include <algorithm>
#include <random>

#include "kernels/table.h"
#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

// K and V pages of an engine, in f32.
struct KvPages {
  KvPages(const RecordLayout& l, std::uint32_t blocks) {
    for (std::uint32_t i = 0; i < l.layers * blocks; ++i) {
      k.emplace_back(std::size_t{l.kv_heads} * l.block_tokens * l.head_dim_k);
      v.emplace_back(std::size_t{l.kv_heads} * l.block_tokens * l.head_dim_v);
    }
    for (auto& page : k) k_pointers.push_back(page.data());
    for (auto& page : v) v_pointers.push_back(page.data());
  }
  void randomise() {
    std::mt19937 random(7);
    std::normal_distribution<float> values;
    for (auto* side : {&k, &v}) {
      for (auto& page : *side) std::ranges::generate(page, [&] { return values(random); });
    }
  }
  Pages pages() const { return {.records = {}, .k_pages = k_pointers, .v_pages = v_pointers}; }

  std::vector<std::vector<float>> k, v;
  std::vector<void*> k_pointers, v_pointers;
};

class PagesTest : public ClientTest, public ::testing::WithParamInterface<StorageFormat> {
 protected:
  PagesTest() : ClientTest(small_namespace(GetParam())) {}

  void convert_layer(KvPages& from, std::uint32_t layer, std::byte* record, bool store) {
    kernels::BlockLayerArgs args;
    const LayerLayout of_layer = layout.layer(layer);
    args.layout = &of_layer;
    args.blocks = 1;
    args.page_tokens = layout.block_tokens;
    args.k = kernels::head_major(&from.k_pointers[layer], layout.block_tokens, layout.head_dim_k,
                                 DType::f32);
    args.v = kernels::head_major(&from.v_pointers[layer], layout.block_tokens, layout.head_dim_v,
                                 DType::f32);
    args.records = &record;
    const auto& kernels = kernels::cpu_kernels();
    store ? kernels.quantise_and_scatter(args) : kernels.gather_and_dequantise(args);
  }
};

TEST_P(PagesTest, GoOutAsRecordsAndComeBackAsStored) {
  const auto prompt = prompt_of(33);
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  KvPages out(layout, 2);
  out.randomise();
  auto write = cache->write_back(prompt, 0, out.pages());
  write.wait();
  ASSERT_EQ(write.accepted(), 2U);
  ASSERT_TRUE(client->flush(soon()));
  for (const auto& block : daemon.with([](auto& s) { return s.committed; })) {
    daemon.publish(block.key, TierSet{}.with(Tier::host), block.slots[0]);
  }

  auto lease = cache->lease(prompt, 2, soon());
  ASSERT_TRUE(lease);
  ASSERT_EQ(lease->blocks(), 2U);
  KvPages back(layout, 2);
  ASSERT_EQ(lease->load_into(back.pages())->finish(), 2U);

  // Block by block, what the reference kernels make of the same pages.
  for (std::uint32_t block = 0; block < 2; ++block) {
    KvPages one(layout, 1), expected(layout, 1);
    std::vector<std::byte> record(layout.record_bytes);
    for (std::uint32_t layer = 0; layer < layout.layers; ++layer) {
      one.k[layer] = out.k[layer * 2 + block];
      one.v[layer] = out.v[layer * 2 + block];
      one.k_pointers[layer] = one.k[layer].data();
      one.v_pointers[layer] = one.v[layer].data();
      convert_layer(one, layer, record.data(), true);
      convert_layer(expected, layer, record.data(), false);
      EXPECT_EQ(back.k[layer * 2 + block], expected.k[layer]);
      EXPECT_EQ(back.v[layer * 2 + block], expected.v[layer]);
      if (GetParam() == StorageFormat::f32) {
        EXPECT_EQ(back.k[layer * 2 + block], one.k[layer]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryFormat, PagesTest,
                         ::testing::Values(StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2,
                                           StorageFormat::bf16, StorageFormat::f32),
                         [](const auto& format) { return name(format.param); });

}  // namespace
}  // namespace kvtier::test
