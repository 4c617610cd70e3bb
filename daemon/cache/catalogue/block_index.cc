#include "daemon/cache/catalogue/block_index.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/prefetch.h"

namespace kvtier::daemon {

BlockIndex::BlockIndex(std::uint32_t blocks_max, DirectoryWriter& directory)
    : blocks_max_(blocks_max),
      directory_(directory),
      blocks_(blocks_max),
      parents_(blocks_max),
      users_(blocks_max),
      marks_(blocks_max),
      links_{HugeArray<LruLink>(blocks_max), HugeArray<LruLink>(blocks_max),
             HugeArray<LruLink>(blocks_max), HugeArray<LruLink>(blocks_max)} {
  static_assert(kTiersWithRemote == 4 && kNoBlock.value == DirectoryWriter::kNoNumber);
  KVTIER_CHECK(blocks_max > 0 && blocks_max <= kDirectoryNumbers && directory.blocks() == 0 &&
               directory.blocks_max() >= blocks_max);
}

BlockId BlockIndex::find(const Key& key) const noexcept {
  return BlockId(directory_.number_of(key, [&](std::uint32_t n) { return blocks_[n].key == key; }));
}

void BlockIndex::prefetch_entry(const Key& key) const noexcept {
  const std::uint32_t number = directory_.number_of(key, [](std::uint32_t) { return true; });
  if (number != DirectoryWriter::kNoNumber) prefetch_memory(&blocks_[number]);
}

// Blocks of a prefix came one after the other, and mostly have entries that do.
std::size_t BlockIndex::find_neighbours(std::span<const Key> keys, std::span<BlockId> ids,
                                        BlockId before) const noexcept {
  std::size_t found = 0;
  if (before == kNoBlock) return found;
  for (std::uint32_t at = before.value + 1; found < keys.size() && at < used_; ++at, ++found) {
    // One that is placed nowhere was erased.
    if (blocks_[at].key != keys[found] || blocks_[at].tiers.empty()) break;
    ids[found] = BlockId(at);
  }
  return found;
}

// Where neighbours fail, one is looked up, then two and so on, until they are neighbours again.
void BlockIndex::find_many(std::span<const Key> keys, std::span<BlockId> ids,
                           BlockId before) const noexcept {
  std::size_t tabled = 1;
  for (std::size_t at = 0; at < keys.size();) {
    const std::size_t beside = find_neighbours(keys.subspan(at), ids.subspan(at), before);
    at += beside;
    tabled = beside >= tabled ? 1 : 2 * tabled;
    const std::size_t count = std::min(tabled, keys.size() - at);
    find_in_table(keys.subspan(at, count), ids.subspan(at, count));
    at += count;
    before = ids[at - 1];
  }
}

// A piece's words of the table are asked for, then the entries that they name, then both are read,
// each step for the whole piece and a piece later than the one before.
void BlockIndex::find_in_table(std::span<const Key> keys, std::span<BlockId> ids) const noexcept {
  constexpr std::size_t kPiece = 32;
  const auto piece = [&](std::size_t begin) {
    begin = std::min(begin, keys.size());
    return keys.subspan(begin, std::min(kPiece, keys.size() - begin));
  };
  prefetch(piece(0));
  prefetch(piece(kPiece));
  for (const Key& key : piece(0)) prefetch_entry(key);
  for (std::size_t begin = 0; begin < keys.size(); begin += kPiece) {
    prefetch(piece(begin + 2 * kPiece));
    for (const Key& key : piece(begin + kPiece)) prefetch_entry(key);
    for (std::size_t i = begin; i < std::min(begin + kPiece, keys.size()); ++i) {
      ids[i] = find(keys[i]);
    }
  }
}

BlockId BlockIndex::insert(const Key& key, const Key& parent) noexcept {
  if (size_ == blocks_max_) return kNoBlock;
  BlockId id = free_;
  if (id != kNoBlock) {
    free_ = BlockId(blocks_[id.value].block_index);
    users_[id.value] = 0;
    for (auto& links : links_) links[id.value] = {};
  } else {
    id = BlockId(used_++);  // of which all memory is zero yet
  }
  Block& block = blocks_[id.value];
  block = Block{};
  block.key = key;
  parents_[id.value] = parent;
  directory_.insert(key, id.value);
  ++size_;
  return id;
}

void BlockIndex::erase(BlockId id) noexcept {
  Block& block = blocks_[id.value];
  KVTIER_CHECK(block.tiers.empty() && block.holds == decltype(block.holds){});
  directory_.erase(block.key, id.value);
  block.block_index = free_.value;
  free_ = id;
  --size_;
}

}  // namespace kvtier::daemon
