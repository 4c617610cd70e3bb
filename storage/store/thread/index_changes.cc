#include "storage/store/thread/index_changes.h"

#include <utility>

#include "storage/index/points.h"

namespace kvtier::storage {

void IndexChanges::erase(std::span<const Key> keys) {
  for (const Key& key : keys) batch_.erase(key);
}

void IndexChanges::touch(std::span<const std::pair<Key, std::uint64_t>> stamps) {
  if (!availability_.online()) return;
  for (const auto& [key, stamp] : stamps) batch_.touch(key, stamp);
}

void IndexChanges::put_namespace(NamespaceCommand&& known) {
  if (availability_.online()) batch_.put_namespace(known.id, known.encoded);
  namespaces_unsaved_.push_back(std::move(known));
}

void IndexChanges::commit() {
  if (batch_.empty() && on_commit_.empty()) return;
  Result<void> result = index_.commit(batch_);
  const auto replaced = std::exchange(replaced_, {});
  if (result) {
    namespaces_unsaved_.clear();
    if (!replaced.empty()) KVTIER_STORAGE_POINT("storage.write.replaced_erased");
  } else {
    erase_on_return(replaced);
    availability_.index_failed(result.error());
    result = availability_.offline();
  }
  for (auto& run : std::exchange(on_commit_, {})) run(result);
}

void IndexChanges::erase_replaced(const Key& key) {
  batch_.erase(key);
  replaced_.push_back(key);
}

void IndexChanges::erase_for_good(std::vector<Erasure> what) {
  if (availability_.online()) {
    const auto added = erasures_.add(what);
    if (added) return;
    availability_.index_failed(added.error());
  }
  to_erase_for_good_.insert(to_erase_for_good_.end(), what.begin(), what.end());
}

void IndexChanges::erase_on_return(std::span<const Key> keys) {
  keys_to_erase_.insert(keys_to_erase_.end(), keys.begin(), keys.end());
}

Result<void> IndexChanges::revive() {
  if (const auto revived = index_.revive(); !revived) return revived;
  KVTIER_STORAGE_POINT("storage.health.index_revived");
  return {};
}

Result<void> IndexChanges::make_up() {
  if (const auto added = erasures_.add(to_erase_for_good_); !added) return added;
  to_erase_for_good_.clear();
  Index::Batch batch;
  for (const Key& key : keys_to_erase_) batch.erase(key);
  for (const auto& known : namespaces_unsaved_) batch.put_namespace(known.id, known.encoded);
  if (const auto made_up = index_.commit(batch); !made_up) return made_up;
  keys_to_erase_.clear();
  namespaces_unsaved_.clear();
  return {};
}

Result<void> IndexChanges::sync() {
  KVTIER_STORAGE_POINT("storage.flush.before_index_sync");
  const Result<void> synced = index_.sync();
  if (!synced) availability_.index_failed(synced.error());
  KVTIER_STORAGE_POINT("storage.flush.after_index_sync");
  return synced;
}

}  // namespace kvtier::storage
