// Entries of an index between its reading and their recovery. There may be tens of millions, and in
// a virtual machine memory that was not used before comes slowly: they take 56 bytes each, since
// few namespaces and sizes go round, on huge pages, and go back as they are recovered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/huge_array.h"
#include "storage/index/store_options.h"

namespace kvtier::storage {

class IndexEntries {
 public:
  std::size_t size() const noexcept { return size_; }
  void push_back(const DiskEntry& entry) {
    const BlockIdentity& identity = entry.identity;
    if (size_ == pieces_.size() * kPiece) pieces_.push_back(std::make_unique<Piece>(kPiece));
    at(size_++) = {identity.key,
                   identity.parent,
                   entry.last_access,
                   identity.block_index,
                   entry.at.segment,
                   entry.at.slot,
                   number_of({identity.ns, entry.record_bytes})};
  }
  DiskEntry operator[](std::size_t i) const noexcept { return unpacked(at(i)); }

  // Returns how many there were. `gone` takes a DiskEntry.
  template <class Gone>
  std::size_t erase_if(Gone&& gone) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      if (gone(unpacked(at(i)))) continue;
      if (kept != i) at(kept) = at(i);
      ++kept;
    }
    return std::exchange(size_, kept) - kept;
  }
  // Calls `visit(DiskEntry)` for each. The memory of those that were visited goes back meanwhile,
  // since whoever visits fills as much of its own; there are none in the end.
  template <class Visit>
  void hand_over(Visit&& visit) {
    for (std::size_t i = 0; i < size_; ++i) {
      visit(unpacked(at(i)));
      if (i % kPiece == kPiece - 1) pieces_[i / kPiece].reset();
    }
    pieces_.clear();
    size_ = 0;
  }

 private:
  struct Entry {
    Key key, parent;
    std::uint64_t last_access;
    std::uint32_t block_index, segment, slot, kind;
  };
  static_assert(sizeof(Entry) == 56);
  static constexpr std::size_t kPiece = 1 << 18;  // seven huge pages
  using Piece = HugeArray<Entry>;
  using Kind = std::pair<NamespaceId, std::uint64_t>;  // and the size of its records

  Entry& at(std::size_t i) noexcept { return (*pieces_[i / kPiece])[i % kPiece]; }
  const Entry& at(std::size_t i) const noexcept { return (*pieces_[i / kPiece])[i % kPiece]; }
  DiskEntry unpacked(const Entry& entry) const noexcept {
    const auto& [ns, record_bytes] = kinds_[entry.kind];
    return {{ns, entry.key, entry.parent, entry.block_index},
            {entry.segment, entry.slot},
            record_bytes,
            entry.last_access};
  }
  std::uint32_t number_of(const Kind& kind) {
    if (last_kind_ < kinds_.size() && kinds_[last_kind_] == kind) return last_kind_;
    return last_kind_ = number_of_another(kind);
  }
  std::uint32_t number_of_another(const Kind& kind);

  std::vector<std::unique_ptr<Piece>> pieces_;
  std::size_t size_ = 0;
  std::vector<Kind> kinds_;
  std::map<Kind, std::uint32_t> numbers_;
  std::uint32_t last_kind_ = 0;
};

}  // namespace kvtier::storage
