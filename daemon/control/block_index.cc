#include "daemon/control/block_index.h"

#include <bit>

#include "client/base/check.h"

namespace kvtier::daemon {

BlockIndex::BlockIndex(std::uint32_t blocks_max)
    : blocks_max_(blocks_max), mask_(std::bit_ceil(blocks_max * 2) - 1) {
  KVTIER_CHECK(blocks_max > 0 && blocks_max < (1U << 30));
  blocks_.reserve(blocks_max);
  table_.assign(mask_ + 1, kNoBlock.value);
}

BlockId BlockIndex::find(const Key& key) const noexcept {
  for (std::uint32_t at = home(key);; at = (at + 1) & mask_) {
    const std::uint32_t id = table_[at];
    if (id == kNoBlock.value) return kNoBlock;
    if (blocks_[id].key == key) return BlockId(id);
  }
}

BlockId BlockIndex::insert(const Key& key) noexcept {
  if (size_ == blocks_max_) return kNoBlock;
  BlockId id = free_;
  if (id != kNoBlock) {
    free_ = blocks_[id.value].lru[0].older;
    blocks_[id.value] = Block{};
  } else {
    id = BlockId(static_cast<std::uint32_t>(blocks_.size()));
    blocks_.emplace_back();
  }
  blocks_[id.value].key = key;
  std::uint32_t at = home(key);
  while (table_[at] != kNoBlock.value) at = (at + 1) & mask_;
  table_[at] = id.value;
  ++size_;
  return id;
}

void BlockIndex::erase(BlockId id) noexcept {
  Block& block = blocks_[id.value];
  KVTIER_CHECK(block.tiers.empty() && block.holds == decltype(block.holds){});
  std::uint32_t hole = home(block.key);
  while (table_[hole] != id.value) hole = (hole + 1) & mask_;
  for (std::uint32_t at = (hole + 1) & mask_; table_[at] != kNoBlock.value; at = (at + 1) & mask_) {
    const std::uint32_t from_home = (at - home(blocks_[table_[at]].key)) & mask_;
    if (from_home < ((at - hole) & mask_)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = kNoBlock.value;
  block.lru[0].older = free_;
  free_ = id;
  --size_;
}

}  // namespace kvtier::daemon
