// Records that the index names and that no sync has covered yet: what a failed sync leaves in
// doubt.
//
// Owned by the loop, on the store's thread. It holds:
// - A record is in it from the commit that indexed it until a sync of its segment that began later
//   has succeeded, it left the index, or a sync of its segment failed and it was taken.
// - A failed sync says nothing of which writes it lost, and the next one may succeed although they
//   are lost: the kernel tells of an error once. So all that were there when it failed are taken,
//   and a write that was under way to that segment sees that doubts() has changed.
// Its size has a bound: the loop begins a flush of its own where is_many().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "core/record/key_hash.h"
#include "storage/store/record_store.h"

namespace kvtier::storage {

class Unsynced {
 public:
  static constexpr std::size_t kMost = 1U << 16;

  void add(const Key& key, DiskLocation at);
  // It has left the index.
  void remove(const Key& key) { records_.erase(key); }
  bool is_many() const noexcept { return noted_ >= kMost; }

  // One sync is under way at a time.
  void begin_sync() noexcept { sync_from_ = next_; }
  // It was of that segment, and has succeeded.
  void synced(std::uint32_t segment);
  // It has failed: what it leaves in doubt, which is in here no more.
  std::vector<LostRecord> take(std::uint32_t segment);
  // How often that happened to the segment.
  std::uint32_t doubts(std::uint32_t segment) const;

 private:
  struct Noted {
    DiskLocation at;
    std::uint64_t number = 0;
  };
  struct Note {
    Key key;
    std::uint64_t number = 0;
  };

  std::unordered_map<Key, Noted, KeyHash> records_;
  // By segment, in the order in which they came. A note counts while its record has its number.
  std::map<std::uint32_t, std::vector<Note>> notes_;
  std::size_t noted_ = 0;  // in all of them
  std::uint64_t next_ = 1;
  std::uint64_t sync_from_ = 0;  // the first number that the sync under way does not cover
  std::map<std::uint32_t, std::uint32_t> doubts_;
};

}  // namespace kvtier::storage
