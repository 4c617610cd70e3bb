#include "client/record/record.h"

#include <cstring>

#include "client/base/check.h"
#include "client/record/digest.h"

namespace kvtier {
namespace {

RecordHeader header_of(std::span<const std::byte> record) noexcept {
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof header);
  return header;
}

Error corrupt(const std::string& what) {
  return make_error(Errc::corrupt, "record: " + what);
}

// Whether the sizes in `header` describe something that lies inside `bytes` bytes.
bool sizes_hold(const RecordHeader& header, std::size_t bytes) noexcept {
  return header.record_bytes <= bytes && header.record_bytes % kRecordAlignment == 0 &&
         header.header_bytes % kRecordAlignment == 0 && header.header_bytes > 0 &&
         header.payload_bytes <= header.record_bytes &&
         header.header_bytes <= header.record_bytes - header.payload_bytes &&
         header.proof_offset == sizeof(RecordHeader) &&
         header.token_count <= kNamespaceLimits.block_tokens_max &&
         header.proof_offset + header.token_count * sizeof(Token) <= header.scales_offset &&
         header.scales_offset <= header.header_bytes;
}

std::uint64_t header_checksum(std::span<const std::byte> record, const RecordHeader& header) {
  constexpr std::size_t kAt = offsetof(RecordHeader, header_checksum);
  constexpr std::byte kZero[sizeof(std::uint64_t)] = {};
  const auto bytes = record.first(header.header_bytes);
  return xxh3_64_of_pieces({bytes.first(kAt), kZero, bytes.subspan(kAt + sizeof kZero)});
}

}  // namespace

void write_header(std::span<std::byte> record, const RecordLayout& layout,
                  const BlockIdentity& identity, std::span<const Token> tokens) noexcept {
  KVTIER_CHECK(record.size() >= layout.header_bytes && tokens.size() == layout.block_tokens);
  RecordHeader header{};
  header.magic = kRecordMagic;
  header.version = kRecordVersion;
  header.header_bytes = static_cast<std::uint32_t>(layout.header_bytes);
  header.record_bytes = layout.record_bytes;
  header.payload_bytes = layout.payload_bytes;
  header.ns = identity.ns;
  header.key = identity.key;
  header.parent = identity.parent;
  header.block_index = identity.block_index;
  header.token_count = layout.block_tokens;
  header.proof_offset = static_cast<std::uint32_t>(layout.proof_offset);
  header.scales_offset = static_cast<std::uint32_t>(layout.scales_offset);
  std::memcpy(record.data(), &header, sizeof header);
  std::memcpy(record.data() + layout.proof_offset, tokens.data(), tokens.size_bytes());
}

Result<void> verify_header(std::span<const std::byte> record, const RecordLayout& layout,
                           const BlockIdentity& identity, std::span<const Token> tokens) {
  if (record.size() < layout.header_bytes) return corrupt("shorter than its header");
  const RecordHeader header = header_of(record);
  if (header.magic != kRecordMagic || header.version != kRecordVersion) {
    return corrupt("magic or version");
  }
  if (header.header_bytes != layout.header_bytes || header.record_bytes != layout.record_bytes ||
      header.payload_bytes != layout.payload_bytes || header.proof_offset != layout.proof_offset ||
      header.scales_offset != layout.scales_offset || header.token_count != layout.block_tokens) {
    return corrupt("sizes are not this namespace's");
  }
  if (header.ns != identity.ns) return corrupt("another namespace");
  if (header.key != identity.key) return corrupt("another key");
  if (header.parent != identity.parent) return corrupt("another parent");
  if (header.block_index != identity.block_index) return corrupt("another place in its prefix");
  if (tokens.size() != layout.block_tokens ||
      std::memcmp(record.data() + layout.proof_offset, tokens.data(), tokens.size_bytes()) != 0) {
    return corrupt("proof: other tokens under the same key");
  }
  return {};
}

Result<void> seal_checksums(std::span<std::byte> record) {
  if (record.size() < sizeof(RecordHeader)) return corrupt("shorter than its header");
  RecordHeader header = header_of(record);
  if (header.magic != kRecordMagic || !sizes_hold(header, record.size())) {
    return corrupt("magic or sizes");
  }
  header.payload_checksum = xxh3_64(record.subspan(header.header_bytes, header.payload_bytes));
  header.header_checksum = 0;
  std::memcpy(record.data(), &header, sizeof header);
  header.header_checksum = header_checksum(record, header);
  std::memcpy(record.data(), &header, sizeof header);
  return {};
}

Result<RecordHeader> verify_found(std::span<const std::byte> record) {
  if (record.size() < sizeof(RecordHeader)) return corrupt("shorter than its header");
  const RecordHeader header = header_of(record);
  if (header.magic != kRecordMagic || header.version != kRecordVersion) {
    return corrupt("magic or version");
  }
  if (!sizes_hold(header, record.size())) return corrupt("sizes");
  if (header.header_checksum != header_checksum(record, header)) return corrupt("header checksum");
  if (header.key != chain_key(header.ns, header.parent, proof_of(record))) {
    return corrupt("key does not follow from its proof");
  }
  if (header.payload_checksum !=
      xxh3_64(record.subspan(header.header_bytes, header.payload_bytes))) {
    return corrupt("payload checksum");
  }
  return header;
}

Result<void> verify_checksums(std::span<const std::byte> record, const NamespaceId& ns,
                              const Key& key) {
  const auto header = verify_found(record);
  if (!header) return header.error();
  if (header->ns != ns) return corrupt("another namespace");
  if (header->key != key) return corrupt("another key");
  return {};
}

std::span<const Token> proof_of(std::span<const std::byte> record) noexcept {
  const RecordHeader header = header_of(record);
  return {reinterpret_cast<const Token*>(record.data() + header.proof_offset), header.token_count};
}

}  // namespace kvtier
