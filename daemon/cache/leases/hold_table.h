// What one user holds leased: each block once a tier, however many leases of however many of its
// sessions have it. A flat table, since every leased block passes it twice. Owned by the control
// thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/cache/catalogue/block_index.h"

namespace kvtier::daemon {

class HoldTable {
 public:
  struct Entry {
    std::uint64_t name = 0;    // 0: empty
    std::uint32_t leases = 0;  // that have the block, those that wait for it too
    std::uint32_t held = 0;    // of those, who have it
    std::uint64_t bytes = 0;   // as the first of them counted it
  };

  static std::uint64_t name_of(BlockId block, Tier tier) noexcept {
    return std::uint64_t{index_of(tier) + 1} << 32 | block.value;
  }
  bool empty() const noexcept { return used_ == 0; }
  std::size_t size() const noexcept { return used_; }
  std::size_t bytes() const noexcept { return entries_.size() * sizeof(Entry); }

  // Null where there is none. Good until the next change of the table.
  Entry* find(std::uint64_t name) noexcept {
    if (entries_.empty()) return nullptr;
    Entry& at = entries_[place_of(name)];
    return at.name == name ? &at : nullptr;
  }
  // The one there is, or a new one of no leases. Room was made for it by expect().
  Entry& at(std::uint64_t name) noexcept {
    Entry& at = entries_[place_of(name)];
    used_ += at.name == 0 ? 1 : 0;
    at.name = name;
    return at;
  }
  // So many more are going to be added.
  void expect(std::size_t more) {
    if (2 * (used_ + more) > entries_.size()) grow(used_ + more);
  }
  // One that find() or at() has just given.
  void erase(Entry* entry) noexcept {
    std::size_t hole = static_cast<std::size_t>(entry - entries_.data());
    const std::size_t mask = entries_.size() - 1;
    // What comes after and would be looked for from here or before moves up.
    for (std::size_t at = (hole + 1) & mask; entries_[at].name != 0; at = (at + 1) & mask) {
      const std::size_t from_home = (at - home_of(entries_[at].name)) & mask;
      if (from_home < ((at - hole) & mask)) continue;
      entries_[hole] = entries_[at];
      hole = at;
    }
    entries_[hole] = {};
    --used_;
  }

 private:
  // Blocks that came one after the other have numbers that do, and places side by side.
  static constexpr std::size_t kTogether = 8;
  std::size_t home_of(std::uint64_t name) const noexcept {
    const std::uint64_t group = name / kTogether * 0x9E3779B97F4A7C15ULL >> 20;
    return (group * kTogether + name % kTogether) & (entries_.size() - 1);
  }
  // Where it is, or the empty place where it would be.
  std::size_t place_of(std::uint64_t name) const noexcept {
    std::size_t at = home_of(name);
    while (entries_[at].name != 0 && entries_[at].name != name)
      at = (at + 1) & (entries_.size() - 1);
    return at;
  }
  void grow(std::size_t entries) {
    constexpr std::size_t kFirst = 64;
    const auto before =
        std::exchange(entries_, std::vector<Entry>(std::bit_ceil(std::max(2 * entries, kFirst))));
    for (const Entry& entry : before) {
      if (entry.name != 0) entries_[place_of(entry.name)] = entry;
    }
  }

  std::vector<Entry> entries_;  // a power of two of them, at most half used
  std::size_t used_ = 0;
};

}  // namespace kvtier::daemon
