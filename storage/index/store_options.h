// What a store is told and what it finds: where records lie, and the options. Known to the index
// and the segments below the store itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "core/record/record.h"

namespace rocksdb {
class Env;
}

namespace kvtier::storage {

struct DiskLocation {
  std::uint32_t segment = 0;
  std::uint32_t slot = 0;
  friend bool operator==(const DiskLocation&, const DiskLocation&) = default;
};

// A range of a segment's file that is not to be used again.
struct BadPlace {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0, bytes = 0;
  friend bool operator==(const BadPlace&, const BadPlace&) = default;
};

// What is never to come back: a record, all of a namespace, all there is.
struct Erasure {
  enum class Of : std::uint32_t { key = 1, ns = 2, all = 3 };
  Of of = Of::key;
  NamespaceId ns{};  // of a key too
  Key key{};
};

// What can be done with a store's device: everything; reads alone, where writes or syncs fail or no
// space is left; nothing.
enum class DiskState : std::uint8_t { online, read_only, offline };

// A record that a failed sync leaves in doubt.
struct LostRecord {
  Key key;
  DiskLocation at;
  friend bool operator==(const LostRecord&, const LostRecord&) = default;
};

// One record that a store found in its index at start.
struct DiskEntry {
  BlockIdentity identity;
  DiskLocation at;
  std::uint64_t record_bytes = 0;
  std::uint64_t last_access = 0;  // the cache's logical clock
};

struct RecordStoreOptions {
  std::filesystem::path directory;
  std::uint64_t capacity_bytes = 0;  // everything under `directory`, RocksDB included
  std::uint64_t segment_bytes = 256ULL << 20;
  std::uint32_t reads_in_flight_max = 32;
  std::uint32_t writes_in_flight_max = 32;
  // Accepted and not yet done, in flight included. Beyond: no_space, and the caller counts a
  // dropped write.
  std::uint32_t reads_queued_max = 16384;
  std::uint32_t writes_queued_max = 256;
  bool may_create = true;  // false: a directory without a store is an error (not_found)
  // Refuse a capacity larger than the free space. Off only where the segments are known to be
  // sparse.
  bool check_free_space = true;
  // A kernel thread takes submissions: fewer system calls for one busy core. Given up with a line
  // in the log where the kernel refuses it.
  bool sqpoll = false;
  bool force_threads = false;          // the path of hosts without io_uring
  std::uint32_t checksum_threads = 2;  // for records too large for the store's own thread
  // An offline store is probed after `probe_first`, then after twice as long each time; an online
  // one looks as often as `check_interval` whether its directory is still there.
  std::chrono::milliseconds probe_first{100}, probe_max{5000}, check_interval{1000};
  // Where the index's files are, for tests (tests/storage/faults/index_files.h); null: the
  // system's.
  rocksdb::Env* index_env = nullptr;
  // Told how far opening is where that takes long; on the caller's thread.
  std::function<void(const std::string&)> progress;
  // Asked now and then where opening takes long: whether it is to be given up (unavailable).
  std::function<bool()> cancelled;
};

// Tests of places that wait or are under way.
inline constexpr std::uint32_t kPlaceTestsMax = 256;

// Scrubs under way, and so the store's own buffers for them.
inline constexpr std::uint32_t kScrubsMax = 4;

// What of the capacity may be segments: all but the index's share, 32 MiB + 1/64 (256 bytes of
// index for every 16 KiB of records), and what file systems allocate beside each file's bytes.
// A multiple of segment_bytes; 0 if the capacity is smaller than that share.
std::uint64_t segment_capacity_bytes(const RecordStoreOptions& options) noexcept;

// Slots in one segment file, after its header page. DiskSpace and the files both count with this.
std::uint32_t slots_per_segment(std::uint64_t segment_bytes, std::uint64_t slot_bytes) noexcept;

}  // namespace kvtier::storage
