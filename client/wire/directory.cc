#include "client/wire/directory.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "client/base/check.h"

namespace kvtier {
namespace {

constexpr std::uint32_t kVersion = 2;

}  // namespace

Result<DirectoryView> DirectoryView::map(int fd, std::uint64_t bytes) {
  auto mapping = Mapping::map(fd, bytes, Mapping::Access::read);
  if (!mapping) return mapping.error();
  DirectoryHeader header;
  if (bytes < sizeof header) return make_error(Errc::malformed, "the directory is too short");
  std::memcpy(&header, mapping->bytes().data(), sizeof header);
  if (header.magic != kDirectoryMagic) return make_error(Errc::malformed, "not a directory");
  if (header.version != kVersion) return make_error(Errc::version, "directory of another version");
  const std::uint32_t log2_slots = header.log2_slots;
  if (log2_slots < 1 || log2_slots > 40 ||
      bytes != sizeof header + (sizeof(DirectorySlot) << log2_slots)) {
    return make_error(Errc::malformed, "the directory's size is not what it says");
  }
  DirectoryView view;
  view.mapping_ = std::move(*mapping);
  view.mask_ = (1ULL << log2_slots) - 1;
  view.shift_ = 64 - log2_slots;
  return view;
}

TierSet DirectoryView::find(const Key& key) const noexcept {
  const std::uint64_t tag = tag_of(key);
  const DirectorySlot* const table = slots();
  // The load of at most three quarters bounds a probe in practice; the mask bounds it always.
  for (std::uint64_t i = 0; i <= mask_; ++i) {
    const std::uint64_t word =
        table[(home_of(tag) + i) & mask_].word.load(std::memory_order_relaxed);
    if (word == 0) return {};
    if ((word & ~kTierBits) == tag) return {static_cast<std::uint8_t>(word & kTierBits)};
  }
  return {};
}

void DirectoryView::find_many(std::span<const Key> keys, std::span<TierSet> tiers) const noexcept {
  // Twice as many words as misses that a core can have under way: half come while half are read.
  constexpr std::size_t kPiece = 32;
  prefetch(keys.first(std::min(kPiece, keys.size())));
  for (std::size_t begin = 0; begin < keys.size(); begin += kPiece) {
    const std::size_t end = std::min(begin + kPiece, keys.size());
    prefetch(keys.subspan(end, std::min(kPiece, keys.size() - end)));
    for (std::size_t i = begin; i < end; ++i) tiers[i] = find(keys[i]);
  }
}

Result<DirectoryWriter> DirectoryWriter::create(std::uint64_t blocks_max,
                                                std::span<const std::byte, 16> boot_id) {
  const std::uint64_t slots = std::bit_ceil(blocks_max + blocks_max / 3 + 1);
  const std::uint64_t bytes = sizeof(DirectoryHeader) + slots * sizeof(DirectorySlot);
  auto fd = make_memfd("kvtier-directory", bytes);
  if (!fd) return fd.error();
  auto mapping = Mapping::map(fd->get(), bytes, Mapping::Access::read_write);
  if (!mapping) return mapping.error();
  fill_with_huge_pages(mapping->bytes());
  DirectoryHeader header{};
  header.magic = kDirectoryMagic;
  header.version = kVersion;
  header.log2_slots = static_cast<std::uint32_t>(std::countr_zero(slots));
  std::memcpy(header.boot_id, boot_id.data(), sizeof header.boot_id);
  std::memcpy(mapping->bytes().data(), &header, sizeof header);
  if (::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return errno_error(Errc::io, "cannot seal the directory");
  }
  DirectoryWriter writer;
  writer.fd_ = std::move(*fd);
  writer.view_.mapping_ = std::move(*mapping);
  writer.view_.mask_ = slots - 1;
  writer.view_.shift_ = 64 - header.log2_slots;
  writer.blocks_max_ = blocks_max;
  return writer;
}

void DirectoryWriter::insert(const Key& key, std::uint32_t number) noexcept {
  KVTIER_CHECK(blocks_ < blocks_max_);
  ++blocks_;
  const std::uint64_t tag = DirectoryView::tag_of(key);
  DirectorySlot* const slots = view_.slots();
  std::uint64_t at = view_.home_of(tag);
  while (slots[at].word.load(std::memory_order_relaxed) != 0) at = (at + 1) & view_.mask_;
  slots[at].number = number;
  slots[at].word.store(tag, std::memory_order_release);
}

std::uint64_t DirectoryWriter::slot_of(const Key& key, std::uint32_t number) const noexcept {
  const std::uint64_t tag = DirectoryView::tag_of(key);
  const DirectorySlot* const slots = view_.slots();
  for (std::uint64_t at = view_.home_of(tag);; at = (at + 1) & view_.mask_) {
    const std::uint64_t word = slots[at].word.load(std::memory_order_relaxed);
    KVTIER_CHECK(word != 0);
    if ((word & ~DirectoryView::kTierBits) == tag && slots[at].number == number) return at;
  }
}

void DirectoryWriter::set(const Key& key, std::uint32_t number, TierSet tiers) noexcept {
  view_.slots()[slot_of(key, number)].word.store(DirectoryView::tag_of(key) | tiers.bits,
                                                 std::memory_order_release);
}

void DirectoryWriter::erase(const Key& key, std::uint32_t number) noexcept {
  const std::uint64_t mask = view_.mask_;
  DirectorySlot* const slots = view_.slots();
  std::uint64_t hole = slot_of(key, number);
  // Moves later slots of the run into the hole, copy first, so that a reader sees a moved word
  // twice rather than not at all; one that has already passed the hole may miss it, which is a
  // miss.
  for (std::uint64_t at = (hole + 1) & mask;; at = (at + 1) & mask) {
    const std::uint64_t word = slots[at].word.load(std::memory_order_relaxed);
    if (word == 0) break;
    if (((at - view_.home_of(word)) & mask) < ((at - hole) & mask)) continue;
    slots[hole].number = slots[at].number;
    slots[hole].word.store(word, std::memory_order_release);
    hole = at;
  }
  slots[hole].word.store(0, std::memory_order_release);
  --blocks_;
}

}  // namespace kvtier
