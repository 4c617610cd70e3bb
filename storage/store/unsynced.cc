#include "storage/store/unsynced.h"

#include <algorithm>

namespace kvtier::storage {

void Unsynced::add(const Key& key, DiskLocation at) {
  const std::uint64_t number = next_++;
  records_.insert_or_assign(key, Noted{at, number});
  notes_[at.segment].push_back({key, number});
  ++noted_;
}

void Unsynced::synced(std::uint32_t segment) {
  const auto found = notes_.find(segment);
  if (found == notes_.end()) return;
  auto& notes = found->second;
  const auto later = std::ranges::lower_bound(notes, sync_from_, {}, &Note::number);
  for (auto note = notes.begin(); note != later; ++note) {
    const auto record = records_.find(note->key);
    if (record != records_.end() && record->second.number == note->number) records_.erase(record);
  }
  noted_ -= static_cast<std::size_t>(later - notes.begin());
  notes.erase(notes.begin(), later);
  if (notes.empty()) notes_.erase(found);
}

std::vector<LostRecord> Unsynced::take(std::uint32_t segment) {
  ++doubts_[segment];
  std::vector<LostRecord> taken;
  const auto notes = notes_.extract(segment);
  if (notes.empty()) return taken;
  noted_ -= notes.mapped().size();
  for (const Note& note : notes.mapped()) {
    const auto record = records_.find(note.key);
    if (record == records_.end() || record->second.number != note.number) continue;
    taken.push_back({note.key, record->second.at});
    records_.erase(record);
  }
  return taken;
}

std::uint32_t Unsynced::doubts(std::uint32_t segment) const {
  const auto found = doubts_.find(segment);
  return found == doubts_.end() ? 0 : found->second;
}

}  // namespace kvtier::storage
