#include "tests/e2e/conformance/engine_pool.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/base/check.h"

namespace kvtier::conformance {
namespace {

constexpr std::byte kUntouched{0xA5};
constexpr std::size_t kAlignment = 64;

float read(const std::byte* at, DType type) {
  if (type == DType::f32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}

// Exactly, as number_of() has it.
void write(std::byte* at, float value, DType type) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (type == DType::f32) {
    std::memcpy(at, &bits, sizeof bits);
  } else {
    const auto half = static_cast<std::uint16_t>(bits >> 16);
    std::memcpy(at, &half, sizeof half);
  }
}

}  // namespace

std::string name(Layout layout) {
  switch (layout) {
    case Layout::planes_nhd:
      return "planes_nhd";
    case Layout::planes_hnd:
      return "planes_hnd";
    case Layout::interleaved_nhd:
      return "interleaved_nhd";
    case Layout::interleaved_hnd:
      return "interleaved_hnd";
    case Layout::woven:
      return "woven";
    case Layout::one_tensor:
      return "one_tensor";
    case Layout::block_first:
      return "block_first";
  }
  return {};
}

float number_of(std::uint32_t layer, bool v, std::uint32_t token, std::uint32_t head,
                std::uint32_t dim) {
  std::uint32_t hash = layer * 2 + (v ? 1 : 0);
  for (const std::uint32_t part : {token, head, dim})
    hash = (hash ^ part) * 2654435761U + (hash >> 15);
  return static_cast<float>(static_cast<int>((hash >> 8) % 255) - 127) / 64.0F;
}

EnginePool::EnginePool(const Namespace& ns, Layout layout, DType type, std::uint32_t pages,
                       std::uint32_t page_tokens)
    : ns_(ns),
      type_(type),
      element_(bytes_of(type)),
      page_tokens_(page_tokens == 0 ? ns.block_tokens : page_tokens) {
  KVTIER_CHECK(type == DType::f32 || type == DType::bf16);
  for (std::uint32_t i = 0; i < ns.layers; ++i) {
    Layer layer;
    layer.shape = layer_shape(ns, i);
    // Raw pages are as those of numbers would be.
    if (layer.shape.format == StorageFormat::raw && layer.shape.kv_heads == 0) {
      layer.shape.kv_heads = 1;
      layer.shape.head_dim_k =
          static_cast<std::uint32_t>(layer.shape.raw_bytes / ns.block_tokens / element_);
    }
    layer.k.dim = layer.shape.head_dim_k;
    layer.v.dim = layer.shape.head_dim_v;
    layers_.push_back(layer);
  }
  lay_out(layout, pages);
  memory_.assign(bytes_ + kAlignment, kUntouched);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  base_ = memory_.data() + (kAlignment - address % kAlignment) % kAlignment;

  PoolShape shape{type, pages, page_tokens, {}};
  for (const Layer& layer : layers_)
    shape.layers.push_back({pool_side(layer, false), pool_side(layer, true)});
  auto made = PagePool::of(ns, std::move(shape));
  KVTIER_CHECK(made.has_value());
  pool_ = std::move(*made);
}

void EnginePool::lay_out(Layout layout, std::uint32_t pages) {
  const bool head_major = layout == Layout::planes_hnd || layout == Layout::interleaved_hnd ||
                          layout == Layout::one_tensor;
  const auto side_bytes = [&](const Layer& layer, const Side& side) {
    return std::size_t{page_tokens_} * layer.shape.kv_heads * side.dim * element_;
  };
  std::size_t page_bytes = 0;  // of a page with all layers
  for (const Layer& layer : layers_)
    page_bytes += side_bytes(layer, layer.k) + side_bytes(layer, layer.v);
  std::size_t in_page = 0;
  for (Layer& layer : layers_) {
    const std::size_t k = side_bytes(layer, layer.k), v = side_bytes(layer, layer.v);
    for (Side* side : {&layer.k, &layer.v}) {
      const std::size_t row = side->dim * element_;
      side->token_stride = head_major ? row : layer.shape.kv_heads * row;
      side->head_stride = head_major ? page_tokens_ * row : row;
    }
    layer.k.offset = bytes_;
    switch (layout) {
      case Layout::planes_nhd:
      case Layout::planes_hnd:
      case Layout::one_tensor:
        layer.k.page_stride = k;
        layer.v.page_stride = v;
        layer.v.offset = bytes_ + pages * k;
        break;
      case Layout::interleaved_nhd:
      case Layout::interleaved_hnd:
        layer.k.page_stride = layer.v.page_stride = k + v;
        layer.v.offset = bytes_ + k;
        break;
      case Layout::woven:
        for (Side* side : {&layer.k, &layer.v}) {
          side->page_stride = k + v;
          side->head_stride = (layer.k.dim + layer.v.dim) * element_;
          side->token_stride = layer.shape.kv_heads * side->head_stride;
        }
        layer.v.offset = bytes_ + layer.k.dim * element_;
        break;
      case Layout::block_first:
        layer.k.page_stride = layer.v.page_stride = page_bytes;
        layer.k.offset = in_page;
        layer.v.offset = in_page + k;
        in_page += k + v;
        continue;
    }
    bytes_ += pages * (k + v);
  }
  if (layout == Layout::block_first) bytes_ = pages * page_bytes;
}

PoolSide EnginePool::pool_side(const Layer& layer, bool v) const {
  const Side& side = v ? layer.v : layer.k;
  if (side.dim == 0) return {};
  if (layer.shape.format == StorageFormat::raw) return raw_side(layer, v);
  return {.base = base_ + side.offset,
          .bytes = bytes_ - side.offset,
          .page_stride = side.page_stride,
          .token_stride = side.token_stride,
          .head_stride = side.head_stride};
}

// In as few rows as its numbers lie in.
PoolSide EnginePool::raw_side(const Layer& layer, bool v) const {
  const Side& side = v ? layer.v : layer.k;
  const std::size_t row = side.dim * element_;
  const bool woven = std::min(side.head_stride, side.token_stride) > row;
  const std::size_t rows = std::size_t{page_tokens_} * layer.shape.kv_heads;
  return {.base = base_ + side.offset,
          .bytes = bytes_ - side.offset,
          .page_stride = side.page_stride,
          .rows = woven ? static_cast<std::uint32_t>(rows) : 1,
          .row_bytes = woven ? row : rows * row,
          .row_stride = side.head_stride};
}

template <class F>
void EnginePool::for_each_number(std::span<const std::uint32_t> numbers, const F& f) const {
  for (std::uint32_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    for (const bool v : {false, true}) {
      const Side& side = v ? layer.v : layer.k;
      for (std::uint32_t page = 0; page < numbers.size() && side.dim > 0; ++page) {
        for (std::uint32_t token = 0; token < page_tokens_; ++token) {
          for (std::uint32_t head = 0; head < layer.shape.kv_heads; ++head) {
            const std::size_t at = side.offset + numbers[page] * side.page_stride +
                                   token * side.token_stride + head * side.head_stride;
            for (std::uint32_t i = 0; i < side.dim; ++i)
              f(at + i * element_, number_of(l, v, page * page_tokens_ + token, head, i));
          }
        }
      }
    }
  }
}

void EnginePool::fill(std::span<const std::uint32_t> numbers) {
  for_each_number(numbers, [&](std::size_t at, float value) { write(base_ + at, value, type_); });
}

void EnginePool::mark(std::span<const std::uint32_t> numbers, std::vector<bool>& touched) const {
  for_each_number(numbers, [&](std::size_t at, float) {
    for (std::size_t i = 0; i < element_; ++i) touched[at + i] = true;
  });
}

std::string EnginePool::check(std::span<const std::uint32_t> numbers, const Bound& bound) const {
  std::string wrong;
  std::vector<bool> touched(bytes_);
  mark(numbers, touched);
  for_each_number(numbers, [&](std::size_t at, float value) {
    const float got = read(base_ + at, type_);
    const double most = std::abs(value) * bound.of_value + 2.0 * bound.of_most;
    if (wrong.empty() && !(std::abs(double{got} - value) <= most)) {
      wrong = "byte " + std::to_string(at) + " has " + std::to_string(got) + " instead of " +
              std::to_string(value);
    }
  });
  for (std::size_t at = 0; at < bytes_ && wrong.empty(); ++at) {
    if (!touched[at] && base_[at] != kUntouched)
      wrong = "byte " + std::to_string(at) + ", of no page that was named, has changed";
  }
  return wrong;
}

std::string EnginePool::check_raw(std::span<const std::uint32_t> numbers, const EnginePool& other,
                                  std::span<const std::uint32_t> others) const {
  std::vector<std::size_t> here, there;
  for_each_number(numbers, [&](std::size_t at, float) { here.push_back(at); });
  other.for_each_number(others, [&](std::size_t at, float) { there.push_back(at); });
  if (here.size() != there.size()) return "the pools are not alike";
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (std::memcmp(base_ + here[i], other.base_ + there[i], element_) != 0)
      return "byte " + std::to_string(here[i]) + " is not that of the other pool";
  }
  return check(numbers, {});
}

}  // namespace kvtier::conformance
