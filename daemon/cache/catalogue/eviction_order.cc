#include "daemon/cache/catalogue/eviction_order.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <utility>

namespace kvtier::daemon {
namespace {

constexpr std::size_t kWorthDigits = 1 << 14;  // of fewer blocks, comparing is as quick
constexpr unsigned kDigitBits = 11;
constexpr unsigned kDigitsMax = (64 + kDigitBits - 1) / kDigitBits;

// The order as one number a block: it grows with the stamp and, within one stamp, towards the head.
class Rank64 {
 public:
  explicit Rank64(std::span<const Recovered> blocks) {
    std::uint64_t last = 0;
    first_ = ~std::uint64_t{0};
    for (const Recovered& block : blocks) {
      first_ = std::min(first_, block.last_access);
      last = std::max(last, block.last_access);
      tail_ = std::max(tail_, block.block_index);
    }
    index_bits_ = static_cast<unsigned>(std::bit_width(tail_));
    bits_ = static_cast<unsigned>(std::bit_width(last - first_)) + index_bits_;
  }
  unsigned bits() const noexcept { return bits_; }
  std::uint64_t of(const Recovered& block) const noexcept {
    return (block.last_access - first_) << index_bits_ | (tail_ - block.block_index);
  }

 private:
  std::uint64_t first_ = 0;
  std::uint32_t tail_ = 0;
  unsigned index_bits_ = 0, bits_ = 0;
};

// Digit by digit, the lowest first: what it takes grows with the number of blocks, of which there
// may be tens of millions.
void sort_by_digits(std::span<Recovered> blocks, const Rank64& rank) {
  constexpr std::uint64_t kMask = (1U << kDigitBits) - 1;
  const unsigned digits = (rank.bits() + kDigitBits - 1) / kDigitBits;
  const auto digit_of = [&rank](const Recovered& block, unsigned digit) {
    return static_cast<std::size_t>(rank.of(block) >> (digit * kDigitBits) & kMask);
  };
  std::array<std::array<std::uint32_t, kMask + 1>, kDigitsMax> begins{};
  for (const Recovered& block : blocks) {
    for (unsigned digit = 0; digit < digits; ++digit) ++begins[digit][digit_of(block, digit)];
  }
  const auto other = std::make_unique_for_overwrite<Recovered[]>(blocks.size());
  std::span<Recovered> from = blocks, to(other.get(), blocks.size());
  for (unsigned digit = 0; digit < digits; ++digit) {
    std::uint32_t before = 0;
    for (std::uint32_t& begin : begins[digit]) before += std::exchange(begin, before);
    for (const Recovered& block : from) to[begins[digit][digit_of(block, digit)]++] = block;
    std::swap(from, to);
  }
  if (from.data() != blocks.data()) std::ranges::copy(from, blocks.begin());
}

void sort_by_age(std::span<Recovered> blocks) {
  const Rank64 rank(blocks);
  if (blocks.size() >= kWorthDigits && rank.bits() <= 64) return sort_by_digits(blocks, rank);
  std::ranges::sort(blocks, [](const Recovered& a, const Recovered& b) {
    return std::pair(a.last_access, b.block_index) < std::pair(b.last_access, a.block_index);
  });
}

}  // namespace

std::vector<BlockId> oldest_first(const Catalogue& catalogue, std::span<Recovered> blocks) {
  const auto is_orphan = [&](const Recovered& r) {
    return catalogue.namespaces()[catalogue.block(r.id).ns].is_orphan();
  };
  std::size_t orphans = 0;
  if (catalogue.namespaces().orphan_blocks() != 0) {
    orphans = static_cast<std::size_t>(std::partition(blocks.begin(), blocks.end(), is_orphan) -
                                       blocks.begin());
  }
  sort_by_age(blocks.first(orphans));
  sort_by_age(blocks.subspan(orphans));
  std::vector<BlockId> ids(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) ids[i] = blocks[i].id;
  return ids;
}

}  // namespace kvtier::daemon
