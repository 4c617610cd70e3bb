#include "storage/memory/slot_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/record/digest.h"
#include "core/record/record.h"
#include "kvtier/tier.h"

namespace kvtier::storage {
namespace {

constexpr std::size_t table_bytes(std::uint32_t slots) noexcept {
  return sizeof(SlotTableHeader) + std::size_t{slots} * sizeof(SlotEntry);
}

Error corrupt(const std::string& what) {
  return make_error(Errc::corrupt, "slot table: " + what);
}

bool sizes_hold(const SlotTableHeader& header) noexcept {
  return header.slots > 0 && header.tier < kTiers && header.slot_bytes > 0 &&
         header.slot_bytes % kRecordAlignment == 0 &&
         header.slots <= header.extent_bytes / header.slot_bytes;
}

std::uint64_t checksum_of(const SlotTableHeader& header) noexcept {
  return xxh3_64(
      {reinterpret_cast<const std::byte*>(&header), offsetof(SlotTableHeader, checksum)});
}

// The state is the last store of every transition into a state that has meaning, and the first of
// one out of it: after a crash of this process the stores before it are in the shared memory.
void publish(SlotEntry& entry, SlotState state) noexcept {
  std::atomic_ref(entry.state).store(state, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

Result<SlotTable> SlotTable::create(const SlotTableHeader& header) {
  KVTIER_CHECK(sizes_hold(header));
  auto fd =
      make_memfd("kvtier-slots-" + std::to_string(header.extent_id), table_bytes(header.slots));
  if (!fd) return fd.error();
  auto mapping = Mapping::map(fd->get(), table_bytes(header.slots), Mapping::Access::read_write);
  if (!mapping) return mapping.error();

  SlotTableHeader complete = header;
  complete.magic = kSlotTableMagic;
  complete.version = kSlotTableVersion;
  complete.checksum = checksum_of(complete);
  std::memcpy(mapping->bytes().data(), &complete, sizeof complete);
  SlotTable table;
  table.fd_ = std::move(*fd);
  table.mapping_ = std::move(*mapping);
  return table;
}

Result<SlotTable> SlotTable::adopt(UniqueFd fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return errno_error(Errc::io, "slot table: fstat");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes < table_bytes(1)) return corrupt("only " + std::to_string(bytes) + " bytes");
  // Memory that can shrink under the mapping could kill this process.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return corrupt("not sealed against shrinking");
  if (const auto sealed = seal_memfd(fd.get()); !sealed) return sealed.error();
  auto mapping = Mapping::map(fd.get(), bytes, Mapping::Access::read_write);
  if (!mapping) return mapping.error();

  SlotTable table;
  table.fd_ = std::move(fd);
  table.mapping_ = std::move(*mapping);
  const SlotTableHeader& header = table.header();
  if (header.magic != kSlotTableMagic) return corrupt("magic");
  if (header.version != kSlotTableVersion) {
    return make_error(Errc::version, "slot table: version " + std::to_string(header.version) +
                                         ", this program reads " +
                                         std::to_string(kSlotTableVersion));
  }
  if (header.checksum != checksum_of(header)) return corrupt("its header does not hold");
  if (!sizes_hold(header) || table_bytes(header.slots) != bytes) return corrupt("sizes");
  for (const SlotEntry& entry : table.entries()) {
    if (entry.state > SlotState::quarantined) return corrupt("a slot in no known state");
  }
  return table;
}

const SlotTableHeader& SlotTable::header() const noexcept {
  return *reinterpret_cast<const SlotTableHeader*>(mapping_.bytes().data());
}

std::span<SlotEntry> SlotTable::entries() const noexcept {
  auto* first = mapping_.bytes().data() + sizeof(SlotTableHeader);
  return {reinterpret_cast<SlotEntry*>(first), header().slots};
}

SlotEntry& SlotTable::at(std::uint32_t slot) noexcept {
  KVTIER_CHECK(slot < header().slots);
  return entries()[slot];
}

const SlotEntry& SlotTable::entry(std::uint32_t slot) const noexcept {
  KVTIER_CHECK(slot < header().slots);
  return entries()[slot];
}

void SlotTable::set_reserved(std::uint32_t slot, const SlotOwner& owner) noexcept {
  SlotEntry& entry = at(slot);
  KVTIER_CHECK(entry.state == SlotState::free);
  entry.owner_pid = owner.pid;
  entry.owner_start_time = owner.start_time;
  entry.owner_client = owner.client;
  publish(entry, SlotState::reserved);
}

void SlotTable::set_sealed(std::uint32_t slot, const SlotEntry& identity) noexcept {
  SlotEntry& entry = at(slot);
  KVTIER_CHECK(entry.state == SlotState::reserved);
  SlotEntry next = identity;
  next.state = SlotState::reserved;
  next.owner_pid = entry.owner_pid;
  next.owner_start_time = entry.owner_start_time;
  next.owner_client = entry.owner_client;
  entry = next;
  publish(entry, SlotState::sealed);
  entry.owner_pid = 0;
  entry.owner_start_time = 0;
  entry.owner_client = 0;
}

void SlotTable::set_quarantined(std::uint32_t slot) noexcept {
  SlotEntry& entry = at(slot);
  KVTIER_CHECK(entry.state == SlotState::reserved);
  publish(entry, SlotState::quarantined);
}

void SlotTable::set_free(std::uint32_t slot) noexcept {
  SlotEntry& entry = at(slot);
  KVTIER_CHECK(entry.state != SlotState::free);
  publish(entry, SlotState::free);
  entry = SlotEntry{};
}

void SlotTable::set_last_access(std::uint32_t slot, std::uint64_t stamp) noexcept {
  at(slot).last_access = stamp;
}

void SlotTable::set_flags(std::uint32_t slot, std::uint32_t flags) noexcept {
  at(slot).flags = flags;
}

}  // namespace kvtier::storage
