// The directory: a shared-memory table of what is cached, written by the daemon alone and mapped
// read-only by every client. One 64-bit word a block: 56 bits of the key and the set of tiers. Open
// addressing with linear probing; the home slot follows from the word itself, so removal can move
// words up.
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
inline constexpr std::uint64_t kDirectoryMagic = 0x31524944'5449564BULL;  // "KVITDIR1"

class DirectoryView {
 public:
  DirectoryView() = default;
  // Maps a descriptor read-only. Errors: io, malformed, version.
  static Result<DirectoryView> map(int fd, std::uint64_t bytes);

  // The tiers that hold `key`, perhaps none.
  TierSet find(const Key& key) const noexcept;
  // The same for many, with the misses of memory overlapped. tiers.size() == keys.size().
  void find_many(std::span<const Key> keys, std::span<TierSet> tiers) const noexcept;
  // Asks the processor to load the word that find() will read first.
  void prefetch(const Key& key) const noexcept;
  explicit operator bool() const noexcept { return static_cast<bool>(mapping_); }

 private:
  friend class DirectoryWriter;
  std::span<std::atomic<std::uint64_t>> words() const noexcept;
  Mapping mapping_;
  std::uint64_t mask_ = 0;
};

// The daemon's side. Not thread safe.
class DirectoryWriter {
 public:
  // Room for `blocks_max` blocks at a load of at most one half. Errors: io, no_space.
  static Result<DirectoryWriter> create(std::uint64_t blocks_max,
                                        std::span<const std::byte, 16> boot_id);

  // Sets the tiers of `key`; an empty set removes it. At most blocks_max keys at a time.
  void set(const Key& key, TierSet tiers) noexcept;

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
