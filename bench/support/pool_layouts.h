// The page layouts of engines, as pools over memory that a test or a benchmark has.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvtier/page_pool.h"

namespace kvtier::bench {

enum class Layout : std::uint8_t {
  apart_nhd,     // a layer: [K, V][page][token][head][dim]
  apart_hnd,     // a layer: [K, V][page][head][token][dim]
  beside_nhd,    // a layer: [page][K, V][token][head][dim]
  all_layers,    // [page][layer][K, V][token][head][dim]
  small_pages,   // as apart_nhd, a block being four pages
  single_token,  // as apart_nhd, a page being one token
};
inline constexpr std::array kLayouts{Layout::apart_nhd,  Layout::apart_hnd,   Layout::beside_nhd,
                                     Layout::all_layers, Layout::small_pages, Layout::single_token};

inline const char* name(Layout layout) {
  switch (layout) {
    case Layout::apart_nhd:
      return "apart_nhd";
    case Layout::apart_hnd:
      return "apart_hnd";
    case Layout::beside_nhd:
      return "beside_nhd";
    case Layout::all_layers:
      return "all_layers";
    case Layout::small_pages:
      return "small_pages";
    case Layout::single_token:
      return "single_token";
  }
  return "?";
}

inline std::uint32_t page_tokens(Layout layout, std::uint32_t block_tokens) {
  if (layout == Layout::small_pages) return block_tokens / 4;
  return layout == Layout::single_token ? 1 : block_tokens;
}

// Raw bytes of one block of such a layer, for namespaces of format raw.
inline std::uint32_t raw_bytes_of(std::uint32_t block_tokens, std::uint32_t heads,
                                  std::uint32_t dim_k, std::uint32_t dim_v, DType type) {
  return static_cast<std::uint32_t>(block_tokens * heads * (dim_k + dim_v) * bytes_of(type));
}

// What a layer's pages hold, whatever the format of their records.
struct PageShape {
  std::uint32_t heads = 0, dim_k = 0, dim_v = 0;
};

// Lays pools out: the same places behind any base.
class PoolPlan {
 public:
  // `shapes`: of each layer. `gap`: bytes between layers, so that they are not aligned as memory
  // is.
  PoolPlan(Layout layout, std::vector<PageShape> shapes, std::uint32_t block_tokens, DType type,
           std::uint32_t pages, std::size_t gap = 0)
      : layout_(layout),
        shapes_(std::move(shapes)),
        tokens_(page_tokens(layout, block_tokens)),
        type_(type),
        pages_(pages),
        gap_(gap) {
    for (const PageShape& shape : shapes_) page_bytes_ += gap_ + layer_page_bytes(shape);
  }

  std::size_t bytes() const { return page_bytes_ * pages_; }

  PoolShape at(std::byte* base) const {
    PoolShape pool{.type = type_, .pages = pages_, .page_tokens = tokens_, .layers = {}};
    std::size_t before = 0;  // bytes of a page's earlier layers
    for (const PageShape& shape : shapes_) {
      before += gap_;
      pool.layers.push_back(layer_at(base, before, shape));
      before += layer_page_bytes(shape);
    }
    return pool;
  }

 private:
  std::size_t side_bytes(const PageShape& shape, std::uint32_t dim) const {
    return std::size_t{tokens_} * shape.heads * dim * bytes_of(type_);
  }
  std::size_t layer_page_bytes(const PageShape& shape) const {
    return side_bytes(shape, shape.dim_k) + side_bytes(shape, shape.dim_v);
  }

  PoolLayer layer_at(std::byte* base, std::size_t before, const PageShape& shape) const {
    const std::size_t k_bytes = side_bytes(shape, shape.dim_k);
    const std::size_t v_bytes = side_bytes(shape, shape.dim_v);
    std::byte* k = base + before * pages_;
    std::byte* v = k + k_bytes * pages_;
    std::size_t k_stride = k_bytes;
    std::size_t v_stride = v_bytes;
    if (layout_ == Layout::beside_nhd) {
      v = k + k_bytes;
      k_stride = v_stride = k_bytes + v_bytes;
    } else if (layout_ == Layout::all_layers) {
      k = base + before;
      v = k + k_bytes;
      k_stride = v_stride = page_bytes_;
    }
    PoolLayer layer{.k = side_at(k, k_stride, shape, shape.dim_k), .v = {}};
    if (shape.dim_v != 0) layer.v = side_at(v, v_stride, shape, shape.dim_v);
    return layer;
  }

  PoolSide side_at(std::byte* at, std::size_t stride, const PageShape& shape,
                   std::uint32_t dim) const {
    const std::size_t row = dim * bytes_of(type_);
    const bool by_head = layout_ == Layout::apart_hnd;
    PoolSide side{.base = at,
                  .bytes = (pages_ - 1) * stride + side_bytes(shape, dim),
                  .page_stride = stride,
                  .token_stride = by_head ? row : row * shape.heads,
                  .head_stride = by_head ? row * tokens_ : row};
    // What raw records have of a page: all of it.
    side.rows = 1;
    side.row_bytes = side_bytes(shape, dim);
    return side;
  }

  Layout layout_;
  std::vector<PageShape> shapes_;
  std::uint32_t tokens_;
  DType type_;
  std::uint32_t pages_;
  std::size_t gap_;
  std::size_t page_bytes_ = 0;  // of all layers
};

}  // namespace kvtier::bench
