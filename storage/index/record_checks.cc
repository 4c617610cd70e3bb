#include "storage/index/record_checks.h"

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

namespace {

// The head of a record that is the one its identity says.
Result<PrivateHead> head_to_write(std::span<const std::byte> record,
                                  const BlockIdentity& identity) {
  PrivateHead head;
  if (auto good = head.read(record); !good) return good.error();
  const RecordHeader& header = head.header();
  if (header.record_bytes != record.size() || header.ns != identity.ns ||
      header.key != identity.key || header.parent != identity.parent ||
      header.block_index != identity.block_index) {
    return make_error(Errc::corrupt, "a record to be written is not the block it is named as");
  }
  return head;
}

}  // namespace

Result<void> seal_record(std::span<std::byte> record, const BlockIdentity& identity,
                         std::uint64_t era) {
  auto head = head_to_write(record, identity);
  if (!head) return head.error();
  return head->seal(record, era);
}

Result<PrivateHead> sealed_head(std::span<const std::byte> record, const BlockIdentity& identity,
                                std::uint64_t era) {
  auto head = head_to_write(record, identity);
  if (!head) return head;
  if (auto sealed = head->seal_apart(record, era); !sealed) return sealed.error();
  return head;
}

Result<void> verify_record(std::span<const std::byte> record, const NamespaceId& ns,
                           const Key& key) {
  const auto header = verify_found(record);
  if (!header) return header.error();
  if (header->ns != ns) return make_error(Errc::corrupt, "record: another namespace");
  if (header->key != key) return make_error(Errc::corrupt, "record: another key");
  if (header->record_bytes != record.size())
    return make_error(Errc::corrupt, "record: another size");
  return {};
}

Result<void> verify_record(std::span<const std::byte> record, const NamespaceId& ns, const Key& key,
                           DiskLocation at) {
  auto good = verify_record(record, ns, key);
  if (!good) return make_error(Errc::corrupt, place(at) + ": " + good.error().message);
  return good;
}

}  // namespace kvtier::storage
