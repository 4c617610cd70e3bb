// The slot table of an extent: the truth about what its slots hold, in a shared-memory descriptor
// of its own that only the daemon writes. The in-memory index is rebuilt from it (docs/format.md).
//
// Slot states: free -> reserved -> sealed -> free, and reserved -> quarantined -> free when the
// client that held the reservation is gone or may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/base/fd.h"
#include "kvtier/key.h"
#include "kvtier/result.h"

namespace kvtier::storage {

inline constexpr std::uint64_t kSlotTableMagic = 0x31304C5352495456ULL;  // "VTIRSL01" in memory
inline constexpr std::uint32_t kSlotTableVersion = 2;

enum class SlotState : std::uint32_t { free = 0, reserved = 1, sealed = 2, quarantined = 3 };

// SlotEntry::flags: the record waits for the disk, which may not have it yet.
inline constexpr std::uint32_t kDiskOwed = 1;

struct SlotEntry {
  SlotState state;
  std::uint32_t block_index;
  NamespaceId ns;
  Key key;
  Key parent;
  std::uint64_t last_access;       // the cache's logical clock
  std::uint64_t payload_checksum;  // 0: not known
  std::uint64_t owner_start_time;  // with owner_pid names one process: clock ticks since boot
  std::uint32_t owner_pid;         // while reserved or quarantined
  std::uint32_t flags;             // kDiskOwed
  std::uint64_t owner_client;      // which of the process's clients, by the number it gave itself
  std::uint64_t reserved[4];
};
static_assert(sizeof(SlotEntry) == 128);
static_assert(std::is_trivially_copyable_v<SlotEntry>);

struct SlotTableHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t extent_id;
  std::uint32_t tier;
  std::uint32_t slots;
  std::uint64_t slot_bytes;
  std::uint64_t extent_bytes;
  std::byte boot_id[16];  // the host's boot, for owner_start_time
  std::byte gpu[16];      // the UUID of the GPU whose memory it is; zeros for host memory
  std::uint64_t owner;    // whose memory it is alone: XXH3-64 of a tenant's name; 0: shared
  std::uint64_t reserved[5];
  std::uint64_t checksum;  // XXH3-64 of the bytes before it
};
static_assert(sizeof(SlotTableHeader) == 128);

// Who may be writing to a slot. `start_time` 0: the daemon itself, which reads from disk into it.
struct SlotOwner {
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;
  std::uint64_t client = 0;
};

class SlotTable {
 public:
  SlotTable() = default;
  // A fresh table with every slot free. `header` is complete but for magic, version and checksum.
  // Errors: io, no_space.
  static Result<SlotTable> create(const SlotTableHeader& header);
  // Takes over an existing table after checking all of its header. Errors: corrupt, version, io.
  static Result<SlotTable> adopt(UniqueFd fd);

  const SlotTableHeader& header() const noexcept;
  int fd() const noexcept { return fd_.get(); }
  const SlotEntry& entry(std::uint32_t slot) const noexcept;

  // Each transition must be one of those above; another one is a programming error.
  // Writes are ordered so that a reader of the table after a crash at any instruction never sees a
  // sealed slot with a half-written identity.
  void set_reserved(std::uint32_t slot, const SlotOwner& owner) noexcept;
  void set_sealed(std::uint32_t slot, const SlotEntry& identity) noexcept;
  void set_quarantined(std::uint32_t slot) noexcept;
  void set_free(std::uint32_t slot) noexcept;
  void set_last_access(std::uint32_t slot, std::uint64_t stamp) noexcept;
  void set_flags(std::uint32_t slot, std::uint32_t flags) noexcept;

 private:
  std::span<SlotEntry> entries() const noexcept;
  SlotEntry& at(std::uint32_t slot) noexcept;

  UniqueFd fd_;
  Mapping mapping_;
};

}  // namespace kvtier::storage
