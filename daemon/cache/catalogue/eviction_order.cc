#include "daemon/cache/catalogue/eviction_order.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "core/base/huge_array.h"

namespace kvtier::daemon {
namespace {

constexpr std::size_t kWorthDigits = 1 << 14;  // of fewer blocks, comparing is as quick
constexpr unsigned kDigitBits = 11;
constexpr unsigned kDigitsMax = (64 + kDigitBits - 1) / kDigitBits;

// The order as one number a block: it grows with the age and, within one stamp, towards the tail.
class Ages {
 public:
  Ages(const Catalogue& catalogue, std::span<const BlockId> blocks) : catalogue_(&catalogue) {
    std::uint64_t oldest = ~std::uint64_t{0};
    std::uint32_t tail = 0, last = 0;
    for (const BlockId id : blocks) {
      const Block& block = catalogue.block(id);
      newest_ = std::max(newest_, block.last_access);
      oldest = std::min(oldest, block.last_access);
      tail = std::max(tail, block.block_index);
      last = std::max(last, id.value);
    }
    tail_bits_ = static_cast<unsigned>(std::bit_width(tail));
    bits_ = static_cast<unsigned>(std::bit_width(newest_ - oldest)) + tail_bits_;
    id_bits_ = static_cast<unsigned>(std::bit_width(last));
  }
  unsigned bits() const noexcept { return bits_; }
  unsigned id_bits() const noexcept { return id_bits_; }
  std::uint64_t of(BlockId id) const noexcept {
    const Block& block = catalogue_->block(id);
    return (newest_ - block.last_access) << tail_bits_ | block.block_index;
  }

 private:
  const Catalogue* catalogue_;
  std::uint64_t newest_ = 0;
  unsigned tail_bits_ = 0, bits_ = 0, id_bits_ = 0;
};

// A block and its age, in one word where both have room.
class Word {
 public:
  Word(std::uint64_t age, BlockId id, unsigned id_bits) noexcept
      : bits_(age << id_bits | id.value) {}
  std::uint64_t age(unsigned id_bits) const noexcept { return bits_ >> id_bits; }
  BlockId id(unsigned id_bits) const noexcept {
    return BlockId(static_cast<std::uint32_t>(bits_ & ((1ULL << id_bits) - 1)));
  }

 private:
  std::uint64_t bits_;
};
class Pair {
 public:
  Pair(std::uint64_t age, BlockId id, unsigned) noexcept : age_(age), id_(id) {}
  std::uint64_t age(unsigned) const noexcept { return age_; }
  BlockId id(unsigned) const noexcept { return id_; }

 private:
  std::uint64_t age_;
  BlockId id_;
};

// Digit by digit, the lowest first: what it takes grows with the number of blocks, of which there
// may be tens of millions. With the last digit the blocks are where they belong.
template <class Item>
void sort_by_digits(std::span<BlockId> blocks, const Ages& ages) {
  constexpr std::uint64_t kMask = (1U << kDigitBits) - 1;
  const unsigned digits = std::max(1U, (ages.bits() + kDigitBits - 1) / kDigitBits);
  const unsigned id_bits = ages.id_bits();
  const auto digit_of = [](std::uint64_t age, unsigned digit) {
    return static_cast<std::size_t>(age >> (digit * kDigitBits) & kMask);
  };
  HugeArray<Item> items(blocks.size()), others(blocks.size());
  std::array<std::array<std::uint32_t, kMask + 1>, kDigitsMax> begins{};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::uint64_t age = ages.of(blocks[i]);
    items[i] = Item(age, blocks[i], id_bits);
    for (unsigned digit = 0; digit < digits; ++digit) ++begins[digit][digit_of(age, digit)];
  }
  HugeArray<Item>*from = &items, *to = &others;
  for (unsigned digit = 0; digit < digits; ++digit) {
    auto& places = begins[digit];
    std::uint32_t before = 0;
    for (std::uint32_t& begin : places) before += std::exchange(begin, before);
    const bool is_last = digit + 1 == digits;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Item item = (*from)[i];
      const std::uint32_t place = places[digit_of(item.age(id_bits), digit)]++;
      if (is_last) {
        blocks[place] = item.id(id_bits);
      } else {
        (*to)[place] = item;
      }
    }
    std::swap(from, to);
  }
}

void sort_by_age(const Catalogue& catalogue, std::span<BlockId> blocks) {
  const Ages ages(catalogue, blocks);
  if (blocks.size() >= kWorthDigits && ages.bits() + ages.id_bits() <= 64)
    return sort_by_digits<Word>(blocks, ages);
  if (blocks.size() >= kWorthDigits && ages.bits() <= 64) return sort_by_digits<Pair>(blocks, ages);
  std::ranges::sort(blocks, [&](BlockId a, BlockId b) {
    const Block &of_a = catalogue.block(a), &of_b = catalogue.block(b);
    return of_a.last_access != of_b.last_access ? of_a.last_access > of_b.last_access
                                                : of_a.block_index < of_b.block_index;
  });
}

}  // namespace

void sort_newest_first(const Catalogue& catalogue, std::span<BlockId> blocks) {
  const auto is_known = [&](BlockId id) {
    return !catalogue.namespaces()[catalogue.block(id).ns].is_orphan();
  };
  std::size_t known = blocks.size();
  if (catalogue.namespaces().orphan_blocks() != 0) {
    known = static_cast<std::size_t>(std::partition(blocks.begin(), blocks.end(), is_known) -
                                     blocks.begin());
  }
  sort_by_age(catalogue, blocks.first(known));
  sort_by_age(catalogue, blocks.subspan(known));
}

}  // namespace kvtier::daemon
