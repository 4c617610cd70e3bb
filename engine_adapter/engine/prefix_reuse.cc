#include "engine_adapter/engine/prefix_reuse.h"

#include <algorithm>

namespace kvtier::engine {
namespace {

Pages pages_of(std::span<std::byte* const> records) noexcept {
  Pages pages;
  pages.records = records;
  return pages;
}

}  // namespace

PrefixReuse::PrefixReuse(Cache* cache, std::span<const Token> prompt, Sequence& sequence,
                         const ReuseOptions& options)
    : options_(options) {
  if (cache == nullptr) return;
  start(*cache, prompt, sequence);
  if (blocks_ == 0) {
    load_.reset();
    lease_.reset();
  }
}

void PrefixReuse::start(Cache& cache, std::span<const Token> prompt, Sequence& sequence) {
  const std::uint32_t block_tokens = cache.layout().block_tokens;
  const auto most = static_cast<std::uint32_t>(blocks_matchable(prompt.size(), block_tokens));
  const std::uint32_t matched = std::min(cache.match(prompt).blocks, most);
  auto lease = cache.lease(prompt, matched, options_.deadline);
  if (!lease || lease->blocks() == 0) return;
  lease_.emplace(std::move(*lease));
  const std::uint32_t ready =
      std::min({lease_->wait_ready(options_.deadline), lease_->blocks(), matched});
  if (ready == 0 || !sequence.reserve(ready * block_tokens)) return;
  Pages pages = pages_of(sequence.records().first(ready));
  pages.in_place = options_.in_place;
  auto load = lease_->load_into(pages, options_.stream);
  if (!load) return;
  load_.emplace(std::move(*load));
  blocks_ = std::min(load_->blocks(), ready);
  for (std::uint32_t block = 0; block < blocks_; ++block) {
    sources_.push_back(lease_->source(block));
    if (!options_.in_place || load_->records()[block] == sequence.records()[block]) continue;
    sequence.use_record(block, load_->records()[block]);
    first_in_place_ = std::min(first_in_place_, block);
  }
}

void PrefixReuse::wait_layer(std::uint32_t layer) {
  if (load_) load_->wait_layer(layer, options_.stream);
}

std::uint32_t PrefixReuse::finish() {
  const std::uint32_t held = load_ ? std::min(load_->finish(), blocks_) : 0;
  load_.reset();
  blocks_ = held;
  if (!in_place()) lease_.reset();
  return held;
}

std::uint32_t PrefixReuse::let_go() noexcept {
  const std::uint32_t kept = std::min(first_in_place_, blocks_);
  blocks_ = kept;
  load_.reset();
  lease_.reset();
  return kept;
}

std::array<std::uint32_t, kTiers> PrefixReuse::tiers(std::uint32_t count) const noexcept {
  std::array<std::uint32_t, kTiers> found{};
  for (std::uint32_t block = 0; block < std::min<std::size_t>(count, sources_.size()); ++block) {
    ++found[index_of(sources_[block])];
  }
  return found;
}

void BlockOffers::offer_new() {
  const std::uint32_t complete = sequence_.blocks_complete();
  if (cache_ == nullptr || complete <= offered_) return;
  const auto records = sequence_.records().subspan(offered_, complete - offered_);
  writes_.push_back(cache_->write_back(sequence_.tokens(), offered_, pages_of(records), stream_));
  offered_ = complete;
}

void BlockOffers::wait() noexcept {
  for (WriteBack& write : writes_) write.wait();
  writes_.clear();
}

}  // namespace kvtier::engine
