// Entries of an index between its reading and their recovery. There may be tens of millions, and in
// a virtual machine memory that was not used before comes slowly: they take 56 bytes each, since
// few namespaces and sizes go round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "storage/index/store_options.h"

namespace kvtier::storage {

class IndexEntries {
 public:
  void reserve(std::size_t entries) { entries_.reserve(entries); }
  std::size_t size() const noexcept { return entries_.size(); }
  void push_back(const DiskEntry& entry);
  DiskEntry operator[](std::size_t at) const noexcept;

  // Returns how many there were. `gone` takes a DiskEntry.
  template <class Gone>
  std::size_t erase_if(Gone&& gone) {
    return std::erase_if(entries_, [&](const Entry& entry) { return gone(unpacked(entry)); });
  }
  // Those from `begin` up to `end` are not needed any more: what memory is theirs alone goes back,
  // and they read as anything.
  void give_back(std::size_t begin, std::size_t end) noexcept;

 private:
  struct Entry {
    Key key, parent;
    std::uint64_t last_access;
    std::uint32_t block_index, segment, slot, kind;
  };
  static_assert(sizeof(Entry) == 56);
  using Kind = std::pair<NamespaceId, std::uint64_t>;  // and the size of its records

  DiskEntry unpacked(const Entry& entry) const noexcept;
  std::uint32_t number_of(const Kind& kind);

  std::vector<Entry> entries_;
  std::vector<Kind> kinds_;
  std::map<Kind, std::uint32_t> numbers_;
  std::uint32_t last_kind_ = 0;
};

}  // namespace kvtier::storage
