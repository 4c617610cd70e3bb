// The directory: a shared-memory hash table of what is cached, written by the daemon alone and
// mapped read-only by every client. It is the daemon's own index too: beside the 64-bit word that
// clients read, 56 bits of the key and the set of tiers, a slot has the daemon's number of the
// block, so that either finds a block with one miss of memory. Open addressing with linear probing;
// the home slot follows from the word itself, so removal can move slots up.
//
// It is advisory. A reader may miss a block that is being moved, or see a word of a block that has
// just gone; both only make a lease shorter.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "client/base/fd.h"
#include "client/base/prefetch.h"
#include "kvtier/key.h"
#include "kvtier/tier.h"

namespace kvtier {

struct DirectoryHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t log2_slots;
  std::byte boot_id[16];
  std::uint64_t reserved[508];
};
static_assert(sizeof(DirectoryHeader) == 4096);
struct DirectorySlot {
  std::atomic<std::uint64_t> word;  // 0: empty
  std::uint32_t number;             // the daemon's alone
  std::uint32_t unused;
};
static_assert(sizeof(DirectorySlot) == 16 && std::atomic<std::uint64_t>::is_always_lock_free);
inline constexpr std::uint64_t kDirectoryMagic = 0x32524944'5449564BULL;  // "KVITDIR2"

class DirectoryView {
 public:
  DirectoryView() = default;
  // Maps a descriptor read-only. Errors: io, malformed, version.
  static Result<DirectoryView> map(int fd, std::uint64_t bytes);

  // The tiers that hold `key`, perhaps none.
  TierSet find(const Key& key) const noexcept;
  // The same for many, with the misses of memory overlapped. tiers.size() == keys.size().
  void find_many(std::span<const Key> keys, std::span<TierSet> tiers) const noexcept;
  // Asks the processor to load the words that find() will read first. Many at once: a prefetch
  // holds the processor until the address is translated, and translations overlap only where
  // prefetches follow one another closely.
  void prefetch(std::span<const Key> keys) const noexcept {
    for (const Key& key : keys) prefetch_memory(&slots()[home_of(tag_of(key))]);
  }
  explicit operator bool() const noexcept { return static_cast<bool>(mapping_); }

 private:
  friend class DirectoryWriter;
  static constexpr std::uint64_t kTierBits = 0xFF;
  // The key's first 56 bits, upmost, so that keys in order lie in the table in order: the disk
  // tier's index is in that order at a restart. Zero is the empty word, so no key's part is zero.
  static std::uint64_t tag_of(const Key& key) noexcept {
    const std::uint64_t tag = __builtin_bswap64(key.head()) & ~kTierBits;
    return tag == 0 ? kTierBits + 1 : tag;
  }
  std::uint64_t home_of(std::uint64_t word) const noexcept { return word >> shift_; }
  DirectorySlot* slots() const noexcept {
    return reinterpret_cast<DirectorySlot*>(mapping_.bytes().data() + sizeof(DirectoryHeader));
  }
  Mapping mapping_;
  std::uint64_t mask_ = 0;
  unsigned shift_ = 63;  // a home is a word's highest bits
};

// The daemon's side. Not thread safe.
class DirectoryWriter {
 public:
  // Room for `blocks_max` blocks at a load of at most three quarters. Errors: io, no_space.
  static Result<DirectoryWriter> create(std::uint64_t blocks_max,
                                        std::span<const std::byte, 16> boot_id);

  // `key`, which is not there, with the daemon's number of it, in no tier yet. At most blocks_max
  // keys at a time.
  void insert(const Key& key, std::uint32_t number) noexcept;
  void set(const Key& key, std::uint32_t number, TierSet tiers) noexcept;
  void erase(const Key& key, std::uint32_t number) noexcept;

  // The first number at this key's 56 bits that `is_it` accepts; kNoNumber where there is none.
  static constexpr std::uint32_t kNoNumber = 0xFFFFFFFF;
  template <class IsIt>
  std::uint32_t number_of(const Key& key, IsIt&& is_it) const noexcept {
    const std::uint64_t tag = DirectoryView::tag_of(key);
    const DirectorySlot* const slots = view_.slots();
    for (std::uint64_t at = view_.home_of(tag);; at = (at + 1) & view_.mask_) {
      const std::uint64_t word = slots[at].word.load(std::memory_order_relaxed);
      if (word == 0) return kNoNumber;
      if ((word & ~DirectoryView::kTierBits) == tag && is_it(slots[at].number)) {
        return slots[at].number;
      }
    }
  }

  TierSet find(const Key& key) const noexcept { return view_.find(key); }
  // Asks the processor to load the slots that all of the above look at first.
  void prefetch(std::span<const Key> keys) const noexcept { view_.prefetch(keys); }
  // A descriptor for clients, sealed so that nobody can map it writable any more.
  int fd() const noexcept { return fd_.get(); }
  std::uint64_t bytes() const noexcept { return view_.mapping_.bytes().size(); }
  std::uint64_t blocks() const noexcept { return blocks_; }
  std::uint64_t blocks_max() const noexcept { return blocks_max_; }

 private:
  std::uint64_t slot_of(const Key& key, std::uint32_t number) const noexcept;
  UniqueFd fd_;
  DirectoryView view_;
  std::uint64_t blocks_ = 0;
  std::uint64_t blocks_max_ = 0;
};

}  // namespace kvtier
