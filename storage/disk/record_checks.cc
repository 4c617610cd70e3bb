#include "storage/disk/record_checks.h"

#include <cstring>

#include "storage/disk/segments.h"

namespace kvtier::storage {
namespace {

RecordHeader header_of(std::span<const std::byte> record) noexcept {
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof header);
  return header;
}

}  // namespace

std::string place(DiskLocation at) {
  return "slot " + std::to_string(at.slot) + " of segment " + std::to_string(at.segment);
}

Error does_not_fit(std::uint64_t record_bytes, DiskLocation at) {
  return make_error(Errc::invalid, "a record of " + std::to_string(record_bytes) +
                                       " bytes does not fit " + place(at) +
                                       " or its extent's slot");
}

Error erased_meanwhile() {
  return make_error(Errc::not_found, "the record was erased while it was written");
}

bool fits_slot(std::uint64_t record_bytes, DiskLocation at, std::uint64_t slot_bytes,
               std::uint64_t segment_bytes) noexcept {
  return record_bytes > 0 && record_bytes % kRecordAlignment == 0 && record_bytes <= slot_bytes &&
         at.slot < slots_per_segment(segment_bytes, slot_bytes);
}

Result<void> check_identity(std::span<const std::byte> record, const BlockIdentity& identity) {
  const RecordHeader header = header_of(record);
  if (header.magic == kRecordMagic && header.version == kRecordVersion &&
      header.record_bytes == record.size() && header.ns == identity.ns &&
      header.key == identity.key && header.parent == identity.parent &&
      header.block_index == identity.block_index) {
    return {};
  }
  return make_error(Errc::corrupt, "a record to be written is not the block it is named as");
}

Result<void> verify_record(std::span<const std::byte> record, const NamespaceId& ns, const Key& key,
                           DiskLocation at) {
  auto intact = verify_checksums(record, ns, key);
  if (intact && header_of(record).record_bytes != record.size()) {
    intact = make_error(Errc::corrupt, "record: another size");
  }
  if (intact) return {};
  return make_error(intact.error().code, place(at) + ": " + intact.error().message);
}

}  // namespace kvtier::storage
