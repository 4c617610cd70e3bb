#include "daemon/session/client_requests.h"

#include <algorithm>
#include <cstring>

#include "daemon/limits.h"
#include "daemon/session/wire_values.h"

namespace kvtier::daemon {
namespace {

constexpr std::uint16_t kNotKnown = OpenNamespaces::kNotKnown;

std::span<const std::byte> bytes_of(capnp::Data::Reader data) {
  return {reinterpret_cast<const std::byte*>(data.begin()), data.size()};
}

// Where they lie in the frame.
std::span<const Key> keys_in(capnp::Data::Reader data) {
  static_assert(alignof(Key) == 1 && std::is_trivially_copyable_v<Key>);
  return {reinterpret_cast<const Key*>(data.begin()), data.size() / sizeof(Key)};
}

// The number of a request's first key in its prefix, where that was told.
template <class Request>
std::optional<std::uint32_t> first_in(Request request) {
  if (request.getFirst() == 0) return std::nullopt;
  return request.getFirst() - 1;
}

// Copies `count` values of 16 or 4 bytes, which lie unaligned in the frame.
template <class Value>
std::vector<Value> values_of(capnp::Data::Reader data) {
  std::vector<Value> values(data.size() / sizeof(Value));
  // memcpy() wants places even for nothing.
  if (!values.empty()) std::memcpy(values.data(), data.begin(), values.size() * sizeof(Value));
  return values;
}

}  // namespace

Result<void> ClientRequests::handle(wire::Message::Reader message) {
  const std::uint64_t id = message.getId();
  switch (message.which()) {
    case wire::Message::OPEN_NAMESPACE:
      return open(id, message.getOpenNamespace());
    case wire::Message::LEASE:
      return lease(id, message.getLease());
    case wire::Message::LOOK_UP:
      return look_up(id, message.getLookUp());
    case wire::Message::RELEASE:
      for (const LeaseId lease : message.getRelease())
        context_.cache.release(client_.session, lease);
      return {};
    case wire::Message::RELEASE_PARTLY:
      for (const auto release : message.getReleasePartly())
        context_.cache.release(client_.session, release.getLease(), release.getUsable());
      return {};
    case wire::Message::RESERVE:
      return reserve(id, message.getReserve());
    case wire::Message::COMMIT:
      return commit(id, message.getCommit());
    case wire::Message::ABANDON:
      for (const SlotName slot : message.getAbandon())
        context_.cache.abandon(client_.session, slot);
      context_.lending.came_home();
      return {};
    case wire::Message::RETURNED:
      context_.lending.returned(client_.session, message.getReturned());
      return {};
    case wire::Message::REPORT:
      return report(message.getReport());
    case wire::Message::HINT:
      return hint(message.getHint());
    case wire::Message::FLUSH:
      return flush(id);
    case wire::Message::STATUS:
      connection_.reply(id, [&](Builder root) {
        context_.ports.fill_status(connection_.peer(), root.initStatusReply());
      });
      return {};
    case wire::Message::LET_GO:
      context_.cache.let_go(client_.process, client_.id);
      context_.lending.came_home();
      return {};
    default:
      return malformed("not something a client may send");
  }
}

Result<void> ClientRequests::open(std::uint64_t id, capnp::Data::Reader encoded) {
  const Peer& peer = connection_.peer();
  // What is not understood gets its error below.
  if (const auto ns = decode_namespace(bytes_of(encoded))) {
    const Tenants& tenants = context_.cache.catalogue().tenants();
    const TenantId tenant = tenants.of_salt(ns->tenant);
    if (!context_.access.may_use(tenant, peer)) {
      ++context_.counts.denied;
      connection_.reply_error(
          id, make_error(Errc::refused, "user " + std::to_string(peer.uid) +
                                            " may not use the tenant '" + tenants[tenant].name +
                                            "': see the users and groups of its [[tenant]]"));
      return {};
    }
  }
  const auto handle = namespaces_.open(bytes_of(encoded), !client_.read_only, peer.uid);
  if (!handle) {
    connection_.reply_error(id, handle.error());
  } else {
    connection_.reply(id, [&](Builder root) { root.setOpened(*handle); });
  }
  return {};
}

Result<void> ClientRequests::lease(std::uint64_t id, wire::LeaseRequest::Reader request) {
  const auto ns = namespaces_.number_of(request.getNs());
  if (!ns) return ns.error();
  if (request.getKeys().size() % sizeof(Key) != 0) return malformed("a lease of part of a key");
  const auto keys = keys_in(request.getKeys());
  if (request.getLookedUp() > limits::kLookedUpMax) return malformed("a prompt of too many blocks");
  const LeaseAsked asked{id, request.getNs(), request.getLookedUp(), request.getAhead()};
  const auto then = [this, asked](std::span<const Key> all) {
    if (const auto again = namespaces_.number_of(asked.handle)) grant(asked, *again, all);
  };
  if (!looks_further({*ns, keys, first_in(request)}, then)) grant(asked, *ns, keys);
  return {};
}

// True: the remote tier is asked for what is not known of the prompt, and `then` goes on with it
// where the session is still there.
bool ClientRequests::looks_further(const RemoteLookups::Prompt& prompt,
                                   std::function<void(std::span<const Key>)> then) {
  if (prompt.ns == kNotKnown || !context_.cache.remote().readable()) return false;
  const auto keys = std::make_shared<std::vector<Key>>();
  const bool asked = context_.cache.remote().ask(
      prompt, [weak = connection_.weak_from_this(), keys, then = std::move(then)] {
        const auto connection = weak.lock();
        if (connection && connection->open()) then(*keys);
      });
  if (asked) keys->assign(prompt.keys.begin(), prompt.keys.end());
  return asked;
}

void ClientRequests::grant(const LeaseAsked& asked, std::uint16_t ns, std::span<const Key> keys) {
  const auto answer = [&](const BlockCache::Grant& grant) {
    for (const SlotName slot : grant.slots) extents_.introduce(slot);
    connection_.reply(asked.id, [&](Builder root) {
      auto leased = root.initLeased();
      leased.setLease(grant.lease);
      auto slots = leased.initSlots(static_cast<unsigned>(grant.slots.size()));
      for (unsigned i = 0; i < grant.slots.size(); ++i) slots.set(i, grant.slots[i]);
      auto tiers = leased.initTiers(static_cast<unsigned>(grant.tiers.size()));
      for (unsigned i = 0; i < grant.tiers.size(); ++i) {
        // To who knows no other, what is not in memory is on disk.
        const Tier tier =
            client_.knows_remote || grant.tiers[i] != Tier::remote ? grant.tiers[i] : Tier::disk;
        tiers[i] = static_cast<kj::byte>(tier);
      }
    });
  };
  if (ns != kNotKnown) {
    context_.cache.lease(client_.session, ns, keys, client_.device, asked.looked_up, asked.ahead,
                         answer);
    return;
  }
  if (!asked.ahead) {
    context_.cache.catalogue().namespaces().missed(
        std::max<std::uint64_t>(asked.looked_up, keys.size()));
  }
  answer({});
}

Result<void> ClientRequests::look_up(std::uint64_t id, wire::LeaseRequest::Reader request) {
  const auto ns = namespaces_.number_of(request.getNs());
  if (!ns) return ns.error();
  if (request.getKeys().size() % sizeof(Key) != 0) return malformed("a lookup of part of a key");
  const auto keys = keys_in(request.getKeys());
  const auto answer = [this, id, handle = request.getNs()](std::span<const Key> all) {
    const auto now = namespaces_.number_of(handle);
    std::size_t known = 0;
    if (now && *now != kNotKnown) {
      std::vector<BlockId> ids(all.size());
      known = context_.cache.catalogue().find_prefix(*now, all, ids);
    }
    connection_.reply(
        id, [known](Builder root) { root.setLookedUp(static_cast<std::uint32_t>(known)); });
  };
  if (!looks_further({*ns, keys, first_in(request)}, answer)) answer(keys);
  return {};
}

Result<void> ClientRequests::reserve(std::uint64_t id, wire::ReserveRequest::Reader request) {
  const auto ns = namespaces_.number_of(request.getNs());
  if (!ns) return ns.error();
  if (request.getTier() >= index_of(Tier::disk)) return malformed("slots of no memory tier");
  const Lending::Request asked{
      context_.cache.borrower(client_.session, client_.process, *ns,
                              static_cast<Tier>(request.getTier()), client_.device, client_.id),
      id, std::min(request.getCount(), wire::kReserveMax)};
  if (auto slots = context_.lending.ask(asked, Connection::Clock::now()))
    granted(id, std::move(*slots));
  return {};
}

void ClientRequests::granted(std::uint64_t id, std::vector<SlotName> slots) {
  // Side by side as far as they are: a client's copies of neighbours go together.
  std::ranges::sort(slots);
  for (const SlotName slot : slots) extents_.introduce(slot);
  const bool told = connection_.reply(id, [&](Builder root) {
    auto list = root.initReserved().initSlots(static_cast<unsigned>(slots.size()));
    for (unsigned i = 0; i < slots.size(); ++i) list.set(i, slots[i]);
  });
  // A peer that never hears of them writes to none.
  if (!told) {
    for (const SlotName slot : slots) context_.cache.abandon(client_.session, slot);
  }
}

Result<void> ClientRequests::commit(std::uint64_t id, wire::Commit::Reader commit) {
  const auto ns = namespaces_.number_of(commit.getNs());
  if (!ns) return ns.error();
  std::uint32_t taken = 0;
  const auto blocks = commit.getBlocks();
  prefetch_keys(blocks, 0);
  for (unsigned i = 0; i < blocks.size(); ++i) {
    if (i % kPrefetched == 0) prefetch_keys(blocks, i + kPrefetched);
    const auto block = blocks[i];
    if (block.getKey().size() != sizeof(Key) || block.getParent().size() != sizeof(Key) ||
        block.getProof().size() > kProofBytesMax || block.getSlots().size() > kTiers) {
      return malformed("a block's key, parent, proof or slots have the wrong size");
    }
    BlockCache::NewBlock fresh;
    std::memcpy(&fresh.key, block.getKey().begin(), sizeof(Key));
    std::memcpy(&fresh.parent, block.getParent().begin(), sizeof(Key));
    const auto proof = values_of<std::byte>(block.getProof());
    std::vector<SlotName> slots;
    for (const SlotName slot : block.getSlots()) slots.push_back(slot);
    fresh.block_index = block.getBlockIndex();
    fresh.prompt_blocks = std::min(block.getPromptBlocks(), limits::kLookedUpMax);
    fresh.answer_tokens = block.getAnswerTokens();
    fresh.proof = proof;
    fresh.slots = slots;
    taken += context_.cache.commit(client_.session, *ns, fresh) ? 1 : 0;
  }
  context_.lending.came_home();
  connection_.reply(id, [&](Builder root) { root.setCommitted(taken); });
  return {};
}

void ClientRequests::prefetch_keys(capnp::List<wire::Commit::Block>::Reader blocks,
                                   unsigned first) const {
  std::array<Key, kPrefetched> keys;
  const unsigned count = first < blocks.size() ? std::min(kPrefetched, blocks.size() - first) : 0;
  for (unsigned i = 0; i < count; ++i) {
    const auto key = blocks[first + i].getKey();
    if (key.size() == sizeof(Key)) std::memcpy(&keys[i], key.begin(), sizeof(Key));
  }
  context_.cache.catalogue().prefetch({keys.data(), count});
}

Result<void> ClientRequests::report(wire::Report::Reader report) {
  if (auto good = context_.counts.told.take(report); !good) return good;
  for (const auto missed : report.getMissed()) {
    const auto ns = namespaces_.number_of(missed.getNs());
    if (!ns) return ns.error();
    if (*ns == kNotKnown) {
      context_.cache.catalogue().namespaces().missed(missed.getBlocks());
    } else {
      context_.cache.missed(*ns, missed.getBlocks());
    }
  }
  const auto bad_keys = report.getBadKeys();
  std::vector<Key> keys(bad_keys.size());
  for (unsigned i = 0; i < bad_keys.size(); ++i) {
    if (bad_keys[i].size() != sizeof(Key)) return malformed("a key of the wrong size");
    std::memcpy(&keys[i], bad_keys[i].begin(), sizeof(Key));
  }
  if (keys.empty()) return {};
  // They may lie among many that are held.
  constexpr double kHeldBlocksOfOneRequest = 256;
  connection_.charge(static_cast<double>(context_.cache.held_by(client_.session).leased_blocks) /
                     kHeldBlocksOfOneRequest);
  if (client_.read_only) {
    context_.counts.refused_reports += keys.size();
  } else {
    reported_ = std::move(keys);
  }
  return {};
}

// What it names and is not there, or may not be had, is no error.
Result<void> ClientRequests::hint(wire::Hint::Reader hint) {
  const auto ns = namespaces_.number_of(hint.getNs());
  if (!ns) return ns.error();
  if (hint.getKeys().size() % sizeof(Key) != 0) return malformed("a hint of part of a key");
  if (hint.getKind() >= kHintKinds || hint.getTier() >= index_of(Tier::disk) ||
      hint.getPriority() > kHintPriorityMax) {
    return malformed("a hint of no kind, of a tier that is not in memory, or of no priority");
  }
  const auto keys = keys_in(hint.getKeys());
  const Hint asked{static_cast<HintKind>(hint.getKind()), static_cast<Tier>(hint.getTier()),
                   hint.getPriority(), std::chrono::seconds(hint.getSeconds())};
  if (client_.read_only && asked.kind != HintKind::prefetch) {
    context_.cache.hints().deny(asked.kind, keys.size());
  } else if (*ns != kNotKnown) {
    const auto then = [this, asked, handle = hint.getNs()](std::span<const Key> all) {
      const auto now = namespaces_.number_of(handle);
      if (now && *now != kNotKnown)
        context_.cache.hint(client_.session, *now, all, asked, client_.device);
    };
    const bool further =
        asked.kind == HintKind::prefetch && looks_further({*ns, keys, first_in(hint)}, then);
    if (!further) context_.cache.hint(client_.session, *ns, keys, asked, client_.device);
  }
  return {};
}

// As many of the keys that a report called bad as a turn may have records read for.
void ClientRequests::do_more() {
  const std::size_t count = std::clamp<std::size_t>(
      limits::kReportBytesMax / namespaces_.record_bytes_max(), 1, reported_.size());
  const auto first = reported_.end() - static_cast<std::ptrdiff_t>(count);
  context_.counts.refused_reports += context_.cache.report_bad(
      client_.session, namespaces_.numbers(), std::span(first, reported_.end()));
  reported_.erase(first, reported_.end());
}

Result<void> ClientRequests::flush(std::uint64_t id) {
  if (*flushes_ == limits::kFlushesPerSessionMax) return malformed("too many flushes at a time");
  ++*flushes_;
  context_.cache.flush([weak = connection_.weak_from_this(), flushes = flushes_, id,
                        &cache = context_.cache](const Result<void>& result) {
    --*flushes;
    const auto connection = weak.lock();
    if (!connection) return;
    if (!result) return connection->reply_error(id, result.error());
    connection->reply(id, [left = cache.disk().left_out()](Builder root) {
      root.setDone();
      root.setLeftOut(left.blocks);
      root.setLeftOutInMemory(left.in_memory);
    });
  });
  return {};
}

}  // namespace kvtier::daemon
