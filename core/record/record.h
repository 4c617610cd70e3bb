// The header of a record: what it is, whose it is, and what proves it (docs/format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kvtier/key.h"
#include "kvtier/record_layout.h"
#include "kvtier/result.h"

namespace kvtier {

inline constexpr std::uint64_t kRecordMagic = 0x31304352'5449564BULL;  // "KVITRC01" in memory
// Version 1 had zeros where extra_bytes and digest_bytes are, and is read as what it is: a record
// with neither.
inline constexpr std::uint32_t kRecordVersion = 2;
inline constexpr std::uint32_t kRecordVersionOldest = 1;

struct RecordHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t header_bytes;  // offset of the payload
  std::uint64_t record_bytes;
  std::uint64_t payload_bytes;
  NamespaceId ns;
  Key key;
  Key parent;
  // Set when the record is written to disk, 0 before: XXH3-64 of the payload, and XXH3-64 of the
  // header bytes with header_checksum taken as 0.
  std::uint64_t payload_checksum;
  std::uint64_t header_checksum;
  std::uint32_t block_index;  // place in its prefix; 0 is the first block
  std::uint32_t token_count;  // tokens of the block
  std::uint32_t proof_offset;
  std::uint32_t scales_offset;
  // The proof: digest_bytes of the block's digest and as many of its parent's or, where that is 0,
  // token_count tokens; behind either extra_bytes more.
  std::uint32_t extra_bytes;
  std::uint32_t digest_bytes;
  // Of the store that it was written to, when it was (storage/index/erasures.h); 0 before, and in
  // what an earlier version wrote.
  std::uint64_t era;
};
static_assert(sizeof(RecordHeader) == 128 && std::is_trivially_copyable_v<RecordHeader>);

// What a reader must know to accept a record.
struct BlockIdentity {
  NamespaceId ns;
  Key key;
  Key parent;
  std::uint32_t block_index = 0;
};

// Fills the header and the proof of `record` (at least layout.header_bytes long), leaving scales
// and payload as they are and both checksums 0. `proof` is layout.proof_bytes() of tokens or
// digests, and then at most layout.extra_bytes_max.
void write_header(std::span<std::byte> record, const RecordLayout& layout,
                  const BlockIdentity& identity, std::span<const std::byte> proof) noexcept;

// Of a block with no more to it than its tokens: layout.block_tokens of them.
inline void write_header(std::span<std::byte> record, const RecordLayout& layout,
                         const BlockIdentity& identity, std::span<const Token> tokens) noexcept {
  write_header(record, layout, identity, std::as_bytes(tokens));
}

// What follows reads `record`, which others may be writing to, through a PrivateHead
// (private_head.h): once, whatever becomes of it meanwhile.

// Whether the record is the block that `identity` and `proof` name: every field and the proof
// compared. Errors: corrupt, naming the first field that differs. Checksums are not looked at.
Result<void> verify_header(std::span<const std::byte> record, const RecordLayout& layout,
                           const BlockIdentity& identity, std::span<const std::byte> proof);

inline Result<void> verify_header(std::span<const std::byte> record, const RecordLayout& layout,
                                  const BlockIdentity& identity, std::span<const Token> tokens) {
  return verify_header(record, layout, identity, std::as_bytes(tokens));
}

// Computes and sets both checksums, and leaves its era. `record` is the whole record with a header
// that write_header made. Errors: corrupt, if its sizes do not fit `record`, or it has a checksum
// that does not hold.
Result<void> seal_checksums(std::span<std::byte> record);

// Whether a whole record read from disk is intact and is the one looked for: magic, version, sizes,
// namespace, key, both checksums, and that key = XXH3-128(namespace, parent, proof).
// Errors: corrupt, saying what does not hold.
Result<void> verify_checksums(std::span<const std::byte> record, const NamespaceId& ns,
                              const Key& key);

// The same for a record found by scanning, whose identity is not known beforehand.
Result<RecordHeader> verify_found(std::span<const std::byte> record);

}  // namespace kvtier
