#include "kvtier/namespace.h"

#include <bit>
#include <cstring>
#include <limits>

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
  template <class Number>
  void operator()(Tag tag, const Number& number) {
    field(tag, &number, sizeof number);
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
  }
  return "unknown";
}

Result<StorageFormat> parse_storage_format(const std::string& text) {
  for (const auto format : {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2, StorageFormat::bf16,
                            StorageFormat::f32}) {
    if (text == name(format)) return format;
  }
  return make_error(Errc::invalid, "'" + text +
                                       "' is not a storage format: give fp8_e4m3, fp8_e5m2, bf16 "
                                       "or f32");
}

std::uint32_t bytes_per_element(StorageFormat format) noexcept {
  if (format == StorageFormat::f32) return 4;
  return format == StorageFormat::bf16 ? 2 : 1;
}

bool has_scales(StorageFormat format) noexcept {
  return format == StorageFormat::fp8_e4m3 || format == StorageFormat::fp8_e5m2;
}

Result<void> Namespace::validate() const {
  const auto& limits = kNamespaceLimits;
  struct Range {
    const char* field;
    std::uint64_t value, low, high;
  };
  const Range ranges[] = {
      {"model (bytes)", model.size(), 1, limits.text_bytes_max},
      {"adapter (bytes)", adapter.size(), 0, limits.text_bytes_max},
      {"tenant (bytes)", tenant.size(), 0, limits.text_bytes_max},
      {"positions (bytes)", positions.size(), 0, limits.text_bytes_max},
      {"layers", layers, 1, limits.layers_max},
      {"kv_heads", kv_heads, 1, limits.kv_heads_max},
      {"head_dim_k", head_dim_k, 1, limits.head_dim_max},
      {"head_dim_v", head_dim_v, 1, limits.head_dim_max},
      {"block_tokens", block_tokens, 1, limits.block_tokens_max},
      {"format", static_cast<std::uint64_t>(format), 1, 4},
      {"ranks", ranks, 0, limits.ranks_max},
      {"rank", rank, 0, ranks == 0 ? 0 : ranks - 1},
  };
  for (const Range& r : ranges) {
    if (auto good = in_range(r.field, r.value, r.low, r.high); !good) return good.error();
  }
  if (!std::has_single_bit(block_tokens)) {
    return make_error(Errc::invalid, "namespace field block_tokens is " +
                                         std::to_string(block_tokens) +
                                         "; it must be a power of two");
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

Key chain_key(const NamespaceId& ns, const Key& parent, std::span<const Token> tokens) noexcept {
  KVTIER_CHECK(tokens.size() <= kNamespaceLimits.block_tokens_max);
  constexpr std::size_t kFixed = 16 + 16 + 4;
  std::byte input[kFixed + kNamespaceLimits.block_tokens_max * sizeof(Token)];
  const auto count = static_cast<std::uint32_t>(tokens.size());
  std::memcpy(input, ns.bytes.data(), 16);
  std::memcpy(input + 16, parent.bytes.data(), 16);
  std::memcpy(input + 32, &count, sizeof count);
  std::memcpy(input + kFixed, tokens.data(), tokens.size_bytes());
  Key key{xxh3_128({input, kFixed + tokens.size_bytes()})};
  constexpr std::byte kPlaceMask{7};
  const unsigned before = std::to_integer<unsigned>(parent.bytes[4] & kPlaceMask);
  const unsigned place = parent.is_zero() ? 0 : (before + 1) % kKeyGroup;
  if (place != 0) std::memcpy(key.bytes.data(), parent.bytes.data(), 4);
  key.bytes[4] = (key.bytes[4] & ~kPlaceMask) | static_cast<std::byte>(place);
  return key;
}

std::vector<Key> chain_keys(const NamespaceId& ns, std::uint32_t block_tokens,
                            std::span<const Token> tokens) {
  std::vector<Key> keys;
  keys.reserve(tokens.size() / block_tokens);
  Key parent;
  for (std::size_t at = 0; at + block_tokens <= tokens.size(); at += block_tokens) {
    parent = chain_key(ns, parent, tokens.subspan(at, block_tokens));
    keys.push_back(parent);
  }
  return keys;
}

}  // namespace kvtier
