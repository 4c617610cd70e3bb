// What a hostile session says as a client that may write or read.
#include <algorithm>
#include <cstring>

#include "core/record/record.h"
#include "tests/protocol/hostile/hostile_session.h"

namespace kvtier::protocol {
namespace {

capnp::Data::Reader data_of(const auto& value) {
  return {reinterpret_cast<const kj::byte*>(&value), sizeof value};
}
capnp::Data::Reader data_of(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

}  // namespace

void HostileSession::hello() {
  const bool reader = who_.reader || random_.one_in(12);
  ask(
      [&](Builder m) {
        auto hello = m.initHello();
        hello.setVersion(random_.odd(wire::kProtocolVersion, 60));
        hello.setFeatures(random_.odd(wire::kFeatures));
        hello.setName(random_.one_in(30) ? std::string(random_.below(5000U), '\x1b') : who_.kind);
        if (random_.one_in(4)) {
          std::array<kj::byte, 64> gpu{};
          gpu[15] = static_cast<kj::byte>(random_.below(3U));
          hello.setGpu({gpu.data(), random_.odd<std::size_t>(16) % gpu.size()});
        }
        hello.setReadOnly(reader);
        hello.setClient(random_.one_in(3) ? client_ : random_.odd(client_, 2));
        if (lineage_.empty() || !random_.one_in(3)) return;
        hello.setLineage({reinterpret_cast<const kj::byte*>(lineage_.data()),
                          std::min<std::size_t>(random_.odd(lineage_.size()), lineage_.size())});
        hello.setExtentsReadOnly(reader);
        // It has none of them any more, so it is not told of them again.
        certain_ = false;
        const std::uint32_t more = random_.one_in(30) ? random_.below(70'000U) : random_.below(4U);
        auto extents = hello.initExtents(static_cast<unsigned>(earlier_extents_.size()) + more);
        for (unsigned i = 0; i < extents.size(); ++i) {
          const bool known = i < earlier_extents_.size();
          extents.set(i, known ? earlier_extents_[i] : random_.odd(i, 2));
        }
      },
      {wire::Message::HELLO});
}

void HostileSession::open_namespace() {
  const std::size_t at = universe_.pick(random_, who_.user);
  // What nobody else opens makes names scarce, so it is rare.
  if (random_.one_in(30)) {
    const std::string odd = universe_.odd_namespace(random_);
    certain_ = false;  // whose it is
    return ask([&](Builder m) { m.setOpenNamespace(data_of(odd)); }, {wire::Message::ERROR});
  }
  ask([&](Builder m) { m.setOpenNamespace(data_of(universe_.namespaces()[at].encoded)); },
      {wire::Message::OPEN_NAMESPACE, at});
}

HostileSession::Opened HostileSession::pick_opened() {
  Opened opened{0, universe_.pick(random_, who_.user)};
  if (!opened_.empty()) opened = random_.pick(opened_);
  opened.handle = random_.odd(opened.handle, 150);
  return opened;
}

void HostileSession::lease() {
  const Opened in = pick_opened();
  auto keys = daemon::testing::keys_of(universe_.prompt(random_, in.ns));
  if (random_.one_in(10)) keys.insert(keys.end(), random_.below(20U), random_.pick(keys));
  if (random_.one_in(10)) random_.pick(keys).bytes[15] ^= std::byte{1};
  if (random_.one_in(300)) keys.resize(random_.one_in(2) ? 0 : random_.below(17'000U), keys[0]);
  const auto count = static_cast<std::uint32_t>(keys.size());
  ask(
      [&](Builder m) {
        auto lease = m.initLease();
        lease.setNs(in.handle);
        const std::size_t bytes = keys.size() * sizeof(Key);
        lease.setKeys({reinterpret_cast<const kj::byte*>(keys.data()),
                       bytes - (random_.one_in(300) && bytes > 0 ? 1 : 0)});
        lease.setLookedUp(random_.odd(count, 100));
      },
      {wire::Message::LEASE, in.ns, count});
}

std::uint64_t HostileSession::lease_to_name() {
  if (!leases_.empty() && !random_.one_in(10)) {
    std::uint64_t& last = random_.pick(leases_);
    const std::uint64_t lease = last;
    if (!random_.one_in(8)) {
      last = leases_.back();
      leases_.pop_back();
    }
    return lease;
  }
  return random_.odd(tally_.leases[random_.below(tally_.leases.size())].load(), 4);
}

void HostileSession::release() {
  tell([&](Builder m) {
    const std::uint32_t count = random_.one_in(200) ? random_.below(100'000U) : random_.below(4U);
    auto list = m.initRelease(count);
    for (unsigned i = 0; i < count; ++i) list.set(i, lease_to_name());
  });
}

void HostileSession::release_partly() {
  tell([&](Builder m) {
    const std::uint32_t count = random_.one_in(200) ? random_.below(50'000U) : random_.below(4U);
    auto list = m.initReleasePartly(count);
    for (auto release : list) {
      release.setLease(lease_to_name());
      release.setUsable(random_.odd(random_.below(8U)));
    }
  });
}

void HostileSession::reserve() {
  const Opened in = pick_opened();
  const Tier tier = random_.one_in(3) ? Tier::device : Tier::host;
  const std::uint32_t count =
      random_.odd(random_.one_in(40) ? 200 + random_.below(1000U) : 1 + random_.below(8U), 100);
  ask(
      [&](Builder m) {
        auto reserve = m.initReserve();
        reserve.setNs(in.handle);
        reserve.setTier(random_.odd(static_cast<std::uint8_t>(tier), 300));
        reserve.setCount(count);
      },
      {wire::Message::RESERVE, in.ns, count, tier});
}

std::uint64_t HostileSession::slot_to_name() {
  const std::uint64_t slot = random_.one_in(3) && !spent_.empty()
                                 ? random_.pick(spent_)
                                 : tally_.slots[random_.below(tally_.slots.size())].load();
  return random_.odd(slot, 4);
}

void HostileSession::fill_block(wire::Commit::Block::Builder out, const TestBlock& block,
                                std::size_t ns) {
  Key key = block.key(), parent = block.identity.parent;
  if (random_.one_in(60)) key.bytes[random_.below(16U)] ^= std::byte{4};
  if (random_.one_in(60)) parent.bytes[random_.below(16U)] ^= std::byte{4};
  out.setKey(data_of(key));
  out.setParent(data_of(parent));
  out.setBlockIndex(random_.odd(block.identity.block_index, 60));
  const std::size_t bytes = block.tokens.size() * sizeof(Token);
  out.setTokens({reinterpret_cast<const kj::byte*>(block.tokens.data()),
                 random_.one_in(80) ? random_.below(bytes + 1) : bytes});
  std::vector<std::uint64_t> slots;
  std::vector<Held> kept;
  for (const Held& held : held_) {
    const bool other_tier = slots.empty() || (held.slot >> 32) != (slots[0] >> 32);
    const bool take =
        held.ns == ns && slots.size() < 2 && other_tier && (slots.empty() || random_.one_in(2));
    if (take) {
      slots.push_back(held.slot);
    } else {
      kept.push_back(held);
    }
  }
  for (const std::uint64_t slot : slots) {
    const auto record = memory_.record(slot);
    const RecordLayout& layout = universe_.namespaces()[ns].layout;
    if (record.size() < layout.record_bytes || random_.one_in(40)) continue;
    daemon::testing::fill_record(record, layout, block);
  }
  // Kept now and then: it is committed again, or abandoned, later.
  if (!random_.one_in(12)) held_ = std::move(kept);
  if (random_.one_in(20)) slots.push_back(slot_to_name());
  if (random_.one_in(60) && !slots.empty()) slots.push_back(slots[0]);
  if (random_.one_in(400)) slots.resize(random_.below(2000U));
  auto list = out.initSlots(static_cast<unsigned>(slots.size()));
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, slots[i]);
  spent_.insert(spent_.end(), slots.begin(), slots.end());
  constexpr std::size_t kSpentMax = 64;
  if (spent_.size() > kSpentMax) spent_.erase(spent_.begin(), spent_.end() - kSpentMax);
}

void HostileSession::commit() {
  Opened in = pick_opened();
  if (!held_.empty() && !random_.one_in(20)) {
    in.ns = random_.pick(held_).ns;
    for (const Opened& opened : opened_) {
      if (opened.ns == in.ns) in.handle = opened.handle;
    }
  }
  const auto prompt = universe_.prompt(random_, in.ns);
  const auto count = random_.one_in(400)
                         ? random_.below(200U)
                         : std::min<std::uint32_t>(static_cast<std::uint32_t>(prompt.size()), 64);
  ask(
      [&](Builder m) {
        auto commit = m.initCommit();
        commit.setNs(in.handle);
        auto blocks = commit.initBlocks(count);
        for (unsigned i = 0; i < count; ++i)
          fill_block(blocks[i], prompt[i % prompt.size()], in.ns);
      },
      {wire::Message::COMMIT, in.ns, count});
}

void HostileSession::abandon() {
  tell([&](Builder m) {
    const std::uint32_t count = random_.one_in(300) ? random_.below(100'000U) : random_.below(6U);
    auto list = m.initAbandon(count);
    for (unsigned i = 0; i < count; ++i) {
      std::uint64_t slot = slot_to_name();
      if (!held_.empty() && !random_.one_in(10)) {
        std::swap(random_.pick(held_), held_.back());
        slot = held_.back().slot;
        held_.pop_back();
      }
      list.set(i, slot);
    }
  });
}

void HostileSession::let_go() {
  tell([](Builder m) { m.setLetGo(); });
}

std::optional<Key> HostileSession::pick_key() {
  const auto prompt = universe_.prompt(random_, pick_opened().ns);
  Key key = random_.pick(prompt).identity.key;
  if (random_.one_in(20)) key.bytes[random_.below(16U)] ^= std::byte{1};
  return random_.one_in(100) ? std::nullopt : std::optional(key);
}

void HostileSession::report() {
  tell([&](Builder m) {
    auto report = m.initReport();
    auto missed = report.initMissed(random_.odd(random_.below(3U), 200) % 3000);
    for (auto one : missed) {
      one.setNs(pick_opened().handle);
      one.setBlocks(random_.odd<std::uint64_t>(3, 20));
    }
    report.setHeaderFaults(random_.odd<std::uint64_t>(1));
    report.setProofFaults(random_.odd<std::uint64_t>(0));
    auto dropped = report.initDropped(random_.odd(4U, 80) % 4000);
    for (unsigned i = 0; i < dropped.size(); ++i) dropped.set(i, random_.odd<std::uint64_t>(2, 20));
    auto keys = report.initBadKeys(random_.one_in(100) ? random_.below(400U) : random_.below(3U));
    for (unsigned i = 0; i < keys.size(); ++i) {
      if (const auto key = pick_key()) keys.set(i, data_of(*key));
    }
    auto loads = report.initLoads(random_.odd(3U, 80) % 4000);
    for (auto timing : loads) {
      timing.initBuckets(random_.odd(20U, 80) % 200);
      timing.setSumUs(random_.odd<std::uint64_t>(100, 20));
    }
    report.initWriteBacks().setBytes(random_.odd<std::uint64_t>(100, 20));
  });
}

void HostileSession::flush() {
  ask([](Builder m) { m.setFlush(); }, {wire::Message::FLUSH});
}

void HostileSession::status() {
  ask([](Builder m) { m.setStatus(); }, {wire::Message::STATUS});
}

void HostileSession::wrong_way() {
  ask([&](Builder m) {
    switch (random_.below(6U)) {
      case 0:
        return m.initWelcome().setVersion(1);
      case 1:
        return m.setOpened(random_.below(4U));
      case 2:
        return m.initExtent().setId(random_.below(16U));
      case 3:
        return m.setExtentGone(random_.below(16U));
      case 4:
        return m.setNamespaceClosed(0);
      default:
        return m.initError().setMessage("no");
    }
  });
}

void HostileSession::hollow_list() {
  if (!connection_) return;
  capnp::MallocMessageBuilder message;
  Builder root = message.initRoot<wire::Message>();
  // Each has a list for its first pointer.
  switch (random_.below(4U)) {
    case 0:
      root.initReleasePartly(1);
      break;
    case 1:
      root.initRelease(1);
      break;
    case 2:
      root.initAbandon(1);
      break;
    default:
      root.initSessionsReply(1);
  }
  const auto words = capnp::messageToFlatArray(message);
  std::vector<std::uint64_t> copy(words.size());
  std::memcpy(copy.data(), words.begin(), words.size() * sizeof(std::uint64_t));
  // [segments][root][data][pointers]: the list's pointer, then where it points.
  const std::size_t pointer = 2 + (copy[1] >> 32 & 0xFFFF);
  const std::uint64_t count = random_.one_in(2) ? (1U << 29) - 1 : random_.below(1U << 22);
  if (pointer + 1 < copy.size()) {
    const bool structs = (copy[pointer] >> 32 & 7) == 7;
    copy[pointer] = structs ? (copy[pointer] & 0x7FFFFFFFFULL) : (count << 35 | 1);
    if (structs) copy[pointer + 1] = (count & 0x3FFFFFFF) << 2;
  }
  Bytes frame(sizeof(wire::FrameHeader) + copy.size() * sizeof(std::uint64_t));
  const wire::FrameHeader header{
      wire::kFrameMagic, static_cast<std::uint32_t>(copy.size() * sizeof(std::uint64_t)), 0, 0};
  std::memcpy(frame.data(), &header, sizeof header);
  std::memcpy(frame.data() + sizeof header, copy.data(), copy.size() * sizeof(std::uint64_t));
  tally_.sent_message(static_cast<std::uint16_t>(root.which()));
  send(frame);
}

}  // namespace kvtier::protocol
