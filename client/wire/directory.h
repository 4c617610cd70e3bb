// The directory: a shared-memory table of what is cached, written by the daemon alone and mapped
// read-only by every client. One 64-bit word a block: 56 bits of the key and the set of tiers. Open
// addressing with linear probing; the home slot follows from the word itself, so removal can move
// words up.
//
// A word's low byte has the tiers in three bits and, where the device tier is among them, the
// number of the GPU in the others: a view is that of one GPU's client, for which a block on another
// GPU is where else it is.
//
// It is advisory. A reader may miss a block that is being moved, or see a word of a block that has
// just gone; both only make a lease shorter.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "client/base/fd.h"
#include "kvtier/key.h"
#include "kvtier/tier.h"

namespace kvtier {

struct DirectoryHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t log2_words;
  std::byte boot_id[16];
  std::uint64_t reserved[508];
};
static_assert(sizeof(DirectoryHeader) == 4096);
inline constexpr std::uint32_t kDirectoryDevicesMax = 31;
inline constexpr std::uint32_t kNoDevice = 31;  // of a client that has no part in the device tier
inline constexpr std::uint64_t kDirectoryMagic = 0x31524944'5449564BULL;  // "KVITDIR1"

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
  // Asks the processor to load the word that find() will read first.
  void prefetch(const Key& key) const noexcept;
  explicit operator bool() const noexcept { return static_cast<bool>(mapping_); }

 private:
  friend class DirectoryWriter;
  std::span<std::atomic<std::uint64_t>> words() const noexcept;
  std::uint64_t word_of(const Key& key) const noexcept;
  TierSet seen(std::uint64_t word) const noexcept;
  Mapping mapping_;
  std::uint64_t mask_ = 0;
  std::uint32_t device_ = 0;
};

// The daemon's side. Not thread safe.
class DirectoryWriter {
 public:
  // Room for `blocks_max` blocks at a load of at most one half. Errors: io, no_space.
  static Result<DirectoryWriter> create(std::uint64_t blocks_max,
                                        std::span<const std::byte, 16> boot_id);

  // Sets the tiers of `key`; an empty set removes it. At most blocks_max keys at a time. `device`:
  // on which GPU it is, where it is in the device tier.
  void set(const Key& key, TierSet tiers, std::uint32_t device = 0) noexcept;

  // As the client of GPU 0 sees it.
  TierSet find(const Key& key) const noexcept { return view_.find(key); }
  // Asks the processor to load the word that set() will look at first.
  void prefetch(const Key& key) const noexcept { view_.prefetch(key); }
  // A descriptor for clients, sealed so that nobody can map it writable any more.
  int fd() const noexcept { return fd_.get(); }
  std::uint64_t bytes() const noexcept { return view_.mapping_.bytes().size(); }
  std::uint64_t blocks() const noexcept { return blocks_; }

 private:
  void remove_at(std::uint64_t at) noexcept;
  UniqueFd fd_;
  DirectoryView view_;
  std::uint64_t blocks_ = 0;
  std::uint64_t blocks_max_ = 0;
};

}  // namespace kvtier
