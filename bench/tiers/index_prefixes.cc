#include "bench/tiers/index_prefixes.h"

#include <time.h>

#include <array>
#include <fstream>
#include <string>

#include "bench/support/records.h"
#include "core/base/check.h"

namespace kvtier::bench {
namespace {

using daemon::BlockId;

constexpr daemon::UserId kUser = 1;
constexpr std::size_t kPrefixTokens = std::size_t{IndexPrefixes::kPrefixBlocks} * kBlockTokens;

// Memory of this process's own and memory it shares; not the program's file.
std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/status");
  std::uint64_t kib = 0;
  for (std::string word; file >> word;) {
    std::uint64_t value = 0;
    if ((word == "RssAnon:" || word == "RssShmem:") && file >> value) kib += value;
  }
  return kib << 10;
}

// Sums up the processor time of what is measured, between the preparations that are not: whoever
// else runs on the machine takes turns with this thread, and that is not the index's doing.
class Stopwatch {
 public:
  template <class Work>
  void time(Work&& work) {
    const double begin = now();
    work();
    seconds_ += now() - begin;
  }
  double ns_each(std::uint64_t count) const { return seconds_ * 1e9 / static_cast<double>(count); }

 private:
  static double now() {
    timespec at{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) * 1e-9;
  }
  double seconds_ = 0;
};

}  // namespace

IndexPrefixes::IndexPrefixes(std::uint32_t blocks, daemon::EvictionPolicy policy)
    : prefixes_(blocks / kPrefixBlocks) {
  const Namespace ns = namespace_of_records(kSmallestRecord);
  ns_id_ = id_of(ns);
  (void)keys_of(0);  // so that what it takes is not counted
  const std::uint64_t before = resident_bytes();
  directory_ = std::make_unique<DirectoryWriter>(
      need(DirectoryWriter::create(blocks, std::array<std::byte, 16>{})));
  catalogue_ = std::make_unique<daemon::Catalogue>(blocks, *directory_, daemon::Tenants(), policy);
  ns_ = need(catalogue_->namespaces().open(encode(ns)));
  record_bytes_ = catalogue_->namespaces()[ns_].layout.record_bytes;
  for (; newest_prefix_ < prefixes_; ++newest_prefix_) {
    if (newest_prefix_ % (kMemoryBlocks / kPrefixBlocks) == 0) catalogue_->pass_time(++second_);
    std::vector<Key> parents{Key{}};
    const auto keys = keys_of(newest_prefix_);
    parents.insert(parents.end(), keys.begin(), keys.end() - 1);
    insert(keys, parents);
  }
  bytes_per_block_ =
      static_cast<double>(resident_bytes() - before) / static_cast<double>(catalogue_->size());
  // Mapped only now: the directory's pages would be counted twice.
  view_ = need(DirectoryView::map(directory_->fd(), directory_->bytes()));
}

std::vector<Key> IndexPrefixes::keys_of(std::uint64_t prefix) const {
  return chain_keys(ns_id_, kBlockTokens, prompt(prefix, kPrefixTokens));
}

std::uint64_t IndexPrefixes::random_present() {
  return oldest_prefix_ + (random_ = mixed(random_)) % (newest_prefix_ - oldest_prefix_);
}

double IndexPrefixes::match(std::uint64_t blocks) {
  Stopwatch watch;
  std::uint64_t done = 0;
  while (done < blocks) {
    std::vector<std::vector<Token>> prompts;
    for (std::uint32_t i = 0; i < kMemoryBlocks / kPrefixBlocks; ++i) {
      prompts.push_back(prompt(random_present(), kPrefixTokens));
      prompts.back().push_back(0);  // the last token's block is never matched
    }
    watch.time([&] {
      for (const auto& tokens : prompts) {
        done += match_prefix(view_, ns_id_, kBlockTokens, tokens).blocks;
      }
    });
    KVTIER_CHECK(done % kMemoryBlocks == 0);
  }
  return watch.ns_each(done);
}

double IndexPrefixes::find(std::uint64_t blocks) {
  Stopwatch watch;
  std::uint64_t done = 0;
  std::vector<TierSet> tiers(kMemoryBlocks);
  for (; done < blocks; done += kMemoryBlocks) {
    std::vector<Key> keys;
    // A handful of each prefix, shuffled: making the keys is most of the work.
    for (std::uint32_t i = 0; i < kMemoryBlocks / kPrefixBlocks; ++i) {
      const auto some = keys_of(random_present());
      keys.insert(keys.end(), some.begin(), some.end());
    }
    for (std::size_t i = keys.size(); i > 1; --i) {
      std::swap(keys[i - 1], keys[(random_ = mixed(random_)) % i]);
    }
    watch.time([&] { view_.find_many(keys, tiers); });
    for (const TierSet found : tiers) KVTIER_CHECK(found.has(Tier::disk));
  }
  return watch.ns_each(done);
}

double IndexPrefixes::touch(std::uint64_t blocks) {
  Stopwatch watch;
  std::uint64_t done = 0;
  std::vector<BlockId> ids(kPrefixBlocks);
  for (; done < blocks; done += kMemoryBlocks) {
    std::vector<std::vector<Key>> prefixes;
    for (std::uint32_t i = 0; i < kMemoryBlocks / kPrefixBlocks; ++i) {
      prefixes.push_back(keys_of(random_present()));
    }
    watch.time([&] {
      for (const auto& keys : prefixes) {
        KVTIER_CHECK(catalogue_->find_prefix(ns_, keys, ids) == kPrefixBlocks);
        for (const BlockId id : ids) catalogue_->set_last_access(id, done);
        catalogue_->touch(ids);
      }
    });
  }
  return watch.ns_each(done);
}

double IndexPrefixes::use(std::uint64_t blocks) {
  Stopwatch watch;
  std::uint64_t done = 0;
  std::vector<BlockId> ids(kPrefixBlocks);
  find_whole();
  for (; done < blocks; done += kMemoryBlocks) {
    std::vector<std::vector<Key>> prefixes;
    for (std::uint32_t i = 0; i < kMemoryBlocks / kPrefixBlocks; ++i)
      prefixes.push_back(keys_of(whole_[(random_ = mixed(random_)) % whole_.size()]));
    catalogue_->pass_time(++second_);
    watch.time([&] {
      for (const auto& keys : prefixes) {
        KVTIER_CHECK(catalogue_->find_prefix(ns_, keys, ids) == kPrefixBlocks);
        catalogue_->use(ids, kUser, catalogue_->tick(),
                        daemon::Prompt{kPrefixBlocks + 1, kBlockTokens, 0});
      }
    });
  }
  return watch.ns_each(done);
}

// Which go and which stay is the policy's to say: of those of which any block has gone nothing is
// used any more.
void IndexPrefixes::find_whole() {
  std::vector<BlockId> ids(kPrefixBlocks);
  while (seen_prefixes_ < newest_prefix_) whole_.push_back(seen_prefixes_++);
  std::erase_if(whole_, [&](std::uint64_t prefix) {
    return catalogue_->find_prefix(ns_, keys_of(prefix), ids) < kPrefixBlocks;
  });
  KVTIER_CHECK(!whole_.empty());
}

double IndexPrefixes::touch_scattered(std::uint64_t blocks) {
  Stopwatch watch;
  std::uint64_t done = 0;
  for (; done < blocks; done += kMemoryBlocks) {
    std::vector<BlockId> ids(kMemoryBlocks);
    // It is full, so that any number below the size is a block.
    for (BlockId& id : ids) {
      random_ = mixed(random_);
      id = BlockId(static_cast<std::uint32_t>(random_ % catalogue_->size()));
    }
    watch.time([&] { catalogue_->touch(ids); });
  }
  return watch.ns_each(done);
}

void IndexPrefixes::insert(std::span<const Key> keys, std::span<const Key> parents) {
  constexpr std::size_t kPiece = 16;  // as a commit's blocks
  catalogue_->prefetch(keys.first(std::min(kPiece, keys.size())));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kPiece == 0 && i + kPiece < keys.size()) {
      catalogue_->prefetch(keys.subspan(i + kPiece, std::min(kPiece, keys.size() - i - kPiece)));
    }
    const auto index = static_cast<std::uint32_t>(i % kPrefixBlocks);
    const BlockId id = catalogue_->add(ns_, keys[i], parents[i], index);
    catalogue_->came(id);
    catalogue_->place(id, Tier::disk, {0, id.value}, parents[i]);
  }
}

void IndexPrefixes::evict(std::uint32_t count) {
  daemon::EvictionAhead ahead(*catalogue_, Tier::disk);
  const auto oldest = [&] { return catalogue_->oldest(Tier::disk, record_bytes_); };
  for (std::uint32_t i = 0; i < count; ++i) {
    ahead.step(oldest);
    catalogue_->unplace(oldest(), Tier::disk, daemon::Removal::capacity);
  }
}

IndexPrefixes::Turnover IndexPrefixes::turn_over(std::uint64_t blocks) {
  Stopwatch out, in;
  std::uint64_t done = 0;
  for (; done < blocks; done += kMemoryBlocks) {
    std::vector<Key> keys, parents;
    for (std::uint32_t i = 0; i < kMemoryBlocks / kPrefixBlocks; ++i) {
      const auto some = keys_of(newest_prefix_++);
      parents.emplace_back();
      parents.insert(parents.end(), some.begin(), some.end() - 1);
      keys.insert(keys.end(), some.begin(), some.end());
    }
    catalogue_->pass_time(++second_);
    out.time([&] { evict(kMemoryBlocks); });
    in.time([&] { insert(keys, parents); });
  }
  return {out.ns_each(done), in.ns_each(done)};
}

}  // namespace kvtier::bench
