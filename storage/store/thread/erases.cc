#include "storage/store/thread/erases.h"

#include <utility>

#include "core/base/check.h"
#include "storage/index/points.h"

namespace kvtier::storage {

std::shared_ptr<PendingErase> Erases::begin(EraseCommand& command) {
  ++pending_;
  KVTIER_STORAGE_POINT("storage.erase.taken");
  auto erase = std::make_shared<PendingErase>();
  erase->done = std::move(command.done);
  erase->flushes_before = flushes_.seen();
  return erase;
}

void Erases::commit(const std::shared_ptr<PendingErase>& erase, std::vector<Key> keys) {
  for (const Key& key : keys) unsynced_.remove(key);
  if (!availability_.online()) {
    changes_.erase_on_return(keys);
    erase->result = availability_.offline();
    end_part(*erase);
    return;
  }
  changes_.erase(keys);
  changes_.when_committed([this, erase, keys = std::move(keys)](const Result<void>& result) {
    if (!result) changes_.erase_on_return(keys);
    erase->result = result;
    end_part(*erase);
  });
}

void Erases::end_part(PendingErase& erase) {
  KVTIER_CHECK(erase.parts > 0);
  if (--erase.parts > 0) return;
  --pending_;
  KVTIER_STORAGE_POINT("storage.erase.done");
  shared_.finished.add(erase.done, erase.result);
  flushes_.end_before(erase.flushes_before);
}

}  // namespace kvtier::storage
