#include "kvtier/page_pool.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/base/check.h"

namespace kvtier {
namespace {

// Memory that a page or a part of it takes, one dimension after the other.
struct Dimension {
  const char* what;
  std::size_t count;
  std::size_t stride;
};

// A side, from its base on: `innermost` bytes that lie together, repeated along each dimension.
struct Shape {
  std::size_t innermost = 0;
  std::vector<Dimension> dimensions;  // those of more than one, by growing stride

  Shape(std::size_t bytes, std::vector<Dimension> all)
      : innermost(bytes), dimensions(std::move(all)) {
    std::erase_if(dimensions, [](const Dimension& d) { return d.count <= 1; });
    std::ranges::sort(dimensions, {}, &Dimension::stride);
  }

  // What overlaps, since no two elements may share a byte: by growing strides each dimension must
  // step over all of those before. Null: nothing does.
  const char* overlap() const {
    std::size_t bytes = innermost;
    for (const Dimension& d : dimensions) {
      // Also what would not fit a number.
      if (d.stride < bytes || d.stride > std::numeric_limits<std::size_t>::max() / 4 / d.count)
        return d.what;
      bytes += (d.count - 1) * d.stride;
    }
    return nullptr;
  }
  // From the first byte to behind the last, of the `inner` first dimensions.
  std::size_t bytes(std::size_t inner) const {
    std::size_t all = innermost;
    for (std::size_t i = 0; i < inner; ++i) all += (dimensions[i].count - 1) * dimensions[i].stride;
    return all;
  }
  std::size_t bytes() const { return bytes(dimensions.size()); }
};

// Where a side of a layer lies.
struct Extent {
  std::string name;
  std::uintptr_t begin;
  Shape shape;

  std::uintptr_t end() const { return begin + shape.bytes(); }
};

// Whether b, which begins `apart` behind a, may share a byte with it, of both the `inner` first
// dimensions. Woven into one another are sides that have the same strides: within one stride, and
// so everywhere, neither touches the other. Of others only those that lie apart are taken.
bool meet(const Shape& a, const Shape& b, std::size_t inner, std::ptrdiff_t apart) {
  if (apart >= static_cast<std::ptrdiff_t>(a.bytes(std::min(inner, a.dimensions.size()))) ||
      apart + static_cast<std::ptrdiff_t>(b.bytes(std::min(inner, b.dimensions.size()))) <= 0)
    return false;
  if (inner == 0 || inner > a.dimensions.size() || inner > b.dimensions.size()) return true;
  const auto stride = static_cast<std::ptrdiff_t>(a.dimensions[inner - 1].stride);
  if (stride != static_cast<std::ptrdiff_t>(b.dimensions[inner - 1].stride)) return true;
  const std::ptrdiff_t within = ((apart % stride) + stride) % stride;
  return meet(a, b, inner - 1, within) || meet(a, b, inner - 1, within - stride);
}

bool overlap(const Extent& a, const Extent& b) {
  if (a.end() <= b.begin || b.end() <= a.begin) return false;
  if (a.shape.dimensions.size() == b.shape.dimensions.size())
    return meet(a.shape, b.shape, a.shape.dimensions.size(),
                static_cast<std::ptrdiff_t>(b.begin - a.begin));
  // Side by side in the same pages.
  const auto pages = [](const Shape& s) {
    return s.dimensions.empty() ? 0 : s.dimensions.back().stride;
  };
  const std::size_t stride = pages(a.shape);
  if (stride == 0 || stride != pages(b.shape)) return true;
  const std::size_t in_a = a.shape.bytes(a.shape.dimensions.size() - 1);
  const std::size_t in_b = b.shape.bytes(b.shape.dimensions.size() - 1);
  const std::size_t apart = (b.begin - a.begin) % stride;
  return apart < in_a || apart + in_b > stride;
}

class Checker {
 public:
  Checker(const Namespace& ns, const PoolShape& shape) : ns_(ns), shape_(shape) {}

  Result<void> run() {
    if (shape_.pages == 0) return refused("has no pages");
    if (ns_.block_tokens % shape_.page_tokens != 0) {
      return refused("has pages of " + std::to_string(shape_.page_tokens) +
                     " tokens; they must divide the block of " + std::to_string(ns_.block_tokens));
    }
    if (shape_.layers.size() != ns_.layers) {
      return refused("describes " + std::to_string(shape_.layers.size()) +
                     " layers, the namespace has " + std::to_string(ns_.layers));
    }
    for (std::uint32_t i = 0; i < ns_.layers; ++i) {
      if (auto good = layer(i); !good) return good;
    }
    return no_overlap();
  }

 private:
  static Error refused(const std::string& what) {
    return make_error(Errc::invalid, "page pool: it " + what);
  }
  static Error refused(const std::string& name, const std::string& what) {
    return make_error(Errc::invalid, "page pool: " + name + " " + what);
  }

  Result<void> layer(std::uint32_t index) {
    const LayerShape shape = layer_shape(ns_, index);
    const PoolLayer& pool = shape_.layers[index];
    const std::string of = " of layer " + std::to_string(index);
    if (shape.format == StorageFormat::raw) return raw_layer(shape, pool, of);
    if (shape_.type != DType::f32 && shape_.type != DType::f16 && shape_.type != DType::bf16)
      return refused("has a type other than f32, f16 and bf16");
    if (auto good = side("K" + of, pool.k, shape.kv_heads, shape.head_dim_k); !good) return good;
    if (shape.head_dim_v == 0) {
      return pool.v.base == nullptr
                 ? Result<void>{}
                 : refused("V" + of, "has memory, and the namespace's head_dim_v is 0");
    }
    return side("V" + of, pool.v, shape.kv_heads, shape.head_dim_v);
  }

  Result<void> side(const std::string& name, const PoolSide& side, std::uint32_t heads,
                    std::uint32_t dim) {
    const std::size_t element = bytes_of(shape_.type);
    for (const std::size_t stride : {side.page_stride, side.token_stride, side.head_stride}) {
      if (stride % element != 0)
        return refused(name, "has a stride of " + std::to_string(stride) +
                                 " bytes, which is no multiple of its elements' " +
                                 std::to_string(element));
    }
    return memory(
        name, side, element, dim * element,
        {{"tokens", shape_.page_tokens, side.token_stride}, {"heads", heads, side.head_stride}});
  }

  Result<void> raw_layer(const LayerShape& shape, const PoolLayer& pool, const std::string& of) {
    std::size_t bytes = 0;
    for (const PoolSide* side : {&pool.k, &pool.v}) {
      if (side == &pool.v && side->base == nullptr) continue;
      const std::string name = (side == &pool.v ? "V" : "K") + of;
      if (side->rows == 0 || side->row_bytes == 0)
        return refused(name, "is of raw pages and has no rows, or rows of no bytes");
      if (side->row_bytes > kNamespaceLimits.record_bytes_max ||
          side->rows > kNamespaceLimits.record_bytes_max / side->row_bytes)
        return refused(name, "is larger than any record");
      bytes += side->rows * side->row_bytes;
      if (auto good =
              memory(name, *side, 1, side->row_bytes, {{"rows", side->rows, side->row_stride}});
          !good)
        return good;
    }
    const std::uint32_t pages = ns_.block_tokens / shape_.page_tokens;
    if (bytes * pages == shape.raw_bytes) return {};
    return refused("what is" + of, "has " + std::to_string(bytes * pages) +
                                       " bytes a block, raw_bytes is " +
                                       std::to_string(shape.raw_bytes));
  }

  Result<void> memory(const std::string& name, const PoolSide& side, std::size_t alignment,
                      std::size_t innermost, std::vector<Dimension> dimensions) {
    if (side.base == nullptr) return refused(name, "has no base");
    const auto begin = reinterpret_cast<std::uintptr_t>(side.base);
    if (begin % alignment != 0)
      return refused(name, "has a base that is not aligned to elements of " +
                               std::to_string(alignment) + " bytes");
    if (const char* what = Shape(innermost, dimensions).overlap(); what != nullptr)
      return refused(name, std::string("has ") + what + " that overlap by their stride");
    dimensions.push_back({"pages", shape_.pages, side.page_stride});
    Shape all(innermost, std::move(dimensions));
    if (const char* what = all.overlap(); what != nullptr)
      return refused(name, std::string("has ") + what + " that overlap by their stride");
    if (side.bytes < all.bytes()) {
      return refused(name, "has " + std::to_string(side.bytes) + " bytes; its " +
                               std::to_string(shape_.pages) + " pages take " +
                               std::to_string(all.bytes()));
    }
    if (begin > std::numeric_limits<std::uintptr_t>::max() - all.bytes())
      return refused(name, "ends beyond the address space");
    extents_.push_back({name, begin, std::move(all)});
    return {};
  }

  Result<void> no_overlap() {
    std::ranges::sort(extents_, {}, &Extent::begin);
    for (std::size_t i = 0; i < extents_.size(); ++i) {
      for (std::size_t j = i + 1; j < extents_.size(); ++j) {
        if (extents_[j].begin >= extents_[i].end()) break;
        if (overlap(extents_[i], extents_[j]))
          return refused(extents_[j].name, "overlaps " + extents_[i].name);
      }
    }
    return {};
  }

  const Namespace& ns_;
  const PoolShape& shape_;
  std::vector<Extent> extents_;
};

}  // namespace

Result<PagePool> PagePool::of(const Namespace& ns, PoolShape shape) {
  if (auto good = ns.validate(); !good) return good.error();
  if (shape.page_tokens == 0) shape.page_tokens = ns.block_tokens;
  if (auto good = Checker(ns, shape).run(); !good) return good.error();
  const std::uint32_t pages_of_block = ns.block_tokens / shape.page_tokens;
  return PagePool(id_of(ns), std::move(shape), pages_of_block);
}

}  // namespace kvtier
