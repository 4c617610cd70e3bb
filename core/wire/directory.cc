#include "core/wire/directory.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/check.h"

namespace kvtier {
namespace {

constexpr std::uint32_t kVersion = 2;
static_assert(kNoDevice >= kDirectoryDevicesMax);

}  // namespace

Result<DirectoryView> DirectoryView::map(int fd, std::uint64_t bytes, std::uint32_t device) {
  auto mapping = Mapping::map(fd, bytes, Mapping::Access::read);
  if (!mapping) return mapping.error();
  DirectoryHeader header;
  if (bytes < sizeof header) return make_error(Errc::malformed, "the directory is too short");
  std::memcpy(&header, mapping->bytes().data(), sizeof header);
  if (header.magic != kDirectoryMagic) return make_error(Errc::malformed, "not a directory");
  if (header.version != kVersion) return make_error(Errc::version, "directory of another version");
  const std::uint32_t log2_buckets = header.log2_buckets;
  if (log2_buckets < 2 || log2_buckets > 32 ||
      bytes != sizeof header + (sizeof(DirectoryBucket) << log2_buckets)) {
    return make_error(Errc::malformed, "the directory's size is not what it says");
  }
  DirectoryView view;
  view.mapping_ = std::move(*mapping);
  view.mask_ = (1ULL << log2_buckets) - 1;
  view.shift_ = 64 - log2_buckets;
  view.device_ = device;
  return view;
}

// The key's word; 0 where there is none.
DirectoryView::Word DirectoryView::word_of(const Key& key) const noexcept {
  const Word tag = tag_of(key) >> directory_word::kTagShift;
  // In practice a search ends after a bucket or two; the bound is for a directory gone mad.
  for (std::uint64_t step = 0; step < steps_max(); ++step) {
    const DirectoryBucket& bucket = buckets()[bucket_of(key, step)];
    for (const auto& slot : bucket.words) {
      const Word word = slot.load(std::memory_order_relaxed);
      if (word >> directory_word::kTagShift == tag && word != 0) return word;
    }
    if (bucket.sent_on.load(std::memory_order_relaxed) == 0) return 0;
  }
  return 0;
}

TierSet DirectoryView::find(const Key& key) const noexcept {
  const Word word = word_of(key);
  const TierSet tiers{static_cast<std::uint8_t>(word & directory_word::kTierMask)};
  const bool here = (word >> directory_word::kDeviceShift & directory_word::kDeviceMask) == device_;
  return here ? tiers : tiers.without(Tier::device);
}

bool DirectoryView::on_some_gpu(const Key& key) const noexcept {
  return (word_of(key) >> index_of(Tier::device) & 1) != 0;
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
  KVTIER_CHECK(blocks_max > 0 && blocks_max <= kDirectoryNumbers);
  const std::uint64_t buckets = std::max<std::uint64_t>(4, std::bit_ceil(blocks_max / 4 + 1));
  const std::uint64_t bytes = sizeof(DirectoryHeader) + buckets * sizeof(DirectoryBucket);
  auto fd = make_memfd("kvtier-directory", bytes, Seals::open);
  if (!fd) return fd.error();
  auto mapping = Mapping::map(fd->get(), bytes, Mapping::Access::read_write);
  if (!mapping) return mapping.error();
  fill_with_huge_pages(mapping->bytes());
  DirectoryHeader header{};
  header.magic = kDirectoryMagic;
  header.version = kVersion;
  header.log2_buckets = static_cast<std::uint32_t>(std::countr_zero(buckets));
  std::memcpy(header.boot_id, boot_id.data(), sizeof header.boot_id);
  std::memcpy(mapping->bytes().data(), &header, sizeof header);
  if (::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return errno_error(Errc::io, "cannot seal the directory");
  }
  DirectoryWriter writer;
  writer.fd_ = std::move(*fd);
  writer.view_.mapping_ = std::move(*mapping);
  writer.view_.mask_ = buckets - 1;
  writer.view_.shift_ = 64 - header.log2_buckets;
  writer.blocks_max_ = blocks_max;
  return writer;
}

void DirectoryWriter::insert(const Key& key, std::uint32_t number) noexcept {
  KVTIER_CHECK(blocks_ < blocks_max_ && number < kDirectoryNumbers);
  ++blocks_;
  const Word word = DirectoryView::tag_of(key) | (Word{number} + 1) << directory_word::kNumberShift;
  search(key, [&](DirectoryBucket& bucket) {
    for (auto& slot : bucket.words) {
      if (slot.load(std::memory_order_relaxed) != 0) continue;
      slot.store(word, std::memory_order_release);
      return true;
    }
    // Nobody else writes here.
    bucket.sent_on.store(bucket.sent_on.load(std::memory_order_relaxed) + 1,
                         std::memory_order_release);
    return false;
  });
}

std::atomic<DirectoryWriter::Word>* DirectoryWriter::word_in(DirectoryBucket& bucket,
                                                             std::uint32_t number) noexcept {
  for (auto& slot : bucket.words) {
    const Word word = slot.load(std::memory_order_relaxed);
    if (word != 0 && number_in(word) == number) return &slot;
  }
  return nullptr;
}

void DirectoryWriter::set(const Key& key, std::uint32_t number, TierSet tiers,
                          std::uint32_t device) noexcept {
  KVTIER_CHECK((tiers.bits & ~directory_word::kTierMask) == 0 && device < kDirectoryDevicesMax);
  const Word place = tiers.bits | Word{device} << directory_word::kDeviceShift;
  search(key, [&](DirectoryBucket& bucket) {
    std::atomic<Word>* const slot = word_in(bucket, number);
    if (slot == nullptr) return false;
    const Word word = slot->load(std::memory_order_relaxed);
    slot->store((word & ~directory_word::kPlaceMask) | place, std::memory_order_release);
    return true;
  });
}

void DirectoryWriter::erase(const Key& key, std::uint32_t number) noexcept {
  search(key, [&](DirectoryBucket& bucket) {
    std::atomic<Word>* const slot = word_in(bucket, number);
    if (slot != nullptr) {
      slot->store(0, std::memory_order_release);
    } else {
      bucket.sent_on.store(bucket.sent_on.load(std::memory_order_relaxed) - 1,
                           std::memory_order_release);
    }
    return slot != nullptr;
  });
  --blocks_;
}

}  // namespace kvtier
