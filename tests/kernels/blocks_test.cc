#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/isa.h"
#include "tests/kernels/kv_sequence.h"
#include "tests/kernels/reference_head.h"

namespace kvtier::kernels {
namespace {

// Some blocks' pages of one type, and a record for each, all poisoned.
struct Blocks {
  Blocks(const KvShape& kv_shape, std::uint32_t count, DType type)
      : shape(kv_shape), layout(kv_shape.layout()), page_type(type) {
    for (std::uint32_t i = 0; i < count; ++i) {
      k.emplace_back(shape.k_page_elements() * bytes_of(type), kPoison);
      v.emplace_back(shape.v_page_elements() * bytes_of(type), kPoison);
      records.emplace_back(layout.record_bytes, kPoison);
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      k_pages.push_back(k[i].data());
      v_pages.push_back(v[i].data());
      record_pages.push_back(records[i].data());
    }
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  void fill_pages(float deviation) {
    for (std::size_t i = 0; i < k.size(); ++i) {
      k[i] = packed(random_floats(shape.k_page_elements(), static_cast<unsigned>(i), deviation),
                    page_type);
      v[i] =
          packed(random_floats(shape.v_page_elements(), static_cast<unsigned>(i + 99), deviation),
                 page_type);
      k_pages[i] = k[i].data();
      v_pages[i] = v[i].data();
    }
  }

  BlockLayerArgs args(std::uint32_t layer) {
    of_layer = layout.layer(layer);
    return {.layout = &of_layer,
            .blocks = static_cast<std::uint32_t>(k.size()),
            .page_tokens = shape.block_tokens,
            .page_type = page_type,
            .k = head_major(k_pages.data(), shape.block_tokens, shape.head_dim_k, page_type),
            .v = head_major(v_pages.data(), shape.block_tokens, shape.head_dim_v, page_type),
            .records = record_pages.data()};
  }

  KvShape shape;
  RecordLayout layout;
  LayerLayout of_layer;
  DType page_type;
  std::vector<std::vector<std::byte>> k, v, records;
  std::vector<void*> k_pages, v_pages;
  std::vector<std::byte*> record_pages;
};

void expect_side_within_bounds(const Blocks& blocks, std::size_t block, std::uint32_t layer,
                               bool v) {
  const std::size_t dim = v ? blocks.shape.head_dim_v : blocks.shape.head_dim_k;
  const auto exact = unpacked((v ? blocks.v : blocks.k)[block], blocks.page_type);
  const std::size_t head_elements = blocks.shape.block_tokens * dim;
  for (std::size_t head = 0; head < blocks.shape.kv_heads; ++head) {
    const auto first = exact.begin() + static_cast<std::ptrdiff_t>(head * head_elements);
    const std::vector<float> values(first, first + static_cast<std::ptrdiff_t>(head_elements));
    const HeadShape shape{blocks.layout.format, blocks.shape.block_tokens, dim, v};
    const double head_amax = std::abs(*std::max_element(
        values.begin(), values.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
    for (std::size_t i = 0; i < head_elements; ++i) {
      const double stored = stored_value(blocks.layout, blocks.records[block].data(), layer, v,
                                         head, i / dim, i % dim);
      const double amax = group_amax(shape, values, i / dim, i % dim);
      ASSERT_NEAR(stored, values[i], error_bound(shape.format, values[i], amax, head_amax));
    }
  }
}

class BlockKernels : public EveryIsa {};
KVTIER_FOR_EVERY_ISA(BlockKernels);

TEST_P(BlockKernels, StoredValuesAreWithinTheBoundOfTheFormatForEveryShape) {
  for (const StorageFormat format : kFormats) {
    for (const DType page_type : kPageTypes) {
      for (const KvShape& base :
           {KvShape{.kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64},
            KvShape{.kv_heads = 3, .head_dim_k = 24, .head_dim_v = 8},
            KvShape{.kv_heads = 1, .head_dim_k = 72, .head_dim_v = 40, .block_tokens = 1}}) {
        KvShape shape = base;
        shape.format = format;
        Blocks blocks(shape, 3, page_type);
        blocks.fill_pages(4);
        kernels().quantise_and_scatter(blocks.args(1));
        for (std::size_t block = 0; block < 3; ++block) {
          expect_side_within_bounds(blocks, block, 1, false);
          expect_side_within_bounds(blocks, block, 1, true);
        }
      }
    }
  }
}

TEST_P(BlockKernels, GatherGivesTheStoredValuesRoundedToThePageType) {
  for (const StorageFormat format : kFormats) {
    for (const DType page_type : kPageTypes) {
      Blocks blocks({.kv_heads = 2, .head_dim_k = 40, .head_dim_v = 24, .format = format}, 5,
                    page_type);
      blocks.fill_pages(2);
      kernels().quantise_and_scatter(blocks.args(0));
      Blocks back(blocks.shape, 5, page_type);
      back.records = blocks.records;
      for (std::size_t i = 0; i < 5; ++i) back.record_pages[i] = back.records[i].data();
      kernels().gather_and_dequantise(back.args(0));
      for (std::size_t block = 0; block < 5; ++block) {
        std::vector<float> stored;
        for (std::size_t i = 0; i < blocks.shape.k_page_elements(); ++i) {
          stored.push_back(stored_value(blocks.layout, blocks.records[block].data(), 0, false,
                                        i / (16 * 40), i / 40 % 16, i % 40));
        }
        ASSERT_EQ(back.k[block], packed(stored, page_type));
      }
    }
  }
}

TEST_P(BlockKernels, EveryByteOfTheLayerIsWrittenAndNoOther) {
  for (const StorageFormat format : kFormats) {
    const KvShape shape{
        .kv_heads = 3, .head_dim_k = 24, .head_dim_v = 8, .format = format, .layers = 3};
    Blocks blocks(shape, 2, DType::f32);
    blocks.fill_pages(1);
    kernels().quantise_and_scatter(blocks.args(1));
    // The same input over another poison: what differs was not written.
    Blocks other(shape, 2, DType::f32);
    other.fill_pages(1);
    for (auto& record : other.records) std::fill(record.begin(), record.end(), ~kPoison);
    kernels().quantise_and_scatter(other.args(1));

    const RecordLayout& layout = blocks.layout;
    const std::size_t payload = layout.k_offset(1, 0);
    const std::size_t scales = layout.scale_offset(1, false, 0);
    for (std::size_t i = 0; i < layout.record_bytes; ++i) {
      const bool in_payload = i >= payload && i < payload + layout.layer_bytes;
      const bool in_scales =
          has_scales(format) && i >= scales && i < scales + 2 * shape.kv_heads * sizeof(float);
      if (in_payload || in_scales) {
        ASSERT_EQ(blocks.records[1][i], other.records[1][i]) << "not written: " << i;
      } else {
        ASSERT_EQ(blocks.records[1][i], kPoison) << "written: " << i;
        ASSERT_EQ(other.records[1][i], ~kPoison) << "written: " << i;
      }
    }
  }
}

TEST_P(BlockKernels, GatherWritesEveryElementOfAPageAndNothingBeyond) {
  Blocks blocks({.kv_heads = 3, .head_dim_k = 24, .head_dim_v = 8}, 2, DType::f16);
  blocks.fill_pages(1);
  kernels().quantise_and_scatter(blocks.args(0));
  for (std::size_t i = 0; i < 2; ++i) {
    blocks.k[i].assign(blocks.k[i].size() + 2, std::byte{0x7F});  // NaN in every element
    blocks.v[i].assign(blocks.v[i].size() + 2, std::byte{0x7F});
    blocks.k_pages[i] = blocks.k[i].data();
    blocks.v_pages[i] = blocks.v[i].data();
  }
  kernels().gather_and_dequantise(blocks.args(0));
  for (const auto* pages : {&blocks.k, &blocks.v}) {
    for (const auto& page : *pages) {
      const auto values = unpacked(page, DType::f16);
      EXPECT_TRUE(std::isnan(values.back()));
      EXPECT_TRUE(
          std::none_of(values.begin(), values.end() - 1, [](float x) { return std::isnan(x); }));
    }
  }
}

TEST_P(BlockKernels, EveryIsaWritesTheSameRecord) {
  for (const StorageFormat format : kFormats) {
    const KvShape shape{.kv_heads = 2, .head_dim_k = 40, .head_dim_v = 72, .format = format};
    Blocks mine(shape, 4, DType::bf16);
    Blocks reference(shape, 4, DType::bf16);
    mine.fill_pages(3);
    reference.fill_pages(3);
    kernels().quantise_and_scatter(mine.args(0));
    portable().quantise_and_scatter(reference.args(0));
    EXPECT_EQ(mine.records, reference.records);
  }
}

// One block of one head, the same numbers as K and as V; those not given are 0.
class OneHead : public EveryIsa {
 protected:
  void store(std::vector<float> values, StorageFormat format) {
    values.resize(16 * 8);
    layout_ = KvShape{.kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8, .format = format}.layout();
    record_.assign(layout_.record_bytes, kPoison);
    void* page = values.data();
    std::byte* record = record_.data();
    const LayerLayout layer = layout_.layer(0);
    const PageSide side = head_major(&page, 16, 8, DType::f32);
    kernels().quantise_and_scatter({.layout = &layer,
                                    .blocks = 1,
                                    .page_tokens = 16,
                                    .page_type = DType::f32,
                                    .k = side,
                                    .v = side,
                                    .records = &record});
  }
  float scale() const {
    float value = 0;
    std::memcpy(&value, record_.data() + layout_.scale_offset(0, false, 0), sizeof value);
    return value;
  }
  std::byte code(std::size_t index) const { return record_[layout_.k_offset(0, 0) + index]; }
  float stored(std::size_t index) const {
    return stored_value(layout_, record_.data(), 0, false, 0, index / 8, index % 8);
  }

 private:
  RecordLayout layout_;
  std::vector<std::byte> record_;
};
KVTIER_FOR_EVERY_ISA(OneHead);

TEST_P(OneHead, TheLargestElementBecomesTheLargestFiniteValue) {
  for (const float amax : {1.0F, 0.3F, 447.9F, 1e-20F, 3e30F, 7.0F / 3}) {
    store({-amax, amax / 2, 0.0F, -0.0F}, StorageFormat::fp8_e4m3);
    EXPECT_EQ(code(0), std::byte{0xFE});
    EXPECT_EQ(code(2), std::byte{0x00});
    EXPECT_EQ(code(3), std::byte{0x80});
    EXPECT_EQ(scale(), amax / 448.0F);
    store({amax}, StorageFormat::fp8_e5m2);
    EXPECT_EQ(code(0), std::byte{0x7B});
    EXPECT_EQ(scale(), amax / 57344.0F);
  }
}

TEST_P(OneHead, ZerosHaveAScaleOfOne) {
  store({0.0F, -0.0F}, StorageFormat::fp8_e4m3);
  EXPECT_EQ(scale(), 1.0F);
  EXPECT_EQ(code(0), std::byte{0x00});
  EXPECT_EQ(code(1), std::byte{0x80});
}

TEST_P(OneHead, NanStaysNanAndDoesNotSpoilItsNeighbours) {
  store({std::nanf(""), 3.0F, -1.5F}, StorageFormat::fp8_e4m3);
  EXPECT_TRUE(std::isnan(stored(0)));
  EXPECT_FLOAT_EQ(stored(1), 3.0F);
  EXPECT_FLOAT_EQ(stored(2), -1.5F);
  store({std::nanf(""), -std::nanf("")}, StorageFormat::fp8_e5m2);
  EXPECT_EQ(scale(), 1.0F);
  EXPECT_TRUE(std::isnan(stored(1)));
}

TEST_P(OneHead, InfinitiesAreStoredAsTheLargestFloat) {
  for (const StorageFormat format : {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2}) {
    store({std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), 1.0F},
          format);
    EXPECT_EQ(stored(0), std::numeric_limits<float>::max());
    EXPECT_EQ(stored(1), -std::numeric_limits<float>::max());
    EXPECT_EQ(stored(2), 0.0F);
  }
}

TEST_P(OneHead, NumbersTooSmallForANormalScaleLoseOnlyPrecision) {
  constexpr float kLeastNormal = std::numeric_limits<float>::min();
  store({kLeastNormal * 3, std::numeric_limits<float>::denorm_min()}, StorageFormat::fp8_e4m3);
  EXPECT_EQ(scale(), kLeastNormal);
  EXPECT_EQ(stored(0), kLeastNormal * 3);
  EXPECT_EQ(stored(1), 0.0F);
}

}  // namespace
}  // namespace kvtier::kernels
