// Every layout with every format; one layout stored and another loaded; block sizes; latent pages;
// layers that differ.
#include "tests/e2e/conformance/conformance.h"

namespace kvtier::conformance {
namespace {

constexpr std::uint32_t kBlocks = 3;
constexpr StorageFormat kFormats[] = {
    StorageFormat::raw,      StorageFormat::f32,  StorageFormat::bf16, StorageFormat::fp8_e4m3,
    StorageFormat::fp8_e5m2, StorageFormat::int8, StorageFormat::int4};

class RoundTrip : public ConformanceTest {
 protected:
  struct Side {
    Layout layout;
    std::uint32_t page_tokens = 0;
  };
  // Stored from one pool, loaded to another; both have pages that are none of these blocks'.
  void goes(Namespace ns, Side from, Side to, const EnginePool::Bound& bound,
            std::uint32_t blocks = kBlocks, DType type = DType::bf16) {
    auto cache = open(ns);
    // Others every time: what a lease that has just ended still holds is not dropped.
    const auto prefix = prefix_of(ns, blocks, first_ += 100'000);
    const auto pages = [&](const Side& side) {
      const std::uint32_t of_block = side.page_tokens == 0 ? 1 : ns.block_tokens / side.page_tokens;
      auto numbers = scattered(blocks * of_block + 2);
      numbers.resize(blocks * of_block);
      return numbers;
    };
    const auto stored = pages(from), loaded = pages(to);
    const auto count = [](const auto& numbers) {
      return static_cast<std::uint32_t>(numbers.size() + 2);
    };
    EnginePool source(ns, from.layout, type, count(stored), from.page_tokens);
    EnginePool target(ns, to.layout, type, count(loaded), to.page_tokens);
    source.fill(stored);
    store(*cache, prefix, pages_of(source, stored), blocks);
    drop_from_memory();
    ASSERT_NO_FATAL_FAILURE(load_from_disk(*cache, prefix, pages_of(target, loaded), blocks));
    EXPECT_EQ(ns.format == StorageFormat::raw ? target.check_raw(loaded, source, stored)
                                              : target.check(loaded, bound),
              "");
    daemon->drop({});
  }

 private:
  Token first_ = 0;
};

class EveryLayout
    : public RoundTrip,
      public testing::WithParamInterface<std::tuple<Layout, StorageFormat, std::uint32_t>> {};

TEST_P(EveryLayout, ComesBackFromDiskAsItWasStored) {
  const auto [layout, format, page_tokens] = GetParam();
  goes(small_namespace(format), {layout, page_tokens}, {layout, page_tokens}, bound_of(format));
}

// Pages that are a block, several a block, and of a single token.
INSTANTIATE_TEST_SUITE_P(WithEveryFormat, EveryLayout,
                         testing::Combine(testing::ValuesIn(kLayouts), testing::ValuesIn(kFormats),
                                          testing::Values(0U, 4U, 1U)),
                         [](const auto& p) {
                           return name(std::get<0>(p.param)) + "_" + name(std::get<1>(p.param)) +
                                  "_" + std::to_string(std::get<2>(p.param));
                         });

class BetweenLayouts : public RoundTrip,
                       public testing::WithParamInterface<std::tuple<Layout, Layout>> {};

TEST_P(BetweenLayouts, ABlockIsTheSame) {
  const auto [from, to] = GetParam();
  goes(small_namespace(StorageFormat::bf16), {from, 16}, {to, 2}, {});
}

TEST_P(BetweenLayouts, AQuantisedBlockIsWithinItsBound) {
  const auto [from, to] = GetParam();
  goes(small_namespace(StorageFormat::fp8_e4m3), {from, 1}, {to, 0},
       bound_of(StorageFormat::fp8_e4m3));
}

INSTANTIATE_TEST_SUITE_P(EachToEach, BetweenLayouts,
                         testing::Combine(testing::ValuesIn(kLayouts), testing::ValuesIn(kLayouts)),
                         [](const auto& p) {
                           return name(std::get<0>(p.param)) + "_to_" + name(std::get<1>(p.param));
                         });

class BlockSizes : public RoundTrip,
                   public testing::WithParamInterface<std::tuple<std::uint32_t, StorageFormat>> {};

TEST_P(BlockSizes, WholeBlocksAsPages) {
  const auto [tokens, format] = GetParam();
  goes(small_namespace(format, tokens), {Layout::planes_nhd}, {Layout::planes_nhd},
       bound_of(format));
}

TEST_P(BlockSizes, SingleTokensAsPages) {
  const auto [tokens, format] = GetParam();
  goes(small_namespace(format, tokens), {Layout::interleaved_hnd, 1}, {Layout::interleaved_hnd, 1},
       bound_of(format));
}

INSTANTIATE_TEST_SUITE_P(From1To1024, BlockSizes,
                         testing::Combine(testing::Values(1U, 2U, 3U, 7U, 16U, 24U, 784U, 1024U),
                                          testing::ValuesIn(kFormats)),
                         [](const auto& p) {
                           return std::to_string(std::get<0>(p.param)) + "_" +
                                  name(std::get<1>(p.param));
                         });

class Latent : public RoundTrip, public testing::WithParamInterface<StorageFormat> {};

// 512 latent numbers and 64 of the rotary part a token, shared by all heads, in pages of a token
// and of a block.
TEST_P(Latent, KAloneComesBack) {
  Namespace ns = small_namespace(GetParam());
  ns.kv_heads = 1;
  ns.head_dim_k = 512 + 64;
  ns.head_dim_v = 0;
  ns.ranks = 0;
  if (GetParam() == StorageFormat::raw) ns.raw_bytes = ns.block_tokens * ns.head_dim_k * 2;
  goes(ns, {Layout::planes_nhd, 1}, {Layout::planes_nhd, 1}, bound_of(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(WithEveryFormat, Latent, testing::ValuesIn(kFormats),
                         [](const auto& p) { return std::string(name(p.param)); });

TEST_F(RoundTrip, LatentPagesOfATokenGoToPagesOfABlock) {
  Namespace ns = small_namespace(StorageFormat::bf16);
  ns.kv_heads = 1;
  ns.head_dim_k = 512 + 64;
  ns.head_dim_v = 0;
  goes(ns, {Layout::planes_nhd, 1}, {Layout::one_tensor, 0}, {});
}

TEST_F(RoundTrip, PagesOfF32KeepAllOfANumber) {
  goes(small_namespace(StorageFormat::f32), {Layout::planes_hnd}, {Layout::woven}, {}, kBlocks,
       DType::f32);
}

Namespace of_layers(std::vector<LayerShape> shapes) {
  Namespace ns = small_namespace(StorageFormat::bf16);
  ns.layers = static_cast<std::uint32_t>(shapes.size());
  ns.kv_heads = shapes.front().kv_heads;
  ns.head_dim_k = shapes.front().head_dim_k;
  ns.head_dim_v = shapes.front().head_dim_v;
  ns.format = shapes.front().format;
  ns.raw_bytes = shapes.front().raw_bytes;
  ns.layer_shapes = std::move(shapes);
  return ns;
}

// As models with sliding windows or compressed attention in some layers have them.
TEST_F(RoundTrip, LayersMayHaveHeadsAndSizesOfTheirOwn) {
  const Namespace ns = of_layers({{2, 32, 32, StorageFormat::bf16},
                                  {8, 64, 64, StorageFormat::bf16},
                                  {1, 576, 0, StorageFormat::bf16},
                                  {3, 96, 32, StorageFormat::bf16}});
  for (const Layout layout : {Layout::planes_nhd, Layout::interleaved_hnd, Layout::block_first})
    goes(ns, {layout, 4}, {Layout::one_tensor, 16}, {});
}

TEST_F(RoundTrip, LayersMayHaveFormatsOfTheirOwn) {
  // The first and last layers as they are, those between quantised.
  goes(of_layers({{2, 32, 32, StorageFormat::bf16},
                  {2, 32, 32, StorageFormat::fp8_e4m3},
                  {2, 32, 32, StorageFormat::fp8_e5m2},
                  {2, 32, 32, StorageFormat::f32}}),
       {Layout::planes_nhd}, {Layout::planes_hnd}, bound_of(StorageFormat::fp8_e5m2));
}

TEST_F(RoundTrip, SomeLayersMayBeRaw) {
  goes(of_layers({{2, 32, 32, StorageFormat::bf16},
                  {0, 0, 0, StorageFormat::raw, 16 * 3 * 64},
                  {2, 32, 32, StorageFormat::fp8_e4m3}}),
       {Layout::interleaved_nhd}, {Layout::interleaved_nhd}, bound_of(StorageFormat::fp8_e4m3));
}

}  // namespace
}  // namespace kvtier::conformance
