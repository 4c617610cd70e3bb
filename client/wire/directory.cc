#include "client/wire/directory.h"

#include <fcntl.h>

#include <bit>
#include <cstring>

#include "client/base/check.h"

namespace kvtier {
namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kTierBits = 0xFF;

// Zero is the empty word, so a key's part of it is never zero.
std::uint64_t tag_of(const Key& key) noexcept {
  const std::uint64_t tag = key.head() & ~kTierBits;
  return tag == 0 ? kTierBits + 1 : tag;
}

std::uint64_t home_of(std::uint64_t word, std::uint64_t mask) noexcept {
  return (word >> 8) & mask;
}

}  // namespace

// The words are in memory shared with other processes: lock-free is a must.
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::span<std::atomic<std::uint64_t>> DirectoryView::words() const noexcept {
  auto* first = mapping_.bytes().data() + sizeof(DirectoryHeader);
  return {reinterpret_cast<std::atomic<std::uint64_t>*>(first), mask_ + 1};
}

Result<DirectoryView> DirectoryView::map(int fd, std::uint64_t bytes) {
  auto mapping = Mapping::map(fd, bytes, Mapping::Access::read);
  if (!mapping) return mapping.error();
  DirectoryHeader header;
  if (bytes < sizeof header) return make_error(Errc::malformed, "the directory is too short");
  std::memcpy(&header, mapping->bytes().data(), sizeof header);
  if (header.magic != kDirectoryMagic) return make_error(Errc::malformed, "not a directory");
  if (header.version != kVersion) return make_error(Errc::version, "directory of another version");
  if (header.log2_words > 40 || bytes != sizeof header + (8ULL << header.log2_words)) {
    return make_error(Errc::malformed, "the directory's size is not what it says");
  }
  DirectoryView view;
  view.mapping_ = std::move(*mapping);
  view.mask_ = (1ULL << header.log2_words) - 1;
  return view;
}

TierSet DirectoryView::find(const Key& key) const noexcept {
  const std::uint64_t tag = tag_of(key);
  const auto table = words();
  // The load of at most one half bounds a probe in practice; the mask bounds it always.
  for (std::uint64_t i = 0; i <= mask_; ++i) {
    const std::uint64_t word =
        table[(home_of(tag, mask_) + i) & mask_].load(std::memory_order_relaxed);
    if (word == 0) return {};
    if ((word & ~kTierBits) == tag) return {static_cast<std::uint8_t>(word & kTierBits)};
  }
  return {};
}

void DirectoryView::find_many(std::span<const Key> keys, std::span<TierSet> tiers) const noexcept {
  constexpr std::size_t kAhead = 16;  // about as many misses as a core can have under way
  for (std::size_t i = 0; i < keys.size() + kAhead; ++i) {
    if (i < keys.size()) prefetch(keys[i]);
    if (i >= kAhead) tiers[i - kAhead] = find(keys[i - kAhead]);
  }
}

void DirectoryView::prefetch(const Key& key) const noexcept {
  __builtin_prefetch(&words()[home_of(tag_of(key), mask_)]);
}

Result<DirectoryWriter> DirectoryWriter::create(std::uint64_t blocks_max,
                                                std::span<const std::byte, 16> boot_id) {
  const std::uint64_t words = std::bit_ceil(blocks_max * 2);
  const std::uint64_t bytes = sizeof(DirectoryHeader) + words * sizeof(std::uint64_t);
  auto fd = make_memfd("kvtier-directory", bytes);
  if (!fd) return fd.error();
  auto mapping = Mapping::map(fd->get(), bytes, Mapping::Access::read_write);
  if (!mapping) return mapping.error();
  fill_with_huge_pages(mapping->bytes());
  DirectoryHeader header{};
  header.magic = kDirectoryMagic;
  header.version = kVersion;
  header.log2_words = static_cast<std::uint32_t>(std::countr_zero(words));
  std::memcpy(header.boot_id, boot_id.data(), sizeof header.boot_id);
  std::memcpy(mapping->bytes().data(), &header, sizeof header);
  if (::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return errno_error(Errc::io, "cannot seal the directory");
  }
  DirectoryWriter writer;
  writer.fd_ = std::move(*fd);
  writer.view_.mapping_ = std::move(*mapping);
  writer.view_.mask_ = words - 1;
  writer.blocks_max_ = blocks_max;
  return writer;
}

void DirectoryWriter::set(const Key& key, TierSet tiers) noexcept {
  const std::uint64_t tag = tag_of(key);
  const std::uint64_t mask = view_.mask_;
  const auto table = view_.words();
  std::uint64_t at = home_of(tag, mask);
  for (;; at = (at + 1) & mask) {
    const std::uint64_t word = table[at].load(std::memory_order_relaxed);
    if (word == 0) break;
    if ((word & ~kTierBits) != tag) continue;
    if (tiers.empty()) return remove_at(at);
    table[at].store(tag | tiers.bits, std::memory_order_release);
    return;
  }
  if (tiers.empty()) return;
  KVTIER_CHECK(blocks_ < blocks_max_);
  ++blocks_;
  table[at].store(tag | tiers.bits, std::memory_order_release);
}

void DirectoryWriter::remove_at(std::uint64_t hole) noexcept {
  const std::uint64_t mask = view_.mask_;
  const auto table = view_.words();
  // Moves later words of the run into the hole, copy first, so that a reader sees a moved word
  // twice rather than not at all; one that has already passed the hole may miss it, which is a
  // miss.
  for (std::uint64_t at = (hole + 1) & mask;; at = (at + 1) & mask) {
    const std::uint64_t word = table[at].load(std::memory_order_relaxed);
    if (word == 0) break;
    if (((at - home_of(word, mask)) & mask) < ((at - hole) & mask)) continue;
    table[hole].store(word, std::memory_order_release);
    hole = at;
  }
  table[hole].store(0, std::memory_order_release);
  --blocks_;
}

}  // namespace kvtier
