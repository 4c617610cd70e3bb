#include "kvtier/namespace.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/base/check.h"
#include "core/record/digest.h"
#include "kvtier/record_layout.h"

static_assert(std::endian::native == std::endian::little,
              "the formats are little-endian in memory");

namespace kvtier {
namespace {

constexpr char kMagic[] = "kvtier.namespace.1";

enum class Tag : std::uint8_t {
  model = 1,
  adapter,
  tenant,
  layers,
  kv_heads,
  head_dim_k,
  head_dim_v,
  block_tokens,
  format,
  rank,
  ranks,
  positions,
  // Present only where they are not 0 or empty.
  raw_bytes,
  page_layout,
  extra_bytes_max,
  digest_bytes,
  layer_shapes,
};

// Calls `visit(tag, field)` for every field, in tag order: the one list that encoding and decoding
// share.
template <class Ns, class Visit>
void each_field(Ns& ns, Visit&& visit) {
  visit(Tag::model, ns.model);
  visit(Tag::adapter, ns.adapter);
  visit(Tag::tenant, ns.tenant);
  visit(Tag::layers, ns.layers);
  visit(Tag::kv_heads, ns.kv_heads);
  visit(Tag::head_dim_k, ns.head_dim_k);
  visit(Tag::head_dim_v, ns.head_dim_v);
  visit(Tag::block_tokens, ns.block_tokens);
  visit(Tag::format, ns.format);
  visit(Tag::rank, ns.rank);
  visit(Tag::ranks, ns.ranks);
  visit(Tag::positions, ns.positions);
  visit.where_given(Tag::raw_bytes, ns.raw_bytes);
  visit.where_given(Tag::page_layout, ns.page_layout);
  visit.where_given(Tag::extra_bytes_max, ns.extra_bytes_max);
  visit.where_given(Tag::digest_bytes, ns.digest_bytes);
  visit.where_given(Tag::layer_shapes, ns.layer_shapes);
}

bool is_given(std::uint32_t number) {
  return number != 0;
}
template <class List>
bool is_given(const List& list) {
  return !list.empty();
}

// As a layer is encoded.
using PackedShape = std::array<std::uint32_t, 5>;
PackedShape packed(const LayerShape& shape) {
  return {shape.kv_heads, shape.head_dim_k, shape.head_dim_v,
          static_cast<std::uint32_t>(shape.format), shape.raw_bytes};
}
LayerShape unpacked(const PackedShape& from) {
  // What does not fit a format is none: validate() refuses it.
  const auto format = from[3] > 0xFF ? 0 : from[3];
  return {from[0], from[1], from[2], static_cast<StorageFormat>(format), from[4]};
}

void append(std::vector<std::byte>& out, const void* bytes, std::size_t count) {
  if (count == 0) return;
  const std::size_t at = out.size();
  out.resize(at + count);
  std::memcpy(out.data() + at, bytes, count);
}

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}
  void operator()(Tag tag, const std::string& text) { field(tag, text.data(), text.size()); }
  void operator()(Tag tag, const std::vector<LayerShape>& shapes) {
    std::vector<PackedShape> list;
    list.reserve(shapes.size());
    for (const LayerShape& shape : shapes) list.push_back(packed(shape));
    field(tag, list.data(), list.size() * sizeof(PackedShape));
  }
  template <class Number>
  void operator()(Tag tag, const Number& number) {
    field(tag, &number, sizeof number);
  }
  template <class Field>
  void where_given(Tag tag, const Field& value) {
    if (is_given(value)) (*this)(tag, value);
  }

 private:
  void field(Tag tag, const void* bytes, std::size_t count) {
    const auto length = static_cast<std::uint32_t>(count);
    append(out_, &tag, sizeof tag);
    append(out_, &length, sizeof length);
    append(out_, bytes, count);
  }
  std::vector<std::byte>& out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  void operator()(Tag tag, std::string& text) {
    const auto bytes = field(tag);
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  template <class Number>
  void operator()(Tag tag, Number& number) {
    const auto bytes = field(tag);
    good_ = good_ && bytes.size() == sizeof number;
    if (good_) std::memcpy(&number, bytes.data(), sizeof number);
  }
  void operator()(Tag tag, std::vector<LayerShape>& shapes) {
    const auto bytes = field(tag);
    good_ = good_ && bytes.size() % sizeof(PackedShape) == 0 &&
            bytes.size() / sizeof(PackedShape) <= kNamespaceLimits.layers_max;
    if (!good_) return;
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(PackedShape)) {
      PackedShape from;
      std::memcpy(from.data(), bytes.data() + at, sizeof from);
      shapes.push_back(unpacked(from));
    }
  }
  template <class Field>
  void where_given(Tag tag, Field& value) {
    if (!good_ || left_.empty() || static_cast<Tag>(left_[0]) != tag) return;
    (*this)(tag, value);
    good_ = good_ && is_given(value);
  }
  bool finished() const { return good_ && left_.empty(); }

 private:
  std::span<const std::byte> field(Tag tag) {
    std::uint32_t length = 0;
    good_ = good_ && left_.size() >= 1 + sizeof length && static_cast<Tag>(left_[0]) == tag;
    if (!good_) return {};
    std::memcpy(&length, left_.data() + 1, sizeof length);
    left_ = left_.subspan(1 + sizeof length);
    good_ = length <= left_.size();
    if (!good_) return {};
    const auto bytes = left_.first(length);
    left_ = left_.subspan(length);
    return bytes;
  }
  std::span<const std::byte> left_;
  bool good_ = true;
};

constexpr std::uint8_t kFormats = 7;

Result<void> in_range(const char* field, std::uint64_t value, std::uint64_t low,
                      std::uint64_t high) {
  if (value >= low && value <= high) return {};
  return make_error(Errc::invalid, std::string("namespace field ") + field + " is " +
                                       std::to_string(value) + "; it must be from " +
                                       std::to_string(low) + " to " + std::to_string(high));
}

}  // namespace

const char* name(StorageFormat format) noexcept {
  switch (format) {
    case StorageFormat::fp8_e4m3:
      return "fp8_e4m3";
    case StorageFormat::fp8_e5m2:
      return "fp8_e5m2";
    case StorageFormat::bf16:
      return "bf16";
    case StorageFormat::f32:
      return "f32";
    case StorageFormat::raw:
      return "raw";
    case StorageFormat::int8:
      return "int8";
    case StorageFormat::int4:
      return "int4";
  }
  return "unknown";
}

Result<StorageFormat> parse_storage_format(const std::string& text) {
  for (auto number = std::uint8_t{1}; number <= kFormats; ++number) {
    const auto format = static_cast<StorageFormat>(number);
    if (text == name(format)) return format;
  }
  return make_error(Errc::invalid, "'" + text +
                                       "' is not a storage format: give fp8_e4m3, fp8_e5m2, bf16, "
                                       "f32, raw, int8 or int4");
}

std::uint32_t bytes_per_element(StorageFormat format) noexcept {
  if (format == StorageFormat::f32) return 4;
  return format == StorageFormat::bf16 ? 2 : 1;
}

bool has_elements(StorageFormat format) noexcept {
  return format != StorageFormat::raw && format != StorageFormat::int8 &&
         format != StorageFormat::int4;
}

bool has_scales(StorageFormat format) noexcept {
  return format == StorageFormat::fp8_e4m3 || format == StorageFormat::fp8_e5m2 ||
         format == StorageFormat::int8 || format == StorageFormat::int4;
}

LayerShape layer_shape(const Namespace& ns, std::uint32_t layer) noexcept {
  KVTIER_CHECK(layer < ns.layers);
  if (!ns.layer_shapes.empty()) return ns.layer_shapes[layer];
  return {ns.kv_heads, ns.head_dim_k, ns.head_dim_v, ns.format, ns.raw_bytes};
}

std::uint32_t proof_bytes(const Namespace& ns) noexcept {
  return ns.digest_bytes != 0 ? 2 * ns.digest_bytes
                              : ns.block_tokens * static_cast<std::uint32_t>(sizeof(Token));
}

namespace {

struct Range {
  const char* field;
  std::uint64_t value, low, high;
};

Result<void> all_in_range(std::span<const Range> ranges, const std::string& of = {}) {
  for (const Range& r : ranges) {
    if (auto good = in_range((of + r.field).c_str(), r.value, r.low, r.high); !good)
      return good.error();
  }
  return {};
}

Result<void> validate_shape(const LayerShape& shape, const std::string& of) {
  const auto& limits = kNamespaceLimits;
  const bool raw = shape.format == StorageFormat::raw;
  const std::uint64_t least = raw ? 0 : 1;
  const Range ranges[] = {
      {"kv_heads", shape.kv_heads, least, limits.kv_heads_max},
      {"head_dim_k", shape.head_dim_k, least, limits.head_dim_max},
      {"head_dim_v", shape.head_dim_v, 0, limits.head_dim_max},
      {"format", static_cast<std::uint64_t>(shape.format), 1, kFormats},
      {raw ? "raw_bytes (format raw)" : "raw_bytes (a format other than raw)", shape.raw_bytes,
       std::uint64_t{raw ? 1U : 0U}, raw ? limits.record_bytes_max : 0},
  };
  return all_in_range(ranges, of);
}

// The canonical form: shapes only where they differ, and the first's in the fields of all.
Result<void> validate_shapes(const Namespace& ns) {
  const auto refused = [](const std::string& what) {
    return make_error(Errc::invalid, "namespace field layer_shapes " + what);
  };
  if (ns.layer_shapes.size() != ns.layers) {
    return refused("has " + std::to_string(ns.layer_shapes.size()) + " shapes for " +
                   std::to_string(ns.layers) + " layers; give one for each, or none");
  }
  for (std::uint32_t i = 0; i < ns.layers; ++i) {
    const std::string of = "layer_shapes[" + std::to_string(i) + "].";
    if (auto good = validate_shape(ns.layer_shapes[i], of); !good) return good;
  }
  const LayerShape& first = ns.layer_shapes.front();
  if (first != LayerShape{ns.kv_heads, ns.head_dim_k, ns.head_dim_v, ns.format, ns.raw_bytes}) {
    return refused(
        "begins with another shape than kv_heads, head_dim_k, head_dim_v, format and "
        "raw_bytes say; give the first layer's there");
  }
  if (std::ranges::all_of(ns.layer_shapes, [&](const LayerShape& s) { return s == first; }))
    return refused("has the same shape for every layer; leave it empty");
  return {};
}

}  // namespace

Result<void> Namespace::validate() const {
  const auto& limits = kNamespaceLimits;
  const Range ranges[] = {
      {"model (bytes)", model.size(), 1, limits.text_bytes_max},
      {"adapter (bytes)", adapter.size(), 0, limits.text_bytes_max},
      {"tenant (bytes)", tenant.size(), 0, limits.text_bytes_max},
      {"positions (bytes)", positions.size(), 0, limits.text_bytes_max},
      {"layers", layers, 1, limits.layers_max},
      {"page_layout (bytes)", page_layout.size(), 0, limits.text_bytes_max},
      {"block_tokens", block_tokens, 1, limits.block_tokens_max},
      {"extra_bytes_max", extra_bytes_max, 0, limits.extra_bytes_max},
      {"digest_bytes", digest_bytes, digest_bytes == 0 ? 0 : limits.digest_bytes_min,
       limits.digest_bytes_max},
      {"ranks", ranks, 0, limits.ranks_max},
      {"rank", rank, 0, ranks == 0 ? 0 : ranks - 1},
  };
  if (auto good = all_in_range(ranges); !good) return good;
  const LayerShape shape{kv_heads, head_dim_k, head_dim_v, format, raw_bytes};
  if (auto good = validate_shape(shape, {}); !good) return good;
  if (!layer_shapes.empty()) {
    if (auto good = validate_shapes(*this); !good) return good;
  }
  return in_range("record bytes", RecordLayout::of(*this).record_bytes, 1, limits.record_bytes_max);
}

std::vector<std::byte> encode(const Namespace& ns) {
  std::vector<std::byte> out;
  append(out, kMagic, sizeof kMagic);
  each_field(ns, Writer(out));
  return out;
}

Result<Namespace> decode_namespace(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof kMagic || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return make_error(Errc::malformed,
                      "not an encoded namespace: it must start with 'kvtier.namespace.1'");
  }
  Namespace ns;
  Reader reader(bytes.subspan(sizeof kMagic));
  each_field(ns, reader);
  if (!reader.finished()) {
    return make_error(Errc::malformed, "an encoded namespace is cut short or out of order");
  }
  if (auto good = ns.validate(); !good) return good.error();
  return ns;
}

NamespaceId id_of(const Namespace& ns) {
  return {xxh3_128(encode(ns))};
}

}  // namespace kvtier
