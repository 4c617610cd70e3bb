#include "storage/index/index_entries.h"

#include <span>

#include "core/base/fd.h"

namespace kvtier::storage {

void IndexEntries::push_back(const DiskEntry& entry) {
  const BlockIdentity& identity = entry.identity;
  entries_.push_back({identity.key, identity.parent, entry.last_access, identity.block_index,
                      entry.at.segment, entry.at.slot,
                      number_of({identity.ns, entry.record_bytes})});
}

DiskEntry IndexEntries::operator[](std::size_t at) const noexcept {
  return unpacked(entries_[at]);
}

void IndexEntries::give_back(std::size_t begin, std::size_t end) noexcept {
  give_back_pages(std::as_writable_bytes(std::span(entries_).subspan(begin, end - begin)));
}

DiskEntry IndexEntries::unpacked(const Entry& entry) const noexcept {
  const auto& [ns, record_bytes] = kinds_[entry.kind];
  return {{ns, entry.key, entry.parent, entry.block_index},
          {entry.segment, entry.slot},
          record_bytes,
          entry.last_access};
}

std::uint32_t IndexEntries::number_of(const Kind& kind) {
  if (last_kind_ < kinds_.size() && kinds_[last_kind_] == kind) return last_kind_;
  const auto [at, fresh] = numbers_.emplace(kind, static_cast<std::uint32_t>(kinds_.size()));
  if (fresh) kinds_.push_back(kind);
  return last_kind_ = at->second;
}

}  // namespace kvtier::storage
