#include "engine_adapter/reference/scheduler/prefix/offers.h"

#include <algorithm>

#include "engine_adapter/reference/scheduler/limits.h"

namespace kvtier::engine {

void Offers::add(const CacheSpace& space, std::span<const Token> tokens, BlockRange range,
                 const std::vector<PageId>& pages) {
  if (space.cache == nullptr) return;
  const std::size_t count = std::size_t{range.end} * pool_.layout().block_tokens;
  start({space, {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)}, range, {}},
        pages);
}

void Offers::owe(const CacheSpace& space, std::span<const Token> tokens, BlockRange range,
                 const Key& last) {
  if (space.cache == nullptr) return;
  const auto known = [&](const Owed& owed) { return owed.blocks.last == last; };
  if (std::ranges::any_of(owed_, known)) return;
  const std::size_t count = std::size_t{range.end} * pool_.layout().block_tokens;
  owe({space,
       {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)},
       range,
       last,
       kOffersMax - 1});
}

void Offers::start(Blocks blocks, const std::vector<PageId>& pages) {
  std::vector<std::byte*> records;
  for (const PageId page : pages) {
    pool_.add_reference(page);
    records.push_back(pool_.record(page));
  }
  Pages read;
  read.records = records;
  ++blocks.times;
  WriteBack write = blocks.space.cache->write_back(blocks.space.prefix_of(blocks.tokens),
                                                   blocks.range.first, read, model_.stream());
  writes_.push_back({std::move(write), pages, std::move(blocks)});
}

void Offers::owe(Blocks blocks) {
  if (blocks.times >= kOffersMax) return;
  if (owed_.size() == kOffersOwedMax) owed_.pop_front();
  const auto wait = kOfferAgain * (1 << (blocks.times - 1));
  owed_.push_back({std::move(blocks), Clock::now() + wait});
}

bool Offers::poll() {
  const bool ended = end_writes();
  return offer_due() || ended;
}

bool Offers::end_writes() {
  bool any = false;
  for (Write& write : writes_) {
    if (!write.write.ended()) continue;
    for (const PageId page : write.pages) pool_.release(page);
    // Those that the cache had already were not accepted either.
    if (write.write.accepted() < write.pages.size() && !cached(write.blocks)) {
      owe(std::move(write.blocks));
    }
    write.pages.clear();
    any = true;
  }
  std::erase_if(writes_, [](const Write& write) { return write.pages.empty(); });
  return any;
}

bool Offers::offer_due() {
  const auto now = Clock::now();
  std::vector<Blocks> due;
  for (Owed& owed : owed_) {
    if (owed.due <= now) due.push_back(std::move(owed.blocks));
  }
  std::erase_if(owed_, [&](const Owed& owed) { return owed.due <= now; });
  for (const Blocks& blocks : due) offer_again(blocks);
  return !due.empty();
}

// A look never finds the block of the last token, so one more is shown than the blocks have.
bool Offers::cached(const Blocks& blocks) {
  std::vector<Token> shown = blocks.tokens;
  shown.push_back(0);
  return blocks.space.cache->match(shown).blocks >= blocks.range.end;
}

// Those that the engine still has, in runs.
void Offers::offer_again(const Blocks& blocks) {
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  if (cached(blocks)) return;
  std::vector<PageId> run;
  Key parent;
  for (std::uint32_t block = 0; block <= blocks.range.end; ++block) {
    std::optional<BlockStore::Found> found;
    if (block < blocks.range.end) {
      const auto tokens =
          std::span(blocks.tokens).subspan(std::size_t{block} * block_tokens, block_tokens);
      const Key key = chain_key(blocks.space.id, parent, tokens);
      if (block >= blocks.range.first) found = store_.find({blocks.space.id, key, parent, tokens});
      parent = key;
    }
    if (found && found->task == nullptr) {
      run.push_back(found->page);
      continue;
    }
    if (run.empty()) continue;
    Blocks part = blocks;
    part.range = {block - static_cast<std::uint32_t>(run.size()), block};
    part.tokens.resize(std::size_t{block} * block_tokens);
    metrics_.blocks_offered_again += run.size();
    start(std::move(part), run);
    run.clear();
  }
}

std::optional<Clock::time_point> Offers::due() const noexcept {
  if (owed_.empty()) return std::nullopt;
  return std::ranges::min_element(owed_, {}, &Owed::due)->due;
}

void Offers::wait() {
  for (Write& write : writes_) {
    write.write.wait();
    for (const PageId page : write.pages) pool_.release(page);
  }
  writes_.clear();
}

}  // namespace kvtier::engine
