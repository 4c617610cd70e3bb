// What a page pool refuses, by name.
#include "kvtier/page_pool.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

// Pages of planes, token-major: 4 pages of 16 tokens, 2 layers of 2 heads of 8 numbers in bf16.
class PagePoolTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kPages = 4;
  static constexpr std::size_t kRow = 8 * 2, kToken = 2 * kRow, kPage = 16 * kToken;

  PagePoolTest() : memory(4 * kPages * kPage + 64) {
    ns = small_namespace(StorageFormat::bf16);
    ns.layers = 2;
    ns.head_dim_v = ns.head_dim_k;
    shape.type = DType::bf16;
    shape.pages = kPages;
    for (std::size_t layer = 0; layer < 2; ++layer)
      shape.layers.push_back({side(2 * layer), side(2 * layer + 1)});
  }
  // The n-th plane.
  PoolSide side(std::size_t n) {
    return {.base = memory.data() + n * kPages * kPage,
            .bytes = kPages * kPage,
            .page_stride = kPage,
            .token_stride = kToken,
            .head_stride = kRow};
  }
  // The whole message of what is refused; empty where it is not.
  std::string refusal() const {
    const auto pool = PagePool::of(ns, shape);
    if (pool) return {};
    EXPECT_EQ(pool.error().code, Errc::invalid);
    return pool.error().message;
  }
  void expect_refused(std::initializer_list<const char*> words) const {
    const std::string message = refusal();
    for (const char* word : words)
      EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
  }
  void make_raw() {
    ns.format = StorageFormat::raw;
    ns.raw_bytes = 2 * kPage;
    ns.page_layout = "test";
    for (PoolLayer& layer : shape.layers) {
      for (PoolSide* one : {&layer.k, &layer.v}) {
        one->token_stride = one->head_stride = 0;
        one->rows = 16;
        one->row_bytes = one->row_stride = kToken;
      }
    }
  }

  std::vector<std::byte> memory;
  Namespace ns;
  PoolShape shape;
};

TEST_F(PagePoolTest, OneThatFitsIsTaken) {
  EXPECT_EQ(refusal(), "");
  make_raw();
  EXPECT_EQ(refusal(), "");
}

TEST_F(PagePoolTest, PagesMustDivideABlock) {
  shape.page_tokens = 5;
  expect_refused({"pages of 5 tokens", "block of 16"});
  shape.page_tokens = 32;
  expect_refused({"pages of 32 tokens"});
}

TEST_F(PagePoolTest, ThereMustBePagesAndAllLayers) {
  shape.pages = 0;
  expect_refused({"has no pages"});
  shape.pages = kPages;
  shape.layers.pop_back();
  expect_refused({"describes 1 layers", "has 2"});
}

TEST_F(PagePoolTest, AWrongElementTypeIsRefused) {
  shape.type = DType::fp8_e4m3;
  expect_refused({"type"});
}

TEST_F(PagePoolTest, TokensThatOverlapAreRefused) {
  shape.layers[1].v.token_stride = kRow;
  expect_refused({"V of layer 1", "overlap by their stride"});
}

TEST_F(PagePoolTest, HeadsThatOverlapAreRefused) {
  shape.layers[0].k.head_stride = kRow / 2;
  expect_refused({"K of layer 0", "heads that overlap"});
  shape.layers[0].k.head_stride = 0;
  expect_refused({"K of layer 0", "overlap by their stride"});
}

TEST_F(PagePoolTest, PagesThatOverlapAreRefused) {
  shape.layers[0].v.page_stride = kPage / 2;
  expect_refused({"V of layer 0", "overlap by their stride"});
}

TEST_F(PagePoolTest, AStrideThatIsNoMultipleOfAnElementIsRefused) {
  shape.layers[0].k.token_stride = kToken + 1;
  expect_refused({"K of layer 0", "stride of 33 bytes", "multiple"});
}

TEST_F(PagePoolTest, ABaseThatIsNotAlignedToItsElementsIsRefused) {
  ++shape.layers[1].k.base;
  expect_refused({"K of layer 1", "not aligned to elements of 2 bytes"});
}

TEST_F(PagePoolTest, ASideWithoutMemoryIsRefused) {
  shape.layers[1].k.base = nullptr;
  expect_refused({"K of layer 1", "no base"});
}

TEST_F(PagePoolTest, MemoryThatEndsBeforeTheLastPageIsRefused) {
  --shape.layers[1].v.bytes;
  expect_refused({"V of layer 1", "has 2047 bytes", "4 pages take 2048"});
  ++shape.layers[1].v.bytes;
  ++shape.pages;
  expect_refused({"K of layer 0", "5 pages take 2560"});
}

TEST_F(PagePoolTest, MemoryBeyondTheAddressSpaceIsRefused) {
  shape.layers[0].k.page_stride = ~std::size_t{0} / 2;
  expect_refused({"K of layer 0"});
}

TEST_F(PagePoolTest, PoolsOfSeveralLayersThatOverlapAreRefused) {
  shape.layers[1].k.base = shape.layers[0].v.base + kPage;
  expect_refused({"overlaps", "of layer 0", "of layer 1"});
  shape.layers[1].k = side(0);
  expect_refused({"overlaps"});
}

TEST_F(PagePoolTest, KAndVOfOneLayerInTheSameMemoryAreRefused) {
  shape.layers[0].v.base = shape.layers[0].k.base;
  expect_refused({"V of layer 0 overlaps K of layer 0"});
}

// All layers in one block: the pages of a layer lie between those of the others.
TEST_F(PagePoolTest, LayersWovenIntoOneAnotherAsWholePagesAreTaken) {
  std::size_t n = 0;
  for (PoolLayer& layer : shape.layers) {
    for (PoolSide* one : {&layer.k, &layer.v}) {
      one->base = memory.data() + n++ * kPage;
      one->page_stride = 4 * kPage;
      one->bytes = 3 * 4 * kPage + kPage;
    }
  }
  EXPECT_EQ(refusal(), "");
  shape.layers[1].v.base -= kToken;
  expect_refused({"overlaps", "V of layer 1", "K of layer 1"});
}

// K and V of a head side by side in every token.
TEST_F(PagePoolTest, KAndVWovenIntoOneAnotherAsRowsAreTaken) {
  for (std::size_t layer = 0; layer < 2; ++layer) {
    std::byte* base = memory.data() + layer * 2 * kPages * kPage;
    for (PoolSide* one : {&shape.layers[layer].k, &shape.layers[layer].v}) {
      one->base = one == &shape.layers[layer].k ? base : base + kRow;
      one->bytes = 2 * kPages * kPage - (one == &shape.layers[layer].k ? 0 : kRow);
      one->page_stride = 2 * kPage;
      one->token_stride = 2 * kToken;
      one->head_stride = 2 * kRow;
    }
  }
  EXPECT_EQ(refusal(), "");
}

TEST_F(PagePoolTest, VWhereTheNamespaceHasNoneIsRefused) {
  ns.head_dim_v = 0;
  expect_refused({"V of layer 0", "head_dim_v is 0"});
  for (PoolLayer& layer : shape.layers) layer.v = {};
  EXPECT_EQ(refusal(), "");
}

TEST_F(PagePoolTest, RawPagesOfAnotherSizeThanTheNamespaceSaysAreRefused) {
  make_raw();
  ns.raw_bytes += 8;
  expect_refused({"layer 0", "has 1024 bytes a block, raw_bytes is 1032"});
  ns.raw_bytes -= 8;
  shape.layers[1].v.rows = 0;
  expect_refused({"V of layer 1", "no rows"});
  shape.layers[1].v.rows = 16;
  shape.layers[1].v.row_stride = kToken - 1;
  expect_refused({"V of layer 1", "rows that overlap"});
  shape.layers[1].v.row_stride = kToken;
  shape.layers[1].v.row_bytes = ~std::size_t{0} / 2;
  expect_refused({"V of layer 1", "larger than any record"});
}

TEST_F(PagePoolTest, ANamespaceThatIsNoneIsRefusedFirst) {
  ns.kv_heads = 0;
  expect_refused({"kv_heads"});
}

}  // namespace
}  // namespace kvtier::test
