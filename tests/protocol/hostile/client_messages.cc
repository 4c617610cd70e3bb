// What a hostile session says as a client that may write or read.
#include <algorithm>
#include <array>

#include "core/record/record.h"
#include "tests/protocol/hostile/messages.h"
#include "tests/protocol/hostile/wire_data.h"

namespace kvtier::protocol::say {

using Builder = HostileSession::Builder;

namespace {

// The block's own, mostly; else none, a part of it, more than it has, or more than any may have.
std::vector<std::byte> proof_to_say(Random& random, const TestBlock& block) {
  std::vector<std::byte> proof(block.proof().begin(), block.proof().end());
  if (!random.one_in(80)) return proof;
  switch (random.below(8U)) {
    case 0:
      return {};
    case 1:
    case 2:
    case 3:
      proof.resize(random.below(proof.size() + 1));
      break;
    case 4:
      proof.resize(random.below(kProofBytesMax + 1), std::byte{7});
      break;
    case 5:
      proof.resize(kProofBytesMax + (random.one_in(20) ? random.below(400'000U) : 0));
      break;
    default:
      proof.resize(proof.size() + random.below(80U));
  }
  return proof;
}

void fill_block(HostileSession& session, wire::Commit::Block::Builder out, const TestBlock& block,
                std::size_t ns) {
  Random& random = session.random();
  Key key = block.key(), parent = block.identity.parent;
  if (random.one_in(60)) key.bytes[random.below(16U)] ^= std::byte{4};
  if (random.one_in(60)) parent.bytes[random.below(16U)] ^= std::byte{4};
  out.setKey(data_of(key));
  out.setParent(data_of(parent));
  out.setBlockIndex(random.odd(block.identity.block_index, 60));
  const auto proof = proof_to_say(random, block);
  out.setProof({reinterpret_cast<const kj::byte*>(proof.data()), proof.size()});
  const auto slots = session.has().slots_to_commit(block, ns);
  auto list = out.initSlots(static_cast<unsigned>(slots.size()));
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, slots[i]);
}

}  // namespace

void hello(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  const bool reader = session.who().reader || random.one_in(12);
  session.ask(
      [&](Builder m) {
        auto hello = m.initHello();
        hello.setVersion(random.odd(wire::kProtocolVersion, 60));
        hello.setFeatures(random.odd(wire::kFeatures));
        hello.setName(random.one_in(30) ? std::string(random.below(5000U), '\x1b')
                                        : session.who().kind);
        if (random.one_in(4)) {
          std::array<kj::byte, 64> gpu{};
          gpu[15] = static_cast<kj::byte>(random.below(3U));
          hello.setGpu({gpu.data(), random.odd<std::size_t>(16) % gpu.size()});
        }
        hello.setReadOnly(reader);
        hello.setClient(random.one_in(3) ? session.client() : random.odd(session.client(), 2));
        if (has.lineage.empty() || !random.one_in(3)) return;
        hello.setLineage(
            {reinterpret_cast<const kj::byte*>(has.lineage.data()),
             std::min<std::size_t>(random.odd(has.lineage.size()), has.lineage.size())});
        hello.setExtentsReadOnly(reader);
        // It has none of them any more, so it is not told of them again.
        has.certain = false;
        const std::uint32_t more = random.one_in(30) ? random.below(70'000U) : random.below(4U);
        auto extents =
            hello.initExtents(static_cast<unsigned>(has.earlier_extents().size()) + more);
        for (unsigned i = 0; i < extents.size(); ++i) {
          const bool known = i < has.earlier_extents().size();
          extents.set(i, known ? has.earlier_extents()[i] : random.odd(i, 2));
        }
      },
      {wire::Message::HELLO});
}

void open_namespace(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  const std::size_t at = session.universe().pick(random, session.who().user);
  // What nobody else opens makes names scarce, so it is rare.
  if (random.one_in(30)) {
    const std::string odd = session.universe().odd_namespace(random);
    has.certain = false;  // whose it is
    return session.ask([&](Builder m) { m.setOpenNamespace(data_of(odd)); },
                       {wire::Message::ERROR});
  }
  session.ask(
      [&](Builder m) { m.setOpenNamespace(data_of(session.universe().namespaces()[at].encoded)); },
      {wire::Message::OPEN_NAMESPACE, at});
}

void lease(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  const auto in = has.pick_opened();
  auto keys = daemon::testing::keys_of(session.universe().prompt(random, in.ns));
  if (random.one_in(10)) keys.insert(keys.end(), random.below(20U), random.pick(keys));
  if (random.one_in(10)) random.pick(keys).bytes[15] ^= std::byte{1};
  if (random.one_in(300)) keys.resize(random.one_in(2) ? 0 : random.below(17'000U), keys[0]);
  const auto count = static_cast<std::uint32_t>(keys.size());
  session.ask(
      [&](Builder m) {
        auto lease = m.initLease();
        lease.setNs(in.handle);
        const std::size_t bytes = keys.size() * sizeof(Key);
        lease.setKeys({reinterpret_cast<const kj::byte*>(keys.data()),
                       bytes - (random.one_in(300) && bytes > 0 ? 1 : 0)});
        lease.setLookedUp(random.odd(count, 100));
        lease.setFirst(random.odd(1U, 100));
      },
      {wire::Message::LEASE, in.ns, count});
}

void look_up(HostileSession& session) {
  Random& random = session.random();
  const auto in = session.has().pick_opened();
  const auto keys = daemon::testing::keys_of(session.universe().prompt(random, in.ns));
  session.ask([&](Builder m) {
    auto lookup = m.initLookUp();
    lookup.setNs(in.handle);
    const std::size_t bytes = keys.size() * sizeof(Key);
    lookup.setKeys({reinterpret_cast<const kj::byte*>(keys.data()),
                    bytes - (random.one_in(300) && bytes > 0 ? 1 : 0)});
    lookup.setFirst(random.odd(1U, 2));
  });
}

void release(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  session.tell([&](Builder m) {
    const std::uint32_t count = random.one_in(200) ? random.below(100'000U) : random.below(4U);
    auto list = m.initRelease(count);
    for (unsigned i = 0; i < count; ++i) list.set(i, has.lease_to_name());
  });
}

void release_partly(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  session.tell([&](Builder m) {
    const std::uint32_t count = random.one_in(200) ? random.below(50'000U) : random.below(4U);
    auto list = m.initReleasePartly(count);
    for (auto release : list) {
      release.setLease(has.lease_to_name());
      release.setUsable(random.odd(random.below(8U)));
    }
  });
}

void reserve(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  const auto in = has.pick_opened();
  const Tier tier = random.one_in(3) ? Tier::device : Tier::host;
  const std::uint32_t count =
      random.odd(random.one_in(40) ? 200 + random.below(1000U) : 1 + random.below(8U), 100);
  session.ask(
      [&](Builder m) {
        auto reserve = m.initReserve();
        reserve.setNs(in.handle);
        reserve.setTier(random.odd(static_cast<std::uint8_t>(tier), 300));
        reserve.setCount(count);
      },
      {wire::Message::RESERVE, in.ns, count, tier});
}

void commit(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  const auto in = has.pick_to_commit();
  const auto prompt = session.universe().prompt(random, in.ns);
  const auto count = random.one_in(400)
                         ? random.below(200U)
                         : std::min<std::uint32_t>(static_cast<std::uint32_t>(prompt.size()), 64);
  session.ask(
      [&](Builder m) {
        auto commit = m.initCommit();
        commit.setNs(in.handle);
        auto blocks = commit.initBlocks(count);
        for (unsigned i = 0; i < count; ++i)
          fill_block(session, blocks[i], prompt[i % prompt.size()], in.ns);
      },
      {wire::Message::COMMIT, in.ns, count});
}

void abandon(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  session.tell([&](Builder m) {
    const std::uint32_t count = random.one_in(300) ? random.below(100'000U) : random.below(6U);
    auto list = m.initAbandon(count);
    for (unsigned i = 0; i < count; ++i) list.set(i, has.slot_to_abandon());
  });
}

void let_go(HostileSession& session) {
  session.tell([](Builder m) { m.setLetGo(); });
}

// Mostly a good one, so that the cache does something for it.
void hint(HostileSession& session) {
  Random& random = session.random();
  const auto in = session.has().pick_opened();
  auto keys = daemon::testing::keys_of(session.universe().prompt(random, in.ns));
  if (random.one_in(10)) keys.insert(keys.end(), random.below(20U), random.pick(keys));
  if (random.one_in(10)) random.pick(keys).bytes[15] ^= std::byte{1};
  if (random.one_in(300)) keys.resize(random.one_in(2) ? 0 : random.below(17'000U), keys[0]);
  session.tell([&](Builder m) {
    auto hint = m.initHint();
    hint.setNs(random.odd(in.handle, 400));
    const std::size_t bytes = keys.size() * sizeof(Key);
    hint.setKeys({reinterpret_cast<const kj::byte*>(keys.data()),
                  bytes - (random.one_in(300) && bytes > 0 ? 1 : 0)});
    hint.setKind(random.odd(static_cast<std::uint8_t>(random.below(4U)), 300));
    hint.setTier(random.odd(static_cast<std::uint8_t>(random.one_in(3) ? 0 : 1), 300));
    hint.setPriority(random.odd(static_cast<std::uint8_t>(random.below(4U)), 300));
    hint.setSeconds(random.odd(random.below(4U), 20));
  });
}

void report(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  session.tell([&](Builder m) {
    auto report = m.initReport();
    auto missed = report.initMissed(random.odd(random.below(3U), 200) % 3000);
    for (auto one : missed) {
      one.setNs(has.pick_opened().handle);
      one.setBlocks(random.odd<std::uint64_t>(3, 20));
    }
    report.setHeaderFaults(random.odd<std::uint64_t>(1));
    report.setProofFaults(random.odd<std::uint64_t>(0));
    auto dropped = report.initDropped(random.odd(4U, 80) % 4000);
    for (unsigned i = 0; i < dropped.size(); ++i) dropped.set(i, random.odd<std::uint64_t>(2, 20));
    auto keys = report.initBadKeys(random.one_in(100) ? random.below(400U) : random.below(3U));
    for (unsigned i = 0; i < keys.size(); ++i) {
      if (const auto key = has.pick_key()) keys.set(i, data_of(*key));
    }
    auto loads = report.initLoads(random.odd(3U, 80) % 4000);
    for (auto timing : loads) {
      timing.initBuckets(random.odd(20U, 80) % 200);
      timing.setSumUs(random.odd<std::uint64_t>(100, 20));
    }
    report.initWriteBacks().setBytes(random.odd<std::uint64_t>(100, 20));
  });
}

void flush(HostileSession& session) {
  session.ask([](Builder m) { m.setFlush(); }, {wire::Message::FLUSH});
}

void status(HostileSession& session) {
  session.ask([](Builder m) { m.setStatus(); }, {wire::Message::STATUS});
}

}  // namespace kvtier::protocol::say
