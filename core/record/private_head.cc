#include "core/record/private_head.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/base/check.h"
#include "core/base/units.h"
#include "core/record/digest.h"

namespace kvtier {
namespace {

// No layout has a longer one: a record cannot make its reader take more memory than this.
constexpr std::uint64_t kHeaderBytesMax =
    round_up(sizeof(RecordHeader) + kProofBytesMax +
                 std::uint64_t{kNamespaceLimits.layers_max} * 2 * kNamespaceLimits.kv_heads_max *
                     sizeof(float),
             kRecordAlignment) +
    kRecordAlignment;

// Reads shared memory once. Without the barrier the compiler may take what is asked of the copy
// from the source instead, where it can be something else by then.
void copy_once(std::byte* to, const std::byte* from, std::size_t count) noexcept {
  std::memcpy(to, from, count);
  asm volatile("" : : "r"(to), "r"(from) : "memory");
}

bool version_is_known(const RecordHeader& header) noexcept {
  return header.magic == kRecordMagic && header.version >= kRecordVersionOldest &&
         header.version <= kRecordVersion;
}

// Of tokens or digests, and of the extra bytes behind them.
std::uint64_t proof_bytes_of(const RecordHeader& header) noexcept {
  const std::uint64_t fixed = header.digest_bytes != 0
                                  ? std::uint64_t{2} * header.digest_bytes
                                  : std::uint64_t{header.token_count} * sizeof(Token);
  return fixed + header.extra_bytes;
}

// Whether the sizes in `header` describe something that lies inside `bytes` bytes.
bool sizes_hold(const RecordHeader& header, std::uint64_t bytes) noexcept {
  return header.record_bytes <= bytes && header.record_bytes % kRecordAlignment == 0 &&
         header.header_bytes % kRecordAlignment == 0 && header.header_bytes > 0 &&
         header.header_bytes <= kHeaderBytesMax && header.payload_bytes <= header.record_bytes &&
         header.header_bytes <= header.record_bytes - header.payload_bytes &&
         header.proof_offset == sizeof(RecordHeader) &&
         header.token_count <= kNamespaceLimits.block_tokens_max &&
         header.digest_bytes <= kNamespaceLimits.digest_bytes_max &&
         header.extra_bytes <= kNamespaceLimits.extra_bytes_max &&
         header.proof_offset + proof_bytes_of(header) <= header.scales_offset &&
         header.scales_offset <= header.header_bytes;
}

}  // namespace

Error corrupt_record(std::string_view what) {
  return make_error(Errc::corrupt, "record: " + std::string(what));
}

Result<void> PrivateHead::read(std::span<const std::byte> record) {
  return read_first(record, record.size());
}

Result<void> PrivateHead::read_first(std::span<const std::byte> first, std::uint64_t room) {
  if (first.size() < sizeof(RecordHeader)) return corrupt_record("shorter than its header");
  bytes_.resize(sizeof header_);
  copy_once(bytes_.data(), first.data(), sizeof header_);
  std::memcpy(&header_, bytes_.data(), sizeof header_);
  if (!version_is_known(header_)) return corrupt_record("magic or version");
  if (!sizes_hold(header_, room)) return corrupt_record("sizes");
  if (header_.header_bytes > first.size()) return corrupt_record("shorter than its header");
  bytes_.resize(header_.header_bytes);
  copy_once(bytes_.data() + sizeof header_, first.data() + sizeof header_,
            bytes_.size() - sizeof header_);
  proof_offset_ = header_.proof_offset;
  proof_bytes_ = proof_bytes_of(header_);
  return {};
}

Result<void> PrivateHead::read(std::span<const std::byte> record, const RecordLayout& layout) {
  if (layout.scales_offset < sizeof header_ || record.size() < layout.scales_offset)
    return corrupt_record("shorter than its header");
  bytes_.resize(layout.scales_offset);
  copy_once(bytes_.data(), record.data(), bytes_.size());
  std::memcpy(&header_, bytes_.data(), sizeof header_);
  proof_offset_ = layout.proof_offset;
  // What the header says of its length is believed where there is room for it.
  proof_bytes_ =
      layout.proof_bytes() + std::min<std::size_t>(header_.extra_bytes, layout.extra_bytes_max);
  KVTIER_CHECK(proof_offset_ + proof_bytes_ <= bytes_.size());
  return {};
}

Result<void> PrivateHead::names(const RecordLayout& layout, const BlockIdentity& identity) const {
  if (!version_is_known(header_)) return corrupt_record("magic or version");
  if (header_.header_bytes != layout.header_bytes || header_.record_bytes != layout.record_bytes ||
      header_.payload_bytes != layout.payload_bytes ||
      header_.proof_offset != layout.proof_offset ||
      header_.scales_offset != layout.scales_offset || header_.token_count != layout.block_tokens ||
      header_.digest_bytes != layout.digest_bytes || header_.extra_bytes > layout.extra_bytes_max) {
    return corrupt_record("sizes are not this namespace's");
  }
  if (header_.ns != identity.ns) return corrupt_record("another namespace");
  if (header_.key != identity.key) return corrupt_record("another key");
  if (header_.parent != identity.parent) return corrupt_record("another parent");
  if (header_.block_index != identity.block_index)
    return corrupt_record("another place in its prefix");
  return {};
}

Result<void> PrivateHead::proves(const RecordLayout& layout, const BlockIdentity& identity,
                                 std::span<const std::byte> proof) const {
  if (auto good = names(layout, identity); !good) return good;
  const auto ours = this->proof();
  if (ours.size() == proof.size() && std::memcmp(ours.data(), proof.data(), proof.size()) == 0)
    return {};
  return corrupt_record("proof: another block under the same key");
}

bool PrivateHead::key_follows() const noexcept {
  const std::uint32_t count =
      header_.digest_bytes != 0 ? header_.digest_bytes : header_.token_count;
  return header_.key == chain_key(header_.ns, header_.parent, count, proof());
}

bool PrivateHead::payload_holds(std::span<const std::byte> record,
                                const RecordLayout& layout) const noexcept {
  if (header_.payload_checksum == 0) return true;
  return record.size() >= layout.header_bytes + layout.payload_bytes &&
         header_.payload_checksum ==
             xxh3_64(record.subspan(layout.header_bytes, layout.payload_bytes));
}

std::uint64_t PrivateHead::header_checksum() const noexcept {
  constexpr std::size_t kAt = offsetof(RecordHeader, header_checksum);
  constexpr std::byte kZero[sizeof(std::uint64_t)] = {};
  const std::span<const std::byte> bytes(bytes_);
  return xxh3_64_of_pieces({bytes.first(kAt), kZero, bytes.subspan(kAt + sizeof kZero)});
}

Result<void> PrivateHead::holds() const {
  KVTIER_CHECK(bytes_.size() == header_.header_bytes);
  if (header_.header_checksum != header_checksum()) return corrupt_record("header checksum");
  if (!key_follows()) return corrupt_record("key does not follow from its proof");
  return {};
}

Result<void> PrivateHead::holds(std::span<const std::byte> record) const {
  KVTIER_CHECK(header_.record_bytes <= record.size());
  if (auto good = holds(); !good) return good;
  if (header_.payload_checksum !=
      xxh3_64(record.subspan(header_.header_bytes, header_.payload_bytes))) {
    return corrupt_record("payload checksum");
  }
  return {};
}

Result<void> PrivateHead::seal(std::span<std::byte> record, std::uint64_t era) {
  if (auto sealed = seal_apart(record, era); !sealed) return sealed;
  std::memcpy(record.data(), &header_, sizeof header_);
  return {};
}

Result<void> PrivateHead::seal_apart(std::span<const std::byte> record, std::uint64_t era) {
  KVTIER_CHECK(bytes_.size() == header_.header_bytes && header_.record_bytes <= record.size());
  const std::uint64_t payload =
      xxh3_64(record.subspan(header_.header_bytes, header_.payload_bytes));
  // A record that does not hold is not made one that does.
  if (header_.payload_checksum != 0 && header_.payload_checksum != payload)
    return corrupt_record("payload checksum");
  header_.payload_checksum = payload;
  header_.era = era;
  std::memcpy(bytes_.data(), &header_, sizeof header_);
  header_.header_checksum = header_checksum();
  std::memcpy(bytes_.data(), &header_, sizeof header_);
  return {};
}

}  // namespace kvtier
