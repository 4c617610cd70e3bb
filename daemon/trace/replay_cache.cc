#include "daemon/trace/replay_cache.h"

#include <algorithm>
#include <array>

#include "core/base/check.h"

namespace kvtier::daemon {
namespace {

constexpr UserId kEngine = 1;

// Its blocks are proven by digests, as those of an engine that names them by its own hashes.
Namespace namespace_of(const Trace& trace) {
  Namespace ns;
  ns.model = "trace";
  ns.layers = 1;
  ns.kv_heads = 1;
  ns.head_dim_k = ns.head_dim_v = 16;
  ns.block_tokens = trace.block_tokens;
  ns.format = StorageFormat::bf16;
  ns.digest_bytes = 16;
  return ns;
}

}  // namespace

Result<std::unique_ptr<ReplayCache>> ReplayCache::create(const Trace& trace,
                                                         const ReplayOptions& options) {
  const Namespace ns = namespace_of(trace);
  if (auto good = ns.validate(); !good) return good.error();
  std::uint64_t longest = 0;
  for (const TracedRequest& request : trace.requests)
    longest = std::max<std::uint64_t>(longest, request.blocks.size());
  const std::uint64_t blocks = options.host_blocks + options.disk_blocks + longest + 1;
  if (options.host_blocks == 0 || blocks > kDirectoryNumbers) {
    return make_error(Errc::invalid, "a cache of " + std::to_string(options.host_blocks) + " and " +
                                         std::to_string(options.disk_blocks) +
                                         " blocks: give from one block to " +
                                         std::to_string(kDirectoryNumbers));
  }
  const auto blocks_max = static_cast<std::uint32_t>(blocks);
  auto directory = DirectoryWriter::create(blocks_max, std::array<std::byte, 16>{});
  if (!directory) return directory.error();
  std::unique_ptr<ReplayCache> cache(new ReplayCache(options, std::move(*directory), blocks_max));
  const auto opened = cache->catalogue_.open_namespace(encode(ns));
  if (!opened) return opened.error();
  cache->ns_ = *opened;
  cache->ns_id_ = id_of(ns);
  cache->block_tokens_ = trace.block_tokens;
  return cache;
}

ReplayCache::ReplayCache(const ReplayOptions& options, DirectoryWriter directory,
                         std::uint32_t blocks_max)
    : options_(options),
      directory_(std::move(directory)),
      catalogue_(blocks_max, directory_, Tenants(), options.policy) {}

void ReplayCache::set_keys(const TracedRequest& request, std::uint64_t copy,
                           std::vector<Key>& keys) const {
  keys.clear();
  Key parent;
  for (const std::uint64_t block : request.blocks) {
    const std::array<std::uint64_t, 2> digest{block, copy};
    parent = chain_key(ns_id_, parent, sizeof digest, std::as_bytes(std::span(digest)));
    keys.push_back(parent);
  }
}

void ReplayCache::on_block(std::function<void(const Key&, bool)> told) {
  catalogue_.on_published = [this, told = std::move(told)](BlockId id, TierSet tiers) {
    told(catalogue_.block(id).key, !tiers.empty());
  };
}

void ReplayCache::request(const TracedRequest& request) {
  set_keys(request, 0, own_keys_);
  this->request(own_keys_, request.output_tokens, request.at_ms);
}

void ReplayCache::request(std::span<const Key> keys, std::uint32_t output_tokens,
                          std::uint64_t at_ms) {
  const auto second = static_cast<std::uint32_t>(at_ms / 1000) + 1;
  if (second != second_) {
    catalogue_.pass_time(second_ = second);
    budget_.step();
  }
  keys_ = keys;
  ids_.resize(keys_.size());
  const Prompt prompt{static_cast<std::uint32_t>(keys_.size()), block_tokens_,
                      options_.answers_told ? output_tokens : 0};
  const std::size_t known = lease(prompt);
  for (std::size_t i = known; i < keys_.size(); ++i) commit(i, prompt);
  release(known);
  replayed_.blocks += keys_.size();
}

// As Leases: first what is in memory is held, then what is on disk alone gets a place there.
std::size_t ReplayCache::lease(const Prompt& prompt) {
  std::size_t known = catalogue_.find_prefix(ns_, keys_, ids_);
  std::vector<std::size_t> to_read;
  for (std::size_t i = 0; i < known; ++i) {
    const bool in_memory = catalogue_.block(ids_[i]).tiers.has(Tier::host);
    catalogue_.hold(ids_[i], in_memory ? Tier::host : Tier::disk);
    if (!in_memory) to_read.push_back(i);
  }
  std::size_t read = 0;
  for (; read < to_read.size() && make_room(Tier::host); ++read) {
    const std::size_t i = to_read[read];
    put(ids_[i], Tier::host, parent_of(i));
    catalogue_.hold(ids_[i], Tier::host);
    catalogue_.unhold(ids_[i], Tier::disk, parent_of(i));
  }
  // Where there is no room for a read, what is behind it is of no use either.
  if (read < to_read.size()) {
    for (std::size_t i = to_read[read]; i < known; ++i) {
      const bool in_memory = catalogue_.block(ids_[i]).tiers.has(Tier::host);
      catalogue_.unhold(ids_[i], in_memory ? Tier::host : Tier::disk, parent_of(i));
    }
    known = to_read[read];
  }
  replayed_.hits[index_of(Tier::host)] += known - read;
  replayed_.hits[index_of(Tier::disk)] += read;
  const auto prefix = std::span(ids_).first(known);
  if (known == 0) return 0;
  catalogue_.use(prefix, kEngine, catalogue_.tick(), prompt);
  if (options_.admission != Admission::all) {
    for (std::size_t i = 0; i < known; ++i) write(ids_[i], parent_of(i));
  }
  return known;
}

// As Commits, of a slot that was lent before.
void ReplayCache::commit(std::size_t index, const Prompt& prompt) {
  BlockId id = catalogue_.find(ns_, keys_[index]);
  const bool there = id != kNoBlock;
  ids_[index] = kNoBlock;
  if (there && catalogue_.block(id).tiers.has(Tier::host)) {
    ids_[index] = id;
    return;
  }
  if (!make_room(Tier::host)) return;
  id = catalogue_.find(ns_, keys_[index]);  // the room may have been its last place
  if (id == kNoBlock) {
    id = catalogue_.add(ns_, keys_[index], parent_of(index), static_cast<std::uint32_t>(index));
    KVTIER_CHECK(id != kNoBlock);
    catalogue_.came(id, prompt);
  }
  put(id, Tier::host, parent_of(index));
  ids_[index] = id;
  if (there || options_.admission != Admission::second_hit) write(id, parent_of(index));
}

void ReplayCache::release(std::size_t known) {
  std::vector<BlockId> prefix(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(known));
  for (std::size_t i = 0; i < known; ++i) catalogue_.unhold(ids_[i], Tier::host, parent_of(i));
  catalogue_.touch(prefix);
}

// False where everything is held.
bool ReplayCache::make_room(Tier tier) {
  const std::uint64_t most = tier == Tier::host ? options_.host_blocks : options_.disk_blocks;
  if (catalogue_.counts(tier).blocks < most) return true;
  const BlockId going = catalogue_.oldest(tier);
  if (going == kNoBlock) return false;
  catalogue_.unplace(going, tier, Removal::capacity);
  return true;
}

void ReplayCache::put(BlockId id, Tier tier, const Key& parent) {
  catalogue_.place(id, tier, Place{0, id.value}, parent);
}

void ReplayCache::write(BlockId id, const Key& parent) {
  if (options_.disk_blocks == 0 || catalogue_.block(id).tiers.has(Tier::disk)) return;
  if (options_.admission == Admission::expected_reuse && !is_worth_a_write(id, parent)) return;
  if (!make_room(Tier::disk)) return;
  put(id, Tier::disk, parent);
  ++replayed_.written;
}

// Behind its parent alone: else it would be of no use there.
bool ReplayCache::is_worth_a_write(BlockId id, const Key& parent) {
  budget_.allow(options_.write_share);
  const BlockId before = parent.is_zero() ? kNoBlock : catalogue_.find(ns_, parent);
  const bool follows = before != kNoBlock && catalogue_.block(before).tiers.has(Tier::disk);
  if (!parent.is_zero() && !follows) return false;
  if (!budget_.admits(catalogue_.chance_of_reuse(id, Tier::disk))) return false;
  budget_.wrote(1);
  return true;
}

}  // namespace kvtier::daemon
