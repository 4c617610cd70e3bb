// Every layout of pages in use, with every storage format and page type: the record's bytes are the
// reference's, and what is loaded is what is stored.
#include <algorithm>
#include <numeric>

#include "tests/kernels/isa.h"
#include "tests/kernels/kv_sequence.h"
#include "tests/kernels/reference_head.h"

namespace kvtier::kernels {
namespace {

// Where K and V lie in one allocation, in numbers.
struct Layout {
  const char* name;
  std::uint32_t page_tokens;
  std::size_t page_stride;
  std::size_t v_offset;
  std::size_t k_token_stride, k_head_stride;
  std::size_t v_token_stride, v_head_stride;
};

std::vector<Layout> layouts_of(const KvShape& s, std::size_t pages) {
  const std::size_t t = s.block_tokens;
  const std::size_t h = s.kv_heads;
  const std::size_t k = s.head_dim_k;
  const std::size_t v = s.head_dim_v;
  const std::size_t both = h * (k + v);
  std::vector<Layout> layouts = {
      {"head-major, K and V apart", s.block_tokens, t * h * std::max(k, v),
       pages * t * h * std::max(k, v), k, t * k, v, t * v},
      {"token-major, K and V side by side", s.block_tokens, t * both, t * h * k, h * k, k, h * v,
       v},
      {"K and V of a token together", s.block_tokens, t * both, h * k, both, k, both, v},
      {"K and V of a head together", s.block_tokens, t * both, k, both, k + v, both, k + v},
      {"pages of a token", 1, both, h * k, 0, k, 0, v},
      {"rows with room between them", s.block_tokens, t * (both + 3 * h), h * (k + 1), both + 3 * h,
       k + 1, both + 3 * h, v + 2},
  };
  if (s.block_tokens % 4 == 0) {
    layouts.push_back({"four pages a block", s.block_tokens / 4, t / 4 * both, t / 4 * h * k, h * k,
                       k, h * v, v});
  }
  return layouts;
}

// One allocation of pages in a layout, some of them in shuffled order the call's.
struct Pool {
  Pool(const KvShape& s, const Layout& l, std::uint32_t block_count, DType page_type)
      : shape(s), layout(l), blocks(block_count), type(page_type) {
    const std::size_t pages = std::size_t{blocks} * s.block_tokens / l.page_tokens;
    numbers.resize(pages);
    std::iota(numbers.begin(), numbers.end(), 0U);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(5));
    const std::size_t room = l.v_offset + pages * l.page_stride;
    bytes.assign(room * bytes_of(type), kPoison);
  }

  std::size_t index(bool v, std::size_t block, std::size_t head, std::size_t token,
                    std::size_t channel) const {
    const std::size_t page = (block * shape.block_tokens + token) / layout.page_tokens;
    return (v ? layout.v_offset : 0) + numbers[page] * layout.page_stride +
           token % layout.page_tokens * (v ? layout.v_token_stride : layout.k_token_stride) +
           head * (v ? layout.v_head_stride : layout.k_head_stride) + channel;
  }

  BlockLayerArgs args(const LayerLayout& of_layer, std::vector<std::byte*>& records) {
    const auto side = [&](std::size_t offset, std::size_t token, std::size_t head) {
      const std::size_t element = bytes_of(type);
      return PageSide{.base = bytes.data() + offset * element,
                      .page_stride = layout.page_stride * element,
                      .numbers = numbers.data(),
                      .token_stride = token * element,
                      .head_stride = head * element};
    };
    return {.layout = &of_layer,
            .blocks = blocks,
            .page_tokens = layout.page_tokens,
            .page_type = type,
            .k = side(0, layout.k_token_stride, layout.k_head_stride),
            .v = side(layout.v_offset, layout.v_token_stride, layout.v_head_stride),
            .records = records.data()};
  }

  // One head's numbers, [token][channel].
  std::vector<float> head(bool v, std::size_t block, std::size_t head_index) const {
    const auto all = unpacked(bytes, type);
    std::vector<float> values;
    for (std::size_t token = 0; token < shape.block_tokens; ++token) {
      for (std::size_t d = 0; d < (v ? shape.head_dim_v : shape.head_dim_k); ++d) {
        values.push_back(all[index(v, block, head_index, token, d)]);
      }
    }
    return values;
  }

  KvShape shape;
  Layout layout;
  std::uint32_t blocks;
  DType type;
  std::vector<std::uint32_t> numbers;
  std::vector<std::byte> bytes;
};

struct Records {
  Records(const KvShape& shape, std::uint32_t blocks) : layout(shape.layout()) {
    bytes.assign(blocks, std::vector<std::byte>(layout.record_bytes, kPoison));
    for (auto& record : bytes) pointers.push_back(record.data());
  }
  RecordLayout layout;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::byte*> pointers;
};

StoredHead stored_head(const Records& records, std::size_t block, bool v, std::size_t head) {
  const LayerLayout layer = records.layout.layer(1);
  const std::byte* record = records.bytes[block].data();
  const std::size_t at = v ? layer.v_offset(head) : layer.k_offset(head);
  StoredHead stored;
  stored.bytes.assign(record + at, record + at + (v ? layer.v_head_bytes : layer.k_head_bytes));
  if (has_scales(layer.format)) {
    std::memcpy(&stored.scale, record + layer.scale_offset(v, head), sizeof stored.scale);
  }
  return stored;
}

class PageLayouts : public EveryIsa {
 protected:
  static constexpr std::uint32_t kBlocks = 3;

  // f(v, block, head) for every head of every block.
  template <typename F>
  static void for_each_head(const KvShape& shape, const F& f) {
    for (std::size_t block = 0; block < kBlocks; ++block) {
      for (std::size_t head = 0; head < shape.kv_heads; ++head) {
        f(false, block, head);
        if (shape.head_dim_v != 0) f(true, block, head);
      }
    }
  }

  void expect_reference_both_ways(const KvShape& shape, const Layout& layout, DType type) {
    Pool pool(shape, layout, kBlocks, type);
    pool.bytes = packed(random_floats(pool.bytes.size() / bytes_of(type), 3, 2), type);
    Records records(shape, kBlocks);
    const LayerLayout of_layer = records.layout.layer(1);
    kernels().quantise_and_scatter(pool.args(of_layer, records.pointers));
    Pool back(shape, layout, kBlocks, type);
    auto expected = back.bytes;
    for_each_head(shape, [&](bool v, std::size_t block, std::size_t head) {
      const HeadShape one{shape.format, shape.block_tokens, v ? shape.head_dim_v : shape.head_dim_k,
                          v};
      const StoredHead stored = stored_head(records, block, v, head);
      const StoredHead reference = reference_head(one, pool.head(v, block, head));
      ASSERT_EQ(stored.scale, reference.scale) << layout.name;
      ASSERT_EQ(stored.bytes, reference.bytes) << layout.name << (v ? ", V" : ", K");
      for (std::size_t token = 0; token < one.tokens; ++token) {
        for (std::size_t d = 0; d < one.dim; ++d) {
          const auto element =
              packed({reference_value(one, stored.bytes.data(), stored.scale, token, d)}, type);
          std::copy(element.begin(), element.end(),
                    expected.begin() + static_cast<std::ptrdiff_t>(
                                           back.index(v, block, head, token, d) * bytes_of(type)));
        }
      }
    });
    kernels().gather_and_dequantise(back.args(of_layer, records.pointers));
    ASSERT_EQ(back.bytes, expected) << layout.name;
  }

  void expect_reference(const KvShape& base) {
    for (const StorageFormat format : kFormats) {
      for (const DType type : kPageTypes) {
        KvShape shape = base;
        shape.format = format;
        SCOPED_TRACE(std::string(name(format)) + ", pages of type " +
                     std::to_string(static_cast<int>(type)));
        for (const Layout& layout : layouts_of(shape, kBlocks)) {
          expect_reference_both_ways(shape, layout, type);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};
KVTIER_FOR_EVERY_ISA(PageLayouts);

TEST_P(PageLayouts, OfBlocksOf16AreStoredAndLoadedAsTheReferenceSays) {
  expect_reference({.kv_heads = 2, .head_dim_k = 72, .head_dim_v = 40});
}

TEST_P(PageLayouts, OfOddHeadsInBlocksOf15AreStoredAndLoadedAsTheReferenceSays) {
  expect_reference({.kv_heads = 3, .head_dim_k = 33, .head_dim_v = 7, .block_tokens = 15});
}

TEST_P(PageLayouts, OfBlocksOfOneTokenAreStoredAndLoadedAsTheReferenceSays) {
  expect_reference({.kv_heads = 2, .head_dim_k = 64, .head_dim_v = 33, .block_tokens = 1});
}

TEST_P(PageLayouts, OfBlocksOf40AreStoredAndLoadedAsTheReferenceSays) {
  expect_reference({.kv_heads = 1, .head_dim_k = 24, .head_dim_v = 36, .block_tokens = 40});
}

TEST_P(PageLayouts, OfTheLongestBlocksAreStoredAndLoadedAsTheReferenceSays) {
  expect_reference({.kv_heads = 1, .head_dim_k = 8, .head_dim_v = 5, .block_tokens = 1024});
}

TEST_P(PageLayouts, OfLatentPagesWithoutVAreStoredAndLoadedAsTheReferenceSays) {
  expect_reference({.kv_heads = 1, .head_dim_k = 576, .head_dim_v = 0});
}

}  // namespace
}  // namespace kvtier::kernels
