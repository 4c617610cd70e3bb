#include "tests/engine/scheduler/fake_cache.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/record/record.h"

namespace kvtier {

using engine::test::FakeCache;

struct Lease::State {
  FakeCache* cache;
  std::vector<Key> keys;  // held
  std::uint32_t delay;

  std::uint32_t blocks() const noexcept { return static_cast<std::uint32_t>(keys.size()); }
  ~State() {
    for (const Key& key : keys) --cache->holds[key];
  }
};

struct Load::State {
  FakeCache* cache;
  std::vector<std::byte*> pages;
  std::uint32_t delay = 0;
};

struct WriteBack::State {
  FakeCache* cache;
  std::uint32_t blocks;
  bool open;
  std::uint32_t delay;

  void close() noexcept {
    if (open) --cache->write_backs_open;
    open = false;
  }
};

Lease::Lease(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
Lease::Lease(Lease&&) noexcept = default;
Lease& Lease::operator=(Lease&&) noexcept = default;
Lease::~Lease() = default;
std::uint32_t Lease::blocks() const noexcept {
  return state_->blocks();
}
Tier Lease::source(std::uint32_t) const noexcept {
  return state_->cache->tier;
}
std::uint32_t Lease::wait_ready(Deadline) {
  return std::min(state_->blocks(), state_->cache->ready_max);
}
std::optional<Clock::time_point> Lease::settled_at() const noexcept {
  if (state_->delay > 0 && state_->delay-- > 1) return std::nullopt;
  return Clock::now();
}
bool Lease::held() const noexcept {
  if (!state_) return false;
  std::uint32_t& checks = state_->cache->checks_until_lost;
  return checks > 0 && --checks > 0;
}
void Lease::release() noexcept {
  state_.reset();
}

Result<Load> Lease::load_into(const Pages& pages, StreamView) {
  FakeCache& cache = *state_->cache;
  if (cache.load_error) return make_error(*cache.load_error, "ordered by the test");
  auto load = std::make_shared<Load::State>();
  load->cache = &cache;
  load->delay = cache.load_delay;
  const std::size_t count =
      std::min({pages.records.size(), state_->keys.size(), std::size_t{cache.loaded_max}});
  for (std::size_t block = 0; block < count; ++block) {
    auto& record = cache.records.at(state_->keys[block]);
    ++cache.loads[state_->keys[block]];
    if (pages.in_place && block % 2 == 1) {
      load->pages.push_back(record.data());
      continue;
    }
    std::ranges::copy(record, pages.records[block]);
    load->pages.push_back(pages.records[block]);
  }
  for (std::size_t block = cache.held.value_or(count); block < count; ++block) {
    std::fill_n(pages.records[block], cache.layout().record_bytes, std::byte{0x3C});
  }
  return Load(std::move(load));
}

Load::Load(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
Load::Load(Load&&) noexcept = default;
Load& Load::operator=(Load&&) noexcept = default;
Load::~Load() = default;
std::uint32_t Load::blocks() const noexcept {
  return static_cast<std::uint32_t>(state_->pages.size());
}
std::span<const BlockFault> Load::faults() const noexcept {
  return {};
}
std::span<std::byte* const> Load::records() const noexcept {
  return state_->pages;
}
void Load::wait_layer(std::uint32_t layer, StreamView) {
  state_->cache->layers_waited.push_back(layer);
}
bool Load::ended() const noexcept {
  return state_->delay == 0 || --state_->delay == 0;
}
std::uint32_t Load::finish() {
  return std::min(blocks(), state_->cache->held.value_or(~0U));
}

WriteBack::WriteBack(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
WriteBack::WriteBack(WriteBack&&) noexcept = default;
WriteBack& WriteBack::operator=(WriteBack&&) noexcept = default;
WriteBack::~WriteBack() {
  if (state_) state_->close();
}
void WriteBack::wait() noexcept {
  state_->close();
}
bool WriteBack::ended() const noexcept {
  if (state_->delay > 0 && --state_->delay > 0) return false;
  state_->close();
  return true;
}
std::uint32_t WriteBack::accepted() const noexcept {
  return state_->blocks;
}

// Never made here.
struct LayerStore::State {};
LayerStore::LayerStore(LayerStore&&) noexcept = default;
LayerStore& LayerStore::operator=(LayerStore&&) noexcept = default;
LayerStore::~LayerStore() = default;

Result<Lease> Cache::lease(std::span<const Token> tokens, std::uint32_t blocks, Deadline deadline) {
  return lease(tokens, BlockRange{0, blocks}, deadline);
}
Lease Cache::make_lease(std::shared_ptr<Lease::State> state) noexcept {
  return Lease(std::move(state));
}
WriteBack Cache::make_write_back(std::shared_ptr<WriteBack::State> state) noexcept {
  return WriteBack(std::move(state));
}

}  // namespace kvtier

namespace kvtier::engine::test {
namespace {

// The states are private names: deduced, not spoken.
template <class Handle, class State, class... Parts>
Handle make_handle(Handle (*make)(std::shared_ptr<State>) noexcept, Parts&&... parts) {
  return make(std::shared_ptr<State>(new State{std::forward<Parts>(parts)...}));
}

}  // namespace

std::uint32_t FakeCache::found(std::span<const Token> tokens) const {
  std::uint32_t blocks = 0;
  for (const Key& key : chain_keys(id_, layout_.block_tokens, tokens)) {
    if (!records.contains(key)) break;
    ++blocks;
  }
  return blocks;
}

Match FakeCache::match(std::span<const Token> tokens) const noexcept {
  const auto most =
      static_cast<std::uint32_t>(blocks_matchable(tokens.size(), layout_.block_tokens));
  const std::uint32_t blocks = found(tokens);
  Match match{matches_too_much ? blocks + 1 : std::min(blocks, most), {}};
  match.per_tier[index_of(tier)] = match.blocks;
  return match;
}

Result<Lease> FakeCache::lease(std::span<const Token> tokens, BlockRange range, Deadline) {
  KVTIER_CHECK(range.first <= range.end &&
               range.end <= blocks_matchable(tokens.size(), layout_.block_tokens));
  leases.push_back(range.end - range.first);
  ranges.push_back(range);
  if (lease_error) return make_error(*lease_error, "ordered by the test");
  const auto keys = chain_keys(id_, layout_.block_tokens, tokens);
  std::vector<Key> leased;
  for (std::uint32_t block = range.first; block < range.end; ++block) {
    if (!records.contains(keys[block])) break;
    leased.push_back(keys[block]);
    ++holds[keys[block]];
  }
  return make_handle(&FakeCache::make_lease, this, std::move(leased), settle_delay);
}

void FakeCache::drop(std::size_t nth) {
  for (auto at = records.begin(); at != records.end(); ++at) {
    if (holds[at->first] > 0 || nth-- > 0) continue;
    records.erase(at);
    return;
  }
}

WriteBack FakeCache::write_back(const Prefix& prefix, std::uint32_t first_block, const Pages& pages,
                                StreamView, std::optional<Deadline>) noexcept {
  answers.push_back(prefix.answer_tokens());
  const auto keys = prefix.keys();
  KVTIER_CHECK(first_block + pages.records.size() <= keys.size());
  std::uint32_t accepted = 0;
  for (std::uint32_t i = 0; i < pages.records.size(); ++i) {
    const std::uint32_t block = first_block + i;
    const std::span<const std::byte> record(pages.records[i], layout_.record_bytes);
    const BlockIdentity identity{id_, keys[block], block == 0 ? Key{} : keys[block - 1], block};
    KVTIER_CHECK(verify_header(record, layout_, identity, prefix.proof(block)));
    if (records.contains(keys[block])) continue;
    ++writes[keys[block]];
    if (drops_writes || records.size() >= records_max) continue;
    records[keys[block]].assign(record.begin(), record.end());
    ++accepted;
  }
  ++write_backs_open;
  return make_handle(&FakeCache::make_write_back, this, accepted, true, write_delay);
}

Result<void> FakeCache::hint(const Prefix&, BlockRange range, const Hint& hint) noexcept {
  hints.emplace_back(range, hint);
  return {};
}

}  // namespace kvtier::engine::test
