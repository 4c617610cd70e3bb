#include "daemon/control/block_index.h"

#include <bit>

#include "client/base/check.h"

namespace kvtier::daemon {
namespace {

// More than the cache misses that a core can have under way. The entry is asked for when the
// table's word has had half of that time to come.
constexpr std::size_t kAhead = 32;
constexpr std::size_t kEntryAhead = 16;

std::uint32_t table_words(std::uint32_t blocks_max) {
  KVTIER_CHECK(blocks_max > 0 && blocks_max < (1U << 30));
  return std::bit_ceil(blocks_max * 2);
}

}  // namespace

BlockIndex::BlockIndex(std::uint32_t blocks_max)
    : blocks_max_(blocks_max),
      mask_(table_words(blocks_max) - 1),
      shift_(32 - static_cast<std::uint32_t>(std::bit_width(mask_))),
      blocks_(blocks_max),
      links_{HugeArray<LruLink>(blocks_max), HugeArray<LruLink>(blocks_max),
             HugeArray<LruLink>(blocks_max)},
      table_(std::size_t{mask_} + 1) {
  static_assert(kTiers == 3);
}

BlockId BlockIndex::find(const Key& key) const noexcept {
  const std::uint32_t tag = tag_of(key);
  for (std::uint32_t at = home(tag);; at = (at + 1) & mask_) {
    const Word word = table_[at];
    if (word == 0) return kNoBlock;
    if (tag_in(word) == tag && blocks_[id_in(word).value].key == key) return id_in(word);
  }
}

void BlockIndex::prefetch_entry(const Key& key) const noexcept {
  const std::uint32_t tag = tag_of(key);
  for (std::uint32_t at = home(tag); table_[at] != 0; at = (at + 1) & mask_) {
    if (tag_in(table_[at]) == tag) return __builtin_prefetch(&blocks_[id_in(table_[at]).value]);
  }
}

void BlockIndex::find_many(std::span<const Key> keys, std::span<BlockId> ids) const noexcept {
  for (std::size_t i = 0; i < keys.size() + kAhead; ++i) {
    if (i < keys.size()) prefetch(keys[i]);
    if (i >= kEntryAhead && i - kEntryAhead < keys.size()) prefetch_entry(keys[i - kEntryAhead]);
    if (i >= kAhead) ids[i - kAhead] = find(keys[i - kAhead]);
  }
}

BlockId BlockIndex::insert(const Key& key) noexcept {
  if (size_ == blocks_max_) return kNoBlock;
  BlockId id = free_;
  if (id != kNoBlock) {
    free_ = BlockId(blocks_[id.value].block_index);
  } else {
    id = BlockId(used_++);
  }
  Block& block = blocks_[id.value];
  block = Block{};
  block.key = key;
  for (auto& links : links_) links[id.value] = {};
  const std::uint32_t tag = tag_of(key);
  std::uint32_t at = home(tag);
  while (table_[at] != 0) at = (at + 1) & mask_;
  table_[at] = Word{tag} << 32 | (id.value + 1);
  ++size_;
  return id;
}

void BlockIndex::erase(BlockId id) noexcept {
  Block& block = blocks_[id.value];
  KVTIER_CHECK(block.tiers.empty() && block.holds == decltype(block.holds){});
  std::uint32_t hole = home(tag_of(block.key));
  while (id_in(table_[hole]) != id) hole = (hole + 1) & mask_;
  for (std::uint32_t at = (hole + 1) & mask_; table_[at] != 0; at = (at + 1) & mask_) {
    const std::uint32_t from_home = (at - home(tag_in(table_[at]))) & mask_;
    if (from_home < ((at - hole) & mask_)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = 0;
  block.block_index = free_.value;
  free_ = id;
  --size_;
}

}  // namespace kvtier::daemon
