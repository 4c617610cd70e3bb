// A catalogue full of prefixes, as the control thread has it, and the work that arrives for it.
#pragma once

#include <memory>
#include <vector>

#include "core/wire/prefix_match.h"
#include "daemon/cache/catalogue/catalogue.h"

namespace kvtier::bench {

class IndexPrefixes {
 public:
  static constexpr std::uint32_t kPrefixBlocks = 125;   // prompts of 2,000 tokens
  static constexpr std::uint32_t kMemoryBlocks = 2000;  // handled between two looks at the clock

  // Full with `blocks` blocks, rounded down to whole prefixes.
  explicit IndexPrefixes(std::uint32_t blocks,
                         daemon::EvictionPolicy policy = daemon::EvictionPolicy::lru);

  // Each: nanoseconds a block, over so many blocks, at random.
  double match(std::uint64_t blocks);  // DirectoryView: a client's whole lookup of a prefix
  double find(std::uint64_t blocks);   // DirectoryView: single keys known beforehand
  double touch(std::uint64_t blocks);  // whole prefixes
  double use(std::uint64_t blocks);    // likewise, as a lease does, which notes the use too
  double touch_scattered(std::uint64_t blocks);  // single blocks of as many prefixes
  struct Turnover {
    double evict_ns, insert_ns;
  };
  // Blocks go and as many new ones come, as in a daemon that is full.
  Turnover turn_over(std::uint64_t blocks);

  // Of process memory for a block: index, eviction order and directory.
  double bytes_per_block() const noexcept { return bytes_per_block_; }

 private:
  std::vector<Key> keys_of(std::uint64_t prefix) const;
  void insert(std::span<const Key> keys, std::span<const Key> parents);
  void evict(std::uint32_t count);
  std::uint64_t random_present();
  void find_whole();

  std::uint32_t prefixes_;
  std::uint64_t oldest_prefix_ = 0;  // prefixes up to the newest are there, until turn_over()
  std::uint32_t second_ = 0;         // each turn of work takes one
  std::uint64_t newest_prefix_ = 0;
  std::uint64_t seen_prefixes_ = 0;
  std::vector<std::uint64_t> whole_;  // of those that have been seen, as of the last use()
  std::uint64_t random_ = 1;
  std::uint16_t ns_ = 0;
  NamespaceId ns_id_;
  std::uint64_t record_bytes_ = 0;
  double bytes_per_block_ = 0;
  std::unique_ptr<DirectoryWriter> directory_;
  std::unique_ptr<daemon::Catalogue> catalogue_;
  DirectoryView view_;
};

}  // namespace kvtier::bench
