// Namespaces, leases, slots and commits, as the session asks for them.
#include <algorithm>

#include "client/session/limits.h"
#include "client/session/session.h"

namespace kvtier::session {
namespace {

Error malformed(const std::string& what) {
  return make_error(Errc::malformed, "kvtierd sent " + what);
}

// What has come since it was reported last.
std::uint64_t since(const Counters::Counter& counter, std::uint64_t& reported) {
  const std::uint64_t total = Counters::get(counter);
  return total - std::exchange(reported, total);
}

Error not_connected() {
  return make_error(Errc::unavailable, "not connected to kvtierd");
}

capnp::Data::Reader data(const void* bytes, std::size_t count) {
  return {static_cast<const kj::byte*>(bytes), count};
}

capnp::Data::Reader data(const Key& key) {
  return data(key.bytes.data(), key.bytes.size());
}

}  // namespace

void Session::open_on_daemon(const std::shared_ptr<NamespaceEntry>& ns) {
  ns->state = NamespaceEntry::State::opening;
  for (SlotPool& pool : ns->pools) pool.expect();
  const auto encoded = encode(ns->ns);
  const auto done = [this, ns](Result<wire::Message::Reader> reply) -> Result<void> {
    for (SlotPool& pool : ns->pools) pool.give_up();
    if (!reply) {
      ns->state = NamespaceEntry::State::refused;
      ns->refusal = reply.error();
      slots_changed_();
      for (auto& use : std::exchange(ns->waiting, {})) use(reply.error());
      return {};
    }
    if (!reply->isOpened()) return malformed("something else than an opened namespace");
    ns->state = NamespaceEntry::State::open;
    ns->handle = reply->getOpened();
    refill(ns);
    for (auto& use : std::exchange(ns->waiting, {})) use(ns->handle);
    return {};
  };
  ask([&](wire::Message::Builder m) { m.setOpenNamespace(data(encoded.data(), encoded.size())); },
      done);
}

// Not opened again by itself, not even on the next connection: this engine has the old weights. One
// that has loaded new ones opens the namespace anew.
void Session::close_namespace(std::uint32_t handle) {
  std::shared_ptr<NamespaceEntry> closed;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(namespaces_, [&](const auto& ns) {
      return ns->state == NamespaceEntry::State::open && ns->handle == handle;
    });
    if (found == namespaces_.end()) return;
    closed = *found;
    namespaces_.erase(found);
  }
  closed->invalidated = true;
  closed->state = NamespaceEntry::State::refused;
  closed->refusal = make_error(
      Errc::refused, "model " + closed->ns.model +
                         " was invalidated because its weights were updated: load the new ones and "
                         "open the namespace again");
  for (SlotPool& pool : closed->pools) abandon(pool.clear());
  slots_changed_();
}

void Session::with_handle(NamespaceEntry& ns, std::function<void(Result<std::uint32_t>)> use) {
  if (!connection_) return use(not_connected());
  switch (ns.state) {
    case NamespaceEntry::State::open:
      return use(ns.handle);
    case NamespaceEntry::State::refused:
      return use(ns.refusal);
    default:
      ns.waiting.push_back(std::move(use));
  }
}

void Session::ask_lease(std::uint32_t handle, const std::shared_ptr<HeldBlocks>& hold,
                        const std::shared_ptr<Outcome>& outcome) {
  const auto done = [this, hold, outcome](Result<wire::Message::Reader> reply) -> Result<void> {
    if (!reply) {
      outcome->set(reply.error());
      return {};
    }
    if (!reply->isLeased()) return malformed("something else than a lease");
    return take_lease(reply->getLeased(), hold, outcome);
  };
  ask(
      [&](wire::Message::Builder m) {
        auto lease = m.initLease();
        lease.setNs(handle);
        lease.setLookedUp(hold->looked_up());
        lease.setKeys(data(hold->keys().data(), hold->keys().size() * sizeof(Key)));
      },
      done);
}

Result<void> Session::take_lease(wire::Leased::Reader leased,
                                 const std::shared_ptr<HeldBlocks>& hold,
                                 const std::shared_ptr<Outcome>& outcome) {
  const auto slots = leased.getSlots();
  const auto tiers = leased.getTiers();
  if (slots.size() != tiers.size() || slots.size() > hold->keys().size() ||
      (slots.size() > 0 && leased.getLease() == 0)) {
    return malformed("a lease of another shape than asked for");
  }
  std::vector<HeldBlocks::Block> blocks(slots.size());
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    if (tiers[i] >= kTiers) return malformed("a tier that does not exist");
    blocks[i].source = static_cast<Tier>(tiers[i]);
    if (slots[i] == 0) continue;
    blocks[i].slot = resolve(slots[i], hold->ns().layout.record_bytes);
    if (!blocks[i].slot && !lies_in_unmapped(slots[i]))
      return malformed("a slot that is in no extent");
    blocks[i].presence =
        blocks[i].slot ? HeldBlocks::Presence::ready : HeldBlocks::Presence::failed;
  }
  hold->grant(connection_, leased.getLease(), std::move(blocks));
  if (leased.getLease() != 0) leases_[leased.getLease()] = hold;
  // Nobody waits any more: the daemon must not keep what nobody will use.
  if (!outcome->set({})) {
    hold->note_usable(0, hold->blocks());
    hold->release();
  }
  return {};
}

void Session::ask_slots(const std::shared_ptr<NamespaceEntry>& ns, Tier tier, std::uint32_t count) {
  if (!connection_ || ns->state != NamespaceEntry::State::open) {
    ns->pool(tier).give_up();
    return slots_changed_();
  }
  ++slots_asked_;
  const auto done = [this, ns, tier, count](Result<wire::Message::Reader> reply) {
    --slots_asked_;
    const auto taken = take_slots(*ns, tier, count, std::move(reply));
    slots_changed_();
    return taken;
  };
  ask(
      [&](wire::Message::Builder m) {
        auto reserve = m.initReserve();
        reserve.setNs(ns->handle);
        reserve.setTier(static_cast<std::uint8_t>(tier));
        reserve.setCount(count);
      },
      done);
}

Result<void> Session::take_slots(NamespaceEntry& ns, Tier tier, std::uint32_t asked,
                                 Result<wire::Message::Reader> reply) {
  std::vector<ReservedSlot> slots, useless;
  if (reply) {
    if (!reply->isReserved()) return malformed("something else than reserved slots");
    const auto names = reply->getReserved().getSlots();
    if (names.size() > asked) return malformed("more slots than were asked for");
    for (const std::uint64_t name : names) {
      SlotRef ref = resolve(name, ns.layout.record_bytes);
      if (!ref && lies_in_unmapped(name)) {
        useless.push_back({{name, nullptr}, connection_, right_});
        continue;
      }
      if (!ref || ref.extent->tier != tier)
        return malformed("a reserved slot that is in no extent");
      slots.push_back({std::move(ref), connection_, right_});
    }
  }
  if (ns.invalidated || ns.users == 0) {
    abandon(slots);
    slots.clear();
  }
  if (!slots.empty() && !next_shed_) next_shed_ = Clock::now() + kSlotsIdleMax;
  abandon(useless);
  ns.pool(tier).arrive(std::move(slots), Clock::now());
  return {};
}

void Session::add_flush(Flush flush) {
  if (!connection_ || flushes_.size() >= kPendingMax) {
    flush.outcome->set(not_connected());
    return;
  }
  flushes_.push_back(std::move(flush));
  ask_flush();
}

void Session::ask_flush() {
  if (flushing_ || flushes_.empty()) return;
  flushing_ = true;
  const auto done = [this, asking = std::exchange(flushes_, {})](
                        Result<wire::Message::Reader> reply) -> Result<void> {
    flushing_ = false;
    if (reply && !reply->isDone()) return malformed("something else than the end of a flush");
    end_flushes(asking, reply ? Result<void>() : Result<void>(reply.error()));
    if (connection_ && connection_->alive()) ask_flush();
    return {};
  };
  ask([](wire::Message::Builder m) { m.setFlush(); }, done, Patience::unbounded);
}

bool Session::slots_on_their_way() const {
  return std::ranges::any_of(all_namespaces(), [](const auto& ns) {
    return std::ranges::any_of(ns->pools, &SlotPool::expected);
  });
}

// Slots that were asked for are at hand after it.
void Session::end_flushes(std::vector<Flush> flushes, const Result<void>& result) {
  const auto now = Clock::now();
  for (Flush& flush : flushes) {
    if (!result) {
      flush.outcome->set(result);
      continue;
    }
    flush.settled_by = now + kSlotsSettleMax;
    settling_.push_back(std::move(flush));
  }
  settle_flushes(now);
}

void Session::settle_flushes(Clock::time_point now) {
  if (settling_.empty()) return;
  const bool all = !slots_on_their_way();
  std::erase_if(settling_, [&](const Flush& flush) {
    if (!all && now < flush.settled_by) return false;
    flush.outcome->set({});
    return true;
  });
}

// What the daemon wants back and nobody is filling. The answer follows what is given back.
void Session::recall(wire::Recall::Reader recall) {
  // Each asking for a list counts against what of a frame may be read.
  const auto extents = recall.getExtents();
  const auto keeps = recall.getKeeps();
  for (const auto& ns : all_namespaces()) {
    for (const std::uint32_t extent : extents) {
      for (SlotPool& pool : ns->pools) abandon(pool.shed_extent(extent));
    }
    if (ns->state != NamespaceEntry::State::open) continue;
    for (const auto keep : keeps) {
      if (keep.getNs() != ns->handle || keep.getTier() >= ns->pools.size()) continue;
      abandon(ns->pools[keep.getTier()].shed(keep.getSlots()));
    }
  }
  tell([&](wire::Message::Builder m) { m.setReturned(recall.getNumber()); });
}

void Session::shed_idle(Clock::time_point now) {
  bool more = false;
  for (const auto& ns : all_namespaces()) {
    for (SlotPool& pool : ns->pools) {
      abandon(pool.shed_idle(now));
      more = more || pool.has_surplus();
    }
  }
  next_shed_.reset();
  if (more) next_shed_ = now + kSlotsIdleMax / 2;
}

void Session::send_commits(std::vector<FilledBlock> blocks) {
  const auto gone = std::erase_if(blocks, [&](const FilledBlock& b) {
    return !connection_ || b.slots.front().connection != connection_;
  });
  if (gone > 0) counters_.drop(DropReason::disconnected, gone);
  std::ranges::stable_sort(blocks, {}, [](const FilledBlock& b) { return b.ns.get(); });
  for (std::size_t at = 0; at < blocks.size();) {
    std::size_t end = at;
    while (end < blocks.size() && end - at < wire::kCommitBlocksMax &&
           blocks[end].ns == blocks[at].ns)
      ++end;
    send_commit_frame(std::span(blocks).subspan(at, end - at));
    at = end;
  }
}

void Session::send_commit_frame(std::span<const FilledBlock> blocks) {
  bool refused = false;
  for (SlotPool& pool : blocks.front().ns->pools) refused = pool.committed() || refused;
  if (refused) slots_changed_();
  const auto done = [](Result<wire::Message::Reader> reply) -> Result<void> {
    if (reply && !reply->isCommitted()) return malformed("something else than commits");
    return {};
  };
  ask(
      [&](wire::Message::Builder m) {
        auto commit = m.initCommit();
        commit.setNs(blocks.front().ns->handle);
        auto list = commit.initBlocks(static_cast<unsigned>(blocks.size()));
        for (unsigned i = 0; i < list.size(); ++i) {
          const FilledBlock& from = blocks[i];
          auto to = list[i];
          to.setKey(data(from.key));
          to.setParent(data(from.parent));
          to.setBlockIndex(from.block_index);
          to.setTokens(data(from.tokens.data(), from.tokens.size() * sizeof(Token)));
          auto slots = to.initSlots(static_cast<unsigned>(from.slots.size()));
          for (unsigned s = 0; s < slots.size(); ++s) slots.set(s, from.slots[s].ref.name);
        }
      },
      done);
}

void Session::send_report(Clock::time_point now) {
  report_soon_ = false;
  next_report_ = now + connection_->lease_time() / 3;
  tell([&](wire::Message::Builder m) { fill_report(m.initReport()); });
}

void Session::fill_report(wire::Report::Builder out) {
  std::vector<Key> bad;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> missed;
  {
    const std::lock_guard lock(mutex_);
    bad.swap(bad_keys_);
    for (const auto& ns : namespaces_) {
      if (ns->state != NamespaceEntry::State::open) continue;
      if (const std::uint64_t blocks = ns->missed.exchange(0))
        missed.emplace_back(ns->handle, blocks);
    }
  }
  out.setHeaderFaults(since(counters_.header_faults, reported_.header_faults));
  out.setProofFaults(since(counters_.proof_faults, reported_.proof_faults));
  out.setChecksumFaults(since(counters_.checksum_faults, reported_.checksum_faults));
  auto dropped = out.initDropped(kDropReasons);
  for (unsigned i = 0; i < kDropReasons; ++i)
    dropped.set(i, since(counters_.dropped[i], reported_.dropped[i]));
  auto list = out.initMissed(static_cast<unsigned>(missed.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    list[i].setNs(missed[i].first);
    list[i].setBlocks(missed[i].second);
  }
  auto keys = out.initBadKeys(static_cast<unsigned>(bad.size()));
  for (unsigned i = 0; i < keys.size(); ++i) keys.set(i, data(bad[i]));
  auto loads = out.initLoads(kTiers);
  for (unsigned t = 0; t < kTiers; ++t) report(counters_.loads[t], reported_.loads[t], loads[t]);
  report(counters_.write_backs, reported_.write_backs, out.initWriteBacks());
}

void Session::report(const Timing& timing, ReportedTiming& told, wire::Report::Timing::Builder to) {
  auto buckets = to.initBuckets(static_cast<unsigned>(timing.buckets.size()));
  for (unsigned i = 0; i < buckets.size(); ++i)
    buckets.set(i, since(timing.buckets[i], told.buckets[i]));
  to.setSumUs(since(timing.sum_us, told.sum_us));
  to.setBytes(since(timing.bytes, told.bytes));
}

void Session::abandon_pools() {
  for (const auto& ns : all_namespaces()) {
    for (SlotPool& pool : ns->pools) abandon(pool.clear());
  }
}

void Session::abandon(const std::vector<ReservedSlot>& slots) {
  for (std::size_t at = 0; at < slots.size(); at += wire::kReserveMax) {
    const auto count = std::min<std::size_t>(slots.size() - at, wire::kReserveMax);
    tell([&](wire::Message::Builder m) {
      auto list = m.initAbandon(static_cast<unsigned>(count));
      for (unsigned i = 0; i < list.size(); ++i) list.set(i, slots[at + i].ref.name);
    });
  }
}

}  // namespace kvtier::session
