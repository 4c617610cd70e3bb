// An engine's KV memory in each layout in use, filled with numbers that say where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvtier/page_pool.h"

namespace kvtier::conformance {

enum class Layout : std::uint8_t {
  planes_nhd,       // a tensor a layer: K of all pages, then V; [token][head][dim]
  planes_hnd,       // likewise; [head][token][dim]
  interleaved_nhd,  // a tensor a layer: pages of K and then V; [token][head][dim]
  interleaved_hnd,  // likewise; [head][token][dim]
  woven,            // a tensor a layer: K and V of a head side by side; [token][head][K, V]
  one_tensor,       // all layers in one tensor, layer after layer; [head][token][dim]
  block_first       // a page has all layers, each with K and then V; [token][head][dim]
};
inline constexpr Layout kLayouts[] = {
    Layout::planes_nhd, Layout::planes_hnd, Layout::interleaved_nhd, Layout::interleaved_hnd,
    Layout::woven,      Layout::one_tensor, Layout::block_first};
std::string name(Layout layout);

// A multiple of 1/64 between -2 and 2, which f32, f16 and bf16 have exactly.
float number_of(std::uint32_t layer, bool v, std::uint32_t token, std::uint32_t head,
                std::uint32_t dim);

class EnginePool {
 public:
  // Of `pages` pages of `page_tokens` tokens (0: a block); all bytes are 0xA5.
  EnginePool(const Namespace& ns, Layout layout, DType type, std::uint32_t pages,
             std::uint32_t page_tokens);

  const PagePool& pool() const noexcept { return *pool_; }

  // Blocks 0, 1, ... of a prefix are in the pages `numbers`: block b, token t has the numbers of
  // token b * block_tokens + t.
  void fill(std::span<const std::uint32_t> numbers);
  // How far the numbers that are there may be from those of fill().
  struct Bound {
    double of_value = 0;  // times |x|
    double of_most = 0;   // times the largest number there is
  };
  // Empty, or what is the matter. Also that no other byte has changed.
  std::string check(std::span<const std::uint32_t> numbers, const Bound& bound) const;
  // The same bytes as `other`, which has the same layout, in the pages named.
  std::string check_raw(std::span<const std::uint32_t> numbers, const EnginePool& other,
                        std::span<const std::uint32_t> others) const;

 private:
  struct Side {
    std::size_t offset = 0;  // in memory_
    std::size_t page_stride = 0, token_stride = 0, head_stride = 0;
    std::uint32_t dim = 0;
  };
  struct Layer {
    LayerShape shape;
    Side k, v;
  };

  void lay_out(Layout layout, std::uint32_t pages);
  PoolSide pool_side(const Layer& layer, bool v) const;
  PoolSide raw_side(const Layer& layer, bool v) const;
  template <class F>
  void for_each_number(std::span<const std::uint32_t> numbers, const F& f) const;
  void mark(std::span<const std::uint32_t> numbers, std::vector<bool>& touched) const;

  const Namespace ns_;
  const DType type_;
  const std::size_t element_;
  std::uint32_t page_tokens_;
  std::vector<Layer> layers_;
  std::vector<std::byte> memory_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::optional<PagePool> pool_;
};

}  // namespace kvtier::conformance
