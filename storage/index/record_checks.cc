#include "storage/index/record_checks.h"

#include "core/record/private_head.h"
#include "storage/index/segments.h"

namespace kvtier::storage {

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

Result<void> seal_record(std::span<std::byte> record, const BlockIdentity& identity,
                         std::uint64_t era) {
  PrivateHead head;
  if (auto good = head.read(record); !good) return good;
  const RecordHeader& header = head.header();
  if (header.record_bytes != record.size() || header.ns != identity.ns ||
      header.key != identity.key || header.parent != identity.parent ||
      header.block_index != identity.block_index) {
    return make_error(Errc::corrupt, "a record to be written is not the block it is named as");
  }
  return head.seal(record, era);
}

Result<void> verify_record(std::span<const std::byte> record, const NamespaceId& ns, const Key& key,
                           DiskLocation at) {
  const auto header = verify_found(record);
  std::string wrong;
  if (!header) {
    wrong = header.error().message;
  } else if (header->ns != ns) {
    wrong = "record: another namespace";
  } else if (header->key != key) {
    wrong = "record: another key";
  } else if (header->record_bytes != record.size()) {
    wrong = "record: another size";
  }
  if (wrong.empty()) return {};
  return make_error(Errc::corrupt, place(at) + ": " + wrong);
}

}  // namespace kvtier::storage
