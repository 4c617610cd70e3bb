#include "core/record/record.h"

#include <cstring>

#include "core/base/check.h"
#include "core/record/private_head.h"

namespace kvtier {

void write_header(std::span<std::byte> record, const RecordLayout& layout,
                  const BlockIdentity& identity, std::span<const std::byte> proof) noexcept {
  KVTIER_CHECK(record.size() >= layout.header_bytes && proof.size() >= layout.proof_bytes() &&
               proof.size() - layout.proof_bytes() <= layout.extra_bytes_max);
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
  header.extra_bytes = static_cast<std::uint32_t>(proof.size() - layout.proof_bytes());
  header.digest_bytes = layout.digest_bytes;
  std::memcpy(record.data(), &header, sizeof header);
  std::memcpy(record.data() + layout.proof_offset, proof.data(), proof.size());
}

Result<void> verify_header(std::span<const std::byte> record, const RecordLayout& layout,
                           const BlockIdentity& identity, std::span<const std::byte> proof) {
  PrivateHead head;
  if (auto good = head.read(record, layout); !good) return good;
  return head.proves(layout, identity, proof);
}

Result<void> seal_checksums(std::span<std::byte> record) {
  PrivateHead head;
  if (auto good = head.read(record); !good) return good;
  return head.seal(record, head.header().era);
}

Result<RecordHeader> verify_found(std::span<const std::byte> record) {
  PrivateHead head;
  if (auto good = head.read(record); !good) return good.error();
  if (auto good = head.holds(record); !good) return good.error();
  return head.header();
}

Result<void> verify_checksums(std::span<const std::byte> record, const NamespaceId& ns,
                              const Key& key) {
  const auto header = verify_found(record);
  if (!header) return header.error();
  if (header->ns != ns) return corrupt_record("another namespace");
  if (header->key != key) return corrupt_record("another key");
  return {};
}

}  // namespace kvtier
