// A record's header, proof and scales, read once into memory of our own.
//
// Records lie in memory that other processes may write to at any time (SECURITY.md), so what was
// checked there need not be what is read there a moment later. Whoever wants to know what a record
// says reads it here and believes only the copy. What lies behind the header is hashed or copied,
// never interpreted, and only within sizes that were checked in the copy. Not for two threads at a
// time; an object that is used again keeps its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/record/record.h"

namespace kvtier {

// Errc::corrupt, with `what` of a record is wrong.
Error corrupt_record(std::string_view what);

class PrivateHead {
 public:
  // Of a record of at most `record.size()` bytes that itself says how long its parts are: header,
  // proof and scales. Errors: corrupt (magic, version, sizes that do not lie inside `record`); then
  // there is nothing to ask of it.
  Result<void> read(std::span<const std::byte> record);
  // The same of the first bytes of a record in a place of `room` bytes. Errors: corrupt (also: they
  // are fewer than its header says that it has).
  Result<void> read_first(std::span<const std::byte> first, std::uint64_t room);
  // Of a record of this layout, whatever it says of its sizes: header and proof. Errors: corrupt
  // (`record` is shorter than those); as above.
  Result<void> read(std::span<const std::byte> record, const RecordLayout& layout);

  const RecordHeader& header() const noexcept { return header_; }
  // Tokens or digests, and extra bytes behind them.
  std::span<const std::byte> proof() const noexcept {
    return std::span(bytes_).subspan(proof_offset_, proof_bytes_);
  }

  // Whether every field but the proof is as `identity` and `layout` have it. Errors: corrupt,
  // naming the first that differs.
  Result<void> names(const RecordLayout& layout, const BlockIdentity& identity) const;
  // The same, and the proof. Errors: corrupt.
  Result<void> proves(const RecordLayout& layout, const BlockIdentity& identity,
                      std::span<const std::byte> proof) const;
  // Whether the key is that of namespace, parent and proof.
  bool key_follows() const noexcept;

  // Whether the payload of `record`, whose head this is, names() of this layout, has the checksum
  // that the header gives. True where it gives none yet.
  bool payload_holds(std::span<const std::byte> record, const RecordLayout& layout) const noexcept;

  // For a head that was read whole: whether its checksum holds and the key follows from the proof.
  // Errors: corrupt, saying what does not.
  Result<void> holds() const;
  // The same, and the checksum of the payload of the `record` that it was read from.
  Result<void> holds(std::span<const std::byte> record) const;
  // Sets both checksums and the era, here and in `record`. Errors: corrupt, if there was one of the
  // payload already and it does not hold.
  Result<void> seal(std::span<std::byte> record, std::uint64_t era);
  // The same, here alone: bytes() before the payload of `record` are then the sealed record, while
  // others may seal or write what lies in `record`.
  Result<void> seal_apart(std::span<const std::byte> record, std::uint64_t era);
  // What was read of the record, for one that was read whole: header_bytes of it.
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::uint64_t header_checksum() const noexcept;

  std::vector<std::byte> bytes_;  // as they were read
  RecordHeader header_{};         // the first of them
  std::size_t proof_offset_ = 0;  // in bytes_
  std::size_t proof_bytes_ = 0;
};

}  // namespace kvtier
