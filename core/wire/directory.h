// The directory: a shared-memory hash table of what is cached, written by the daemon alone and
// mapped read-only by every client. It is the daemon's own index too, so that either finds a block
// with one miss of memory, or less: the seven blocks of a prefix whose keys begin alike
// (kKeyGroup) share a bucket, which is one cache line of seven words and a count.
//
// A block's word is in the bucket of its key's first bits or, where that is full, in a neighbour or
// the first bucket with room from the one on that the key's last bytes name. A bucket counts the
// blocks that it had no room for, so a search ends at the first bucket that sent none on.
//
// A word names the GPU of a block in the device tier: a view is that of one GPU's client, for which
// a block on another GPU is where else it is.
//
// It is advisory. A reader may miss a block that is being moved, or see a word of a block that has
// just gone; both only make a lease shorter.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "core/base/check.h"
#include "core/base/fd.h"
#include "core/base/prefetch.h"
#include "kvtier/key.h"
#include "kvtier/tier.h"

namespace kvtier {

struct DirectoryHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t log2_buckets;
  std::byte boot_id[16];
  std::uint64_t reserved[508];
};
static_assert(sizeof(DirectoryHeader) == 4096);
inline constexpr std::uint64_t kDirectoryMagic = 0x32524944'5449564BULL;  // "KVITDIR2"

// 0 is an empty word. Else, from the lowest bit: 4 bits of tiers; 4 bits of the GPU's number; 28
// bits of the block's number, plus one; 28 bits of the key.
namespace directory_word {
inline constexpr std::uint64_t kTierMask = 0xF;
inline constexpr unsigned kDeviceShift = 4;
inline constexpr std::uint64_t kDeviceMask = 0xF;
inline constexpr std::uint64_t kPlaceMask = kTierMask | kDeviceMask << kDeviceShift;
inline constexpr unsigned kNumberShift = 8;
inline constexpr std::uint64_t kNumberMask = (1U << 28) - 1;
inline constexpr unsigned kTagShift = 36;
}  // namespace directory_word
inline constexpr std::uint32_t kDirectoryDevicesMax = directory_word::kDeviceMask + 1;
inline constexpr std::uint32_t kNoDevice = 31;  // of a client that has no part in the device tier
// Numbers are below it.
inline constexpr std::uint32_t kDirectoryNumbers = directory_word::kNumberMask;

struct alignas(64) DirectoryBucket {
  std::atomic<std::uint64_t> words[kKeyGroup];
  std::atomic<std::uint64_t> sent_on;  // blocks that are in a later bucket of their search
};
static_assert(sizeof(DirectoryBucket) == 64 && std::atomic<std::uint64_t>::is_always_lock_free);

class DirectoryView {
 public:
  DirectoryView() = default;
  // Maps a descriptor read-only. Errors: io, malformed, version.
  // `device`: whose client looks.
  static Result<DirectoryView> map(int fd, std::uint64_t bytes, std::uint32_t device = 0);

  // The tiers that hold `key` for this client, perhaps none.
  TierSet find(const Key& key) const noexcept;
  // The same for many, with the misses of memory overlapped. tiers.size() == keys.size().
  void find_many(std::span<const Key> keys, std::span<TierSet> tiers) const noexcept;
  // Whether any GPU has it: there is one copy in the device tier.
  bool on_some_gpu(const Key& key) const noexcept;
  // Asks the processor to load the buckets that find() will read first. Many at once: a prefetch
  // holds the processor until the address is translated, and translations overlap only where
  // prefetches follow one another closely.
  void prefetch(std::span<const Key> keys) const noexcept {
    std::uint64_t last = ~0ULL;
    for (const Key& key : keys) {
      const std::uint64_t at = first_of(key);
      if (at != last) {
        prefetch_memory(&buckets()[at]);
        prefetch_memory(&buckets()[at ^ 1]);
      }
      last = at;
    }
  }
  explicit operator bool() const noexcept { return static_cast<bool>(mapping_); }

 private:
  friend class DirectoryWriter;
  using Word = std::uint64_t;
  Word word_of(const Key& key) const noexcept;
  static Word tag_of(const Key& key) noexcept { return key.tail() << directory_word::kTagShift; }
  // Keys in order lie in the table in order, as far as they are in their first bucket: the disk
  // tier's index is in that order at a restart.
  std::uint64_t first_of(const Key& key) const noexcept {
    return __builtin_bswap64(key.head()) >> shift_;
  }
  // The buckets of a search, step by step: the first and its three neighbours, on the same page and
  // soon the same cache line pair; then, for a key of a crowded neighbourhood, its own.
  static constexpr std::uint64_t kNeighbours = 4;
  std::uint64_t bucket_of(const Key& key, std::uint64_t step) const noexcept {
    if (step < kNeighbours) return first_of(key) ^ step;
    return ((key.tail() >> shift_) + step - kNeighbours) & mask_;
  }
  std::uint64_t steps_max() const noexcept { return mask_ + 1 + kNeighbours; }
  DirectoryBucket* buckets() const noexcept {
    return reinterpret_cast<DirectoryBucket*>(mapping_.bytes().data() + sizeof(DirectoryHeader));
  }
  Mapping mapping_;
  std::uint64_t mask_ = 0;
  unsigned shift_ = 63;  // a home is a word's highest bits
  std::uint32_t device_ = 0;
};

// The daemon's side. Not thread safe.
class DirectoryWriter {
 public:
  // Room for `blocks_max` blocks at a load of at most one half. Errors: io, no_space.
  static Result<DirectoryWriter> create(std::uint64_t blocks_max,
                                        std::span<const std::byte, 16> boot_id);

  // `key`, which is not there, with the daemon's number of it, in no tier yet. At most blocks_max
  // keys at a time.
  void insert(const Key& key, std::uint32_t number) noexcept;
  // `device`: on which GPU it is, where it is in the device tier.
  void set(const Key& key, std::uint32_t number, TierSet tiers, std::uint32_t device = 0) noexcept;
  void erase(const Key& key, std::uint32_t number) noexcept;

  // The first number that may be this key's which `is_it` accepts; kNoNumber where there is none.
  static constexpr std::uint32_t kNoNumber = 0xFFFFFFFF;
  template <class IsIt>
  std::uint32_t number_of(const Key& key, IsIt&& is_it) const noexcept {
    const Word tag = DirectoryView::tag_of(key) >> directory_word::kTagShift;
    for (std::uint64_t step = 0; step < view_.steps_max(); ++step) {
      const DirectoryBucket& bucket = view_.buckets()[view_.bucket_of(key, step)];
      for (const auto& slot : bucket.words) {
        const Word word = slot.load(std::memory_order_relaxed);
        if (word >> directory_word::kTagShift == tag && word != 0 && is_it(number_in(word))) {
          return number_in(word);
        }
      }
      if (bucket.sent_on.load(std::memory_order_relaxed) == 0) break;
    }
    return kNoNumber;
  }

  // As the client of GPU 0 sees it.
  TierSet find(const Key& key) const noexcept { return view_.find(key); }
  // Asks the processor to load the buckets that all of the above look at first.
  void prefetch(std::span<const Key> keys) const noexcept { view_.prefetch(keys); }
  // A descriptor for clients, sealed so that nobody can map it writable any more.
  int fd() const noexcept { return fd_.get(); }
  std::uint64_t bytes() const noexcept { return view_.mapping_.bytes().size(); }
  std::uint64_t blocks() const noexcept { return blocks_; }
  std::uint64_t blocks_max() const noexcept { return blocks_max_; }

 private:
  using Word = DirectoryView::Word;
  static std::uint32_t number_in(Word word) noexcept {
    return static_cast<std::uint32_t>(word >> directory_word::kNumberShift &
                                      directory_word::kNumberMask) -
           1;
  }
  // Calls `visit(bucket)` for the buckets of the key's search until it returns true.
  template <class Visit>
  void search(const Key& key, Visit&& visit) noexcept {
    for (std::uint64_t step = 0;; ++step) {
      KVTIER_CHECK(step < view_.steps_max());
      if (visit(view_.buckets()[view_.bucket_of(key, step)])) return;
    }
  }
  // The word of this number in `bucket`, null where it is not there.
  static std::atomic<Word>* word_in(DirectoryBucket& bucket, std::uint32_t number) noexcept;

  UniqueFd fd_;
  DirectoryView view_;
  std::uint64_t blocks_ = 0;
  std::uint64_t blocks_max_ = 0;
};

}  // namespace kvtier
