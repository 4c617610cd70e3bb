#include "daemon/cache/catalogue/hit_density.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/base/check.h"

namespace kvtier::daemon {
namespace {

// A prompt that has more tokens than this beyond what was known of it is no further turn.
constexpr std::uint32_t kGrowthTokensMax = 4096;
// So many blocks of a use are looked at for the last one that is in an order.
constexpr std::size_t kLookedAtMax = 256;

// One for four entries of the index: uses of which fewer blocks are left are few.
std::uint32_t uses_for(std::uint32_t blocks_max) noexcept {
  return std::bit_floor(std::max(blocks_max / 4, 1024U));
}

std::uint8_t next_turn(std::uint32_t turn) noexcept {
  return static_cast<std::uint8_t>(std::min<std::uint32_t>(turn + 1, UseMark::kTurnMax));
}

bool may_be_growth(std::uint32_t known, std::uint32_t blocks, std::uint32_t block_tokens) noexcept {
  return known > 1 && blocks >= known &&
         std::uint64_t{blocks - known} * block_tokens <= kGrowthTokensMax;
}

}  // namespace

HitDensity::HitDensity(BlockIndex& blocks, StampAges& ages)
    : blocks_(blocks),
      ages_(ages),
      rivals_{Rivals(rates_), Rivals(rates_), Rivals(rates_)},
      uses_count_(uses_for(blocks.capacity())),
      uses_(uses_count_) {}

std::uint64_t HitDensity::fixed_bytes() const noexcept {
  std::uint64_t bytes = sizeof *this + rates_.bytes();
  for (const Rivals& rivals : rivals_) bytes += rivals.bytes();
  return bytes;
}

const HitDensity::Use* HitDensity::use_of(std::uint64_t stamp) const noexcept {
  const Use& use = uses_[stamp & (uses_count_ - 1)];
  return use.stamp == static_cast<std::uint32_t>(stamp) ? &use : nullptr;
}

void HitDensity::play(const Key& key, UseClass use) {
  for (Rivals& rivals : rivals_) {
    if (rivals.samples(key)) rivals.use(key, use, now_);
  }
}

void HitDensity::learn_again(const Key& key, PackedMark mark) {
  if (sampled(key)) (void)rates_.used(key, now_);
  learn(key, mark);
}

// ---- uses

// `last`: of the blocks that were known, or kNoBlock.
void HitDensity::begin(BlockId last, std::uint64_t stamp, const Prompt& prompt) {
  Use& use = use_at(stamp) = {};
  use.stamp = static_cast<std::uint32_t>(stamp);
  use.at = now_;
  use.prompt_blocks = prompt.blocks;
  use.answer = use_class::answer(prompt.answer_tokens);
  if (last != kNoBlock) use.mark = blocks_.mark(last);
}

// Of each order, the last block of the use. What is held enters its order, and is noted, when it is
// let go of; where the last of a tier is held, those before it mostly are.
void HitDensity::note_last(std::span<const BlockId> prefix, std::uint64_t stamp) noexcept {
  Use& use = use_at(stamp);
  for (const Tier tier : kAllTiers) {
    if (!listed_.has(tier)) continue;
    const std::size_t t = index_of(tier);
    const auto is = [&](BlockId id) {
      return blocks_[id].tiers.has(tier) && blocks_[id].holds[t] == 0;
    };
    const auto looked_at = prefix.last(std::min(prefix.size(), kLookedAtMax));
    const auto last = std::find_if(looked_at.rbegin(), looked_at.rend(), is);
    if (last != looked_at.rend()) use.last[t] = *last;
  }
}

// The turn that the prompt is, where it is the next one of a conversation; else 0.
std::uint32_t HitDensity::grown_turn(std::span<const BlockId> prefix, std::uint64_t stamp,
                                     const Prompt& prompt) const {
  const Use* const use = use_of(stamp);
  const std::uint32_t known = prefix.empty() ? 0 : blocks_[prefix.back()].block_index + 1;
  if (use == nullptr || !may_be_growth(known, prompt.blocks, prompt.block_tokens)) return 0;
  const UseMark last = use->mark.unpacked();
  return last.ends_prompt || known == prompt.blocks ? last.turn + 1U : 0;
}

void HitDensity::came(BlockId id, BlockId parent, const Prompt& prompt) {
  const std::uint64_t stamp = blocks_[id].last_access;
  if (use_of(stamp) == nullptr) {
    begin(kNoBlock, stamp, prompt);
    if (parent != kNoBlock) use_at(stamp).mark = blocks_.mark(parent);
  }
  Use& use = use_at(stamp);
  // A lease says nothing of the answer.
  if (use.answer == 0) use.answer = use_class::answer(prompt.answer_tokens);
  const UseMark mark = mark_behind(use, id, prompt.block_tokens);
  if (parent != kNoBlock && mark.use != use_class::kLast) goes_on_behind(parent);
  blocks_.set_mark(id, PackedMark(mark));
  learn(blocks_[id].key, PackedMark(mark));
}

void HitDensity::goes_on_behind(BlockId parent) {
  UseMark mark = blocks_.mark(parent).unpacked();
  if (!mark.ends_prompt) return;
  mark.ends_prompt = false;
  blocks_.set_mark(parent, PackedMark(mark));
  if (sampled(blocks_[parent].key)) rates_.goes_on(blocks_[parent].key);
}

UseMark HitDensity::mark_behind(Use& use, BlockId id, std::uint32_t block_tokens) {
  const Block& block = blocks_[id];
  const bool in_sample = sampled(block.key);
  const auto before = in_sample ? rates_.used(block.key, now_) : std::nullopt;
  if (before) {
    use.behind = Behind::again;
    use.mark = PackedMark(*before);
  }
  UseMark mark = use.mark.unpacked();
  if (before || (use.behind == Behind::again && !in_sample && !mark.ends_prompt)) {
    mark.turn = next_turn(mark.turn);
    mark.use = use_class::again(mark.turn);
    return mark;
  }
  if (use.behind != Behind::fresh_or_grown) {
    mark = decided(use, block.block_index, block_tokens);
    use.behind = Behind::fresh_or_grown;
    use.mark = PackedMark(mark);
  }
  if (block.block_index + 1 == use.prompt_blocks) return {use_class::kLast, mark.turn, true};
  return mark;
}

// From the block of this index on, nothing was known.
UseMark HitDensity::decided(const Use& use, std::uint32_t index,
                            std::uint32_t block_tokens) noexcept {
  const std::uint32_t blocks = std::max(use.prompt_blocks, index + 1);
  const UseMark last = use.mark.unpacked();
  if (last.ends_prompt && may_be_growth(index, blocks, block_tokens)) {
    const std::uint8_t turn = next_turn(last.turn);
    return {use_class::grown(turn), turn, true};
  }
  return {use_class::fresh(std::uint64_t{blocks - index} * block_tokens, use.answer), 0, true};
}

// ---- orders

void HitDensity::enlisted(BlockId id, Tier tier) noexcept {
  listed_ = listed_.with(tier);
  const Block& block = blocks_[id];
  Use& use = use_at(block.last_access);
  if (use.stamp != static_cast<std::uint32_t>(block.last_access)) return;
  BlockId& last = use.last[index_of(tier)];
  if (last == kNoBlock || !blocks_.is_listed(last, tier) ||
      blocks_[last].last_access != block.last_access ||
      blocks_[last].block_index <= block.block_index)
    last = id;
}

// Of what is left of the use in this order, the last is before it in its list, or its parent.
void HitDensity::delisted(BlockId id, Tier tier) noexcept {
  const Block& block = blocks_[id];
  Use& use = use_at(block.last_access);
  BlockId& last = use.last[index_of(tier)];
  if (use.stamp != static_cast<std::uint32_t>(block.last_access) || last != id) return;
  const auto is_before = [&](BlockId at) {
    return at != kNoBlock && blocks_[at].last_access == block.last_access &&
           blocks_[at].block_index + 1 == block.block_index && blocks_.is_listed(at, tier);
  };
  last = blocks_.link(id, tier).newer;
  if (is_before(last)) return;
  last = block.block_index == 0 ? kNoBlock : blocks_.find(blocks_.parent(id));
  if (!is_before(last)) last = kNoBlock;
}

BlockId HitDensity::last_of_its_use(BlockId id, Tier tier) const noexcept {
  const std::uint64_t stamp = blocks_[id].last_access;
  const Use* const use = use_of(stamp);
  if (use == nullptr) return kNoBlock;
  const BlockId last = use->last[index_of(tier)];
  const bool there =
      last != kNoBlock && blocks_[last].last_access == stamp && blocks_.is_listed(last, tier);
  return there ? last : kNoBlock;
}

BlockId HitDensity::goes_on(const ClassLists& lists, Tier tier) noexcept {
  Going& going = going_[index_of(tier)];
  if (going.lists != &lists || going.left == 0) return kNoBlock;
  --going.left;
  const Use* const use = use_of(going.stamp);
  const BlockId last = use == nullptr ? kNoBlock : use->last[index_of(tier)];
  const bool good = last != kNoBlock && blocks_[last].last_access == going.stamp &&
                    blocks_.is_listed(last, tier) && blocks_.use_class(last) == going.use;
  return good ? last : kNoBlock;
}

void HitDensity::remember(const ClassLists& lists, Tier tier, BlockId going) noexcept {
  going_[index_of(tier)] = {&lists, blocks_[going].last_access, kGoOn, blocks_.use_class(going)};
}

std::uint32_t HitDensity::age_of(BlockId id) {
  const std::uint64_t stamp = blocks_[id].last_access;
  if (const Use* const use = use_of(stamp)) return now_ - std::min(use->at, now_);
  const auto age = ages_.of(stamp);
  return age.known ? age.seconds : now_;
}

BlockId HitDensity::least_dense(const ClassLists& lists, Tier tier) {
  BlockId least = kNoBlock;
  double density = std::numeric_limits<double>::infinity();
  lists.each_class([&](UseClass use, const LruList& list) {
    const double of = rates_.density(use, age_of(list.oldest()));
    if (of >= density) return;
    density = of;
    least = list.oldest();
  });
  double& of_late = least_[index_of(tier)];
  of_late += kOfTheLast * (density - of_late);
  return least;
}

void HitDensity::pass_time(std::uint32_t now, const std::array<std::uint64_t, kTiers>& room) {
  now_ = now;
  rates_.set_blocks(blocks_.size(), static_cast<std::uint64_t>(blocks_of_a_use_));
  rates_.refresh(now);
  for (std::size_t tier = 0; tier < kTiers; ++tier) rivals_[tier].set_blocks(room[tier]);
  rivals_play_ = std::ranges::any_of(rivals_, &Rivals::plays);
}

}  // namespace kvtier::daemon
