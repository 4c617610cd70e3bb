// Random operations on a BlockCache and its model, in step.
#pragma once

#include <random>

#include "tests/daemon/support/cache_model.h"

namespace kvtier::daemon::testing {

class RandomCache {
 public:
  struct Options {
    std::uint32_t seed = 0;
    bool wide_too = false;  // a third namespace with larger records
    CacheSizes sizes{};
  };
  explicit RandomCache(const Options& options)
      : options_(options),
        random_(options.seed),
        cache_(options.sizes),
        model_(cache_, options.sizes, !options.wide_too) {
    std::vector<Namespace> namespaces{small_namespace("a"), small_namespace("b")};
    if (options.wide_too) namespaces.push_back(small_namespace("w", true));
    for (const Namespace& ns : namespaces) {
      const std::uint16_t number = cache_.open(ns);
      for (Token first = 1; first <= 7000; first += 1000) {
        auto trunk = cache_.prefix(number, 12, first);
        chains_.push_back({number, branch_of(trunk, 5, first + 500)});
        chains_.push_back({number, std::move(trunk)});
      }
    }
    for (int i = 0; i < 6; ++i) new_session();
  }

  TestCache& cache() noexcept { return cache_; }
  CacheModel& model() noexcept { return model_; }

  void step() {
    if (options_.sizes.disks > 1 && below(200) == 0) return change_health();
    const unsigned what = below(1000);
    cache_.store().refuse_next = below(60) == 0;
    if (what < 200) return lease();
    if (what < 380) return release();
    if (what < 430) return reserve();
    if (what < 680) return commit();
    if (what < 970) return complete_one();
    if (what < 973) return remove();
    if (what < 977) return spoil();
    if (what < 978) return drop();
    if (what < 986) return end_session();
    if (what < 993) return end_process();
    if (what < 997) return abandon();
    flush();
  }

  // Ends everything and completes what is under way.
  void finish() {
    cache_.store().refuse_next = false;
    for (std::uint32_t d = 0; d < cache_.store().size(); ++d) {
      if (!cache_.store()[d].online()) set_online(d, true);
    }
    while (!sessions_.empty()) end_session(0, false);
    for (std::uint32_t p = 0; p < kProcesses; ++p) end_process(p);
    while (!cache_.store().under_way().empty())
      complete(cache_.store().under_way()[0], FakeStore::Fate::good);
  }
  void drop_everything() {
    drop(std::nullopt, {7});
    while (!cache_.store().under_way().empty())
      complete(cache_.store().under_way()[0], FakeStore::Fate::good);
  }
  std::uint32_t flushes_wanted = 0, flushes_done = 0;

 private:
  static constexpr std::uint32_t kProcesses = 3;
  struct Chain {
    std::uint16_t ns;
    std::vector<TestBlock> blocks;
  };
  struct OpenSession {
    SessionId id;
    ProcessId process;
  };

  unsigned below(unsigned bound) {
    return std::uniform_int_distribution<unsigned>(0, bound - 1)(random_);
  }
  template <class Range>
  auto& any(Range& range) {
    return range[below(static_cast<unsigned>(range.size()))];
  }

  std::vector<TestBlock> branch_of(std::span<const TestBlock> trunk, std::size_t at, Token first) {
    std::vector<TestBlock> branch(trunk.begin(), trunk.begin() + static_cast<std::ptrdiff_t>(at));
    Key parent = branch.back().key();
    for (std::size_t i = at; i < trunk.size(); ++i) {
      TestBlock block = trunk[i];
      for (Token& token : block.tokens) token += first;
      block.identity.parent = parent;
      parent = block.identity.key = chain_key(block.identity.ns, parent, block.tokens);
      branch.push_back(std::move(block));
    }
    return branch;
  }
  void new_session() {
    const std::uint32_t p = below(kProcesses);
    sessions_.push_back({next_session_++, {100 + p, 7}});
  }

  void lease() {
    const Chain& chain = any(chains_);
    auto prefix = std::vector(chain.blocks.begin(), chain.blocks.begin() + 1 + below(12));
    if (below(8) == 0) {
      auto unknown = prefix.back();
      unknown.identity.key.bytes[3] ^= std::byte{0x55};
      prefix.push_back(unknown);
    }
    const SessionId session = any(sessions_).id;
    const auto grant = cache_->lease(session, chain.ns, keys_of(prefix));
    model_.lease(session, chain.ns, prefix, grant);
  }

  void release() {
    LeaseId lease = below(1000);  // of nobody, mostly
    SessionId session = any(sessions_).id;
    if (!model_.leases().empty() && below(20) != 0) {
      auto at = model_.leases().begin();
      std::advance(at, below(static_cast<unsigned>(model_.leases().size())));
      lease = at->first;
      if (below(20) != 0 && at->second.session != 0) session = at->second.session;
    }
    model_.release(session, lease, cache_->release(session, lease));
  }

  void reserve() {
    const OpenSession& session = any(sessions_);
    const Tier tier = below(3) == 0 ? Tier::device : Tier::host;
    reserve(session, any(chains_).ns, tier, 1 + below(4));
  }
  std::vector<SlotName> reserve(const OpenSession& session, std::uint16_t ns, Tier tier,
                                std::uint32_t count) {
    const auto slots = cache_->reserve(session.id, session.process, ns, tier, count);
    model_.reserve(session.id, session.process, ns, tier, count, slots);
    return slots;
  }

  // Mostly the next block of a prefix; sometimes any.
  void commit() {
    const Chain& chain = any(chains_);
    std::size_t at = 0;
    while (at + 1 < chain.blocks.size() && model_.known(chain.blocks[at].key())) ++at;
    if (below(6) == 0) at = below(12);
    TestBlock block = chain.blocks[at];
    std::uint16_t ns = chain.ns;
    const OpenSession session = any(sessions_);

    std::vector<SlotName> slots;
    for (const auto& [slot, reserved] : model_.reservations()) {
      const bool wanted = reserved.ns == ns || below(20) == 0;
      if (wanted && reserved.session == session.id && slots.size() < 2 && below(2) == 0)
        slots.push_back(slot);
    }
    if (slots.empty()) slots = reserve(session, ns, below(3) == 0 ? Tier::device : Tier::host, 1);
    if (below(25) == 0 && !model_.reservations().empty())
      slots.push_back(model_.reservations().begin()->first);
    if (below(40) == 0) slots.push_back(slot_name({9999, 3}));
    for (const SlotName slot : slots) {
      const auto record = cache_.record(slot);
      if (mine(session.id, slot) && record.size() >= cache_.known(ns).layout.record_bytes &&
          below(25) != 0) {
        fill_record(record, cache_.known(ns).layout, block);
      }
    }
    bool sound = true;
    if (below(25) == 0) {
      sound = false;
      if (below(2) == 0)
        block.identity.key.bytes[below(16)] ^= std::byte{8};
      else
        block.tokens.pop_back();
    }
    commit(session.id, ns, block, slots, sound);
  }
  bool mine(SessionId session, SlotName slot) const {
    const auto found = model_.reservations().find(slot);
    return found != model_.reservations().end() && found->second.session == session;
  }
  void commit(SessionId session, std::uint16_t ns, const TestBlock& block,
              const std::vector<SlotName>& slots, bool sound) {
    bool filled[8] = {};
    const RecordLayout& layout = cache_.known(ns).layout;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto record = cache_.record(slots[i]);
      filled[i] =
          !record.empty() && sound && verify_header(record, layout, block.identity, block.proof());
    }
    const bool taken = cache_.commit(ns, block, slots, session);
    model_.commit(session, ns, block, slots, filled, sound, taken);
  }

  void complete_one() {
    const auto under_way = cache_.store().under_way();
    if (under_way.empty()) return;
    const unsigned fate = below(100);
    complete(under_way[below(static_cast<unsigned>(under_way.size()))],
             fate == 0   ? FakeStore::Fate::io
             : fate == 1 ? FakeStore::Fate::corrupt
                         : FakeStore::Fate::good);
  }
  void complete(std::uint64_t operation, FakeStore::Fate fate) {
    const auto asked = cache_.store().asked(operation);
    if (asked.what == FakeStore::Asked::What::erase ||
        asked.what == FakeStore::Asked::What::flush) {
      fate = FakeStore::Fate::good;
    }
    // As the real one does before anything else.
    if (asked.what == FakeStore::Asked::What::write && model_.spoilt(asked.keys[0], Tier::host))
      fate = FakeStore::Fate::corrupt;
    if (cache_.store().cut_off(operation)) fate = FakeStore::Fate::unavailable;
    cache_.store().complete(operation, fate);
    model_.completed(asked, fate);
  }

  void change_health() {
    const std::uint32_t disk = below(options_.sizes.disks);
    set_online(disk, !cache_.store()[disk].online());
  }
  void set_online(std::uint32_t disk, bool online) {
    FakeStore& store = cache_.store()[disk];
    cache_.store().refuse_next = false;
    // What was cut off fails before the store is back, and so does what that brings.
    while (online && !store.under_way().empty())
      complete(store.under_way()[0], FakeStore::Fate::unavailable);
    store.set_online(online);
    model_.health(disk, online);
  }

  void remove() {
    const Chain& chain = any(chains_);
    const Key key = any(chain.blocks).key();
    cache_.remove(chain.ns, key);
    model_.remove(chain.ns, key);
  }
  // A client scribbles over a record that somebody holds leased, who finds it and says so.
  void spoil() {
    for (const auto& [id, lease] : model_.leases()) {
      if (lease.session == 0 || below(3) != 0) continue;
      for (const auto& leased : lease.blocks) {
        if (!leased.block || leased.pending || model_.doomed(*leased.block)) continue;
        const auto record = cache_.record(leased.slot);
        if (record.empty()) continue;
        record[0] ^= std::byte{1};
        const std::uint16_t ns = cache_.find(*leased.block)->ns;
        const Key key = *leased.block;
        const Tier tier = leased.tier;
        const bool believed = cache_->report_bad(lease.session, {&ns, 1}, {&key, 1}) == 0;
        return model_.spoil(key, tier, believed);
      }
    }
  }
  void drop() {
    std::optional<std::uint16_t> ns;
    if (below(3) != 0) ns = any(chains_).ns;
    drop(ns, {static_cast<std::uint8_t>(1 + below(7))});
  }
  void drop(std::optional<std::uint16_t> ns, TierSet tiers) {
    const std::uint64_t dropped = cache_->drop(ns, tiers);
    model_.drop(ns, tiers, dropped);
  }
  void end_session() { end_session(below(static_cast<unsigned>(sessions_.size())), true); }
  void end_session(std::size_t at, bool another) {
    const SessionId session = sessions_[at].id;
    sessions_.erase(sessions_.begin() + static_cast<std::ptrdiff_t>(at));
    cache_->end_session(session);
    model_.end_session(session);
    if (another) new_session();
  }
  void end_process() { end_process(below(kProcesses)); }
  void end_process(std::uint32_t p) {
    cache_->end_process({100 + p, 7});
    model_.end_process({100 + p, 7});
  }
  void abandon() {
    if (model_.reservations().empty()) return;
    const SlotName slot = model_.reservations().begin()->first;
    const SessionId session = any(sessions_).id;
    cache_->abandon(session, slot);
    model_.abandon(session, slot);
  }
  void flush() {
    ++flushes_wanted;
    cache_->flush([this](const Result<void>&) { ++flushes_done; });
  }

  const Options options_;
  std::mt19937 random_;
  TestCache cache_;
  CacheModel model_;
  std::vector<Chain> chains_;
  std::vector<OpenSession> sessions_;
  SessionId next_session_ = 1;
};

}  // namespace kvtier::daemon::testing
