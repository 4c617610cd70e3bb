// Changes of the index: those of a turn go into one batch, and what could not be made is made up
// for before the store is online again.
//
// Owned by the loop, on the store's thread. It holds:
// - What waits for a change (`Then`) is called once, after the commit that made it or could not.
// - A key that the index may name although it should not is remembered until an erase of it was
//   committed; a namespace that was told is remembered until it was.
// - An index that fails, or a log of erasures, takes the store offline; what was to be erased for
//   good is in the log before the store is online again.
// It never decides what is to be indexed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "storage/index/erasures.h"
#include "storage/index/index.h"
#include "storage/store/thread/availability.h"

namespace kvtier::storage {

class IndexChanges {
 public:
  using Then = std::function<void(const Result<void>&)>;

  IndexChanges(Availability& availability, Index& index, Erasures& erasures)
      : availability_(availability), index_(index), erasures_(erasures) {}

  // Of this turn's batch, and who waits for it.
  void put(const DiskEntry& entry) { batch_.put(entry); }
  void erase(std::span<const Key> keys);
  void when_committed(Then then) { on_commit_.push_back(std::move(then)); }
  // Dropped while it is offline.
  void touch(std::span<const std::pair<Key, std::uint64_t>> stamps);
  void put_namespace(NamespaceCommand&& known);
  void commit();

  // The record that a write replaces, as the write is taken: whoever sends it has given the record
  // up, and wherever it is written anew that comes later. What cannot be committed is erased on the
  // way back.
  void erase_replaced(const Key& key);

  // In the log when this returns, or before the store is online again.
  void erase_for_good(std::vector<Erasure> what);
  // Of records that are sealed now.
  std::uint64_t era() const noexcept { return erasures_.era(); }

  // They are erased before the store is online again.
  void erase_on_return(std::span<const Key> keys);
  // On the way back: the index as it is on disk, then what is owed to it. Errors: as
  // Index::revive() and commit().
  Result<void> revive();
  Result<void> make_up();

  bool has_room() const { return index_.has_room(); }
  Result<void> sync();

 private:
  Availability& availability_;
  Index& index_;
  Erasures& erasures_;
  Index::Batch batch_;
  std::vector<Then> on_commit_;
  std::vector<Key> replaced_;  // of this turn's batch
  std::vector<NamespaceCommand> namespaces_unsaved_;
  std::vector<Key> keys_to_erase_;
  std::vector<Erasure> to_erase_for_good_;
};

}  // namespace kvtier::storage
