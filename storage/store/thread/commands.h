// What the store's thread is told by the control thread and by its workers, and what it counts for
// them. Data only; each command is carried out by the part of the loop that owns what it concerns.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "storage/store/record_store.h"

namespace kvtier::storage {

struct ReadCommand {
  RecordStore::Read read;
  RecordStore::Done<void> done;
  // Of the memory for second looks, where it has come to one: what landed in the extent's slot did
  // not hold, and clients may have written there meanwhile.
  std::optional<std::uint32_t> look_part = std::nullopt;
};
struct ScrubCommand {
  RecordStore::Scrub scrub;
  RecordStore::Done<void> done;
  std::chrono::steady_clock::time_point since = {};
  std::uint32_t part = 0;  // of the memory for scrubs, once it is started
};
struct PlaceTestCommand {
  DiskLocation at;
  std::uint64_t slot_bytes = 0;
  RecordStore::Done<void> done;
  std::chrono::steady_clock::time_point since = {};
};
// An erase that is done when its commit and every write it overtook are: their slots are the
// caller's then.
struct PendingErase {
  RecordStore::Done<void> done;
  std::uint64_t flushes_before = 0;
  std::size_t parts = 1;
  Result<void> result;
};
struct WriteCommand {
  RecordStore::Write write;
  RecordStore::Done<void> done;
  std::uint64_t flushes_before = 0;
  std::uint32_t doubts_before = 0;  // of its segment (Unsynced), when it was sent to the device
  std::vector<std::shared_ptr<PendingErase>> erased_by;  // not empty: it will not be indexed
};
struct EraseCommand {
  std::vector<Key> keys;
  RecordStore::Done<void> done;
};
struct EraseForGoodCommand {
  std::vector<Erasure> what;
};
struct TouchCommand {
  std::vector<std::pair<Key, std::uint64_t>> stamps;
};
struct NamespaceCommand {
  NamespaceId id;
  std::vector<std::byte> encoded;  // none: it is to be forgotten
};
struct FlushCommand {
  RecordStore::Done<void> done;
};
struct RegisterCommand {
  ExtentId extent;
  std::span<std::byte> memory;
  std::uint64_t slot_bytes = 0;
};
// From a worker: this much of an extent has its pages, from its begin.
struct PopulatedCommand {
  ExtentId extent;
  std::size_t bytes = 0;
};
struct ForgetCommand {
  ExtentId extent;
  std::function<void()> done;
};
struct HealthCommand {
  RecordStore::Changed changed;
};
using RecordsLost = std::function<void(const std::vector<LostRecord>&)>;
struct LostCommand {
  RecordsLost lost;
};
// From a worker: the checksums of the command with this tag are set, or were compared.
struct ChecksumCommand {
  std::uint64_t tag = 0;
  Result<void> result;
};
struct CloseCommand {};
using StoreCommand = std::variant<ReadCommand, WriteCommand, ScrubCommand, PlaceTestCommand,
                                  EraseCommand, EraseForGoodCommand, TouchCommand, NamespaceCommand,
                                  FlushCommand, RegisterCommand, PopulatedCommand, ForgetCommand,
                                  HealthCommand, LostCommand, ChecksumCommand, CloseCommand>;

// Shared with the control thread.
struct StoreCounters {
  std::atomic<std::uint64_t> records_read = 0, bytes_read = 0, read_failures = 0,
                             checksum_failures = 0, memory_faults = 0;
  std::atomic<std::uint64_t> records_written = 0, bytes_written = 0, write_failures = 0,
                             records_given_up = 0;
  std::atomic<std::uint64_t> reads_pending = 0, writes_pending = 0, stamps_pending = 0;
  std::atomic<std::uint32_t> scrubs_pending = 0, place_tests_pending = 0;
  // Allocated for the index's files, and for the index in memory, a moment ago.
  std::atomic<std::uint64_t> index_bytes = 0, index_memory_bytes = 0;
  std::atomic<bool> online = true, readable = true;
  std::atomic<bool> index_full = false;
};

}  // namespace kvtier::storage
