// What a hostile session asks as an administrator would, who it may be.
#include <array>
#include <cstring>

#include "tests/protocol/hostile/hostile_session.h"

namespace kvtier::protocol {
namespace {

capnp::Data::Reader data_of(const auto& value) {
  return {reinterpret_cast<const kj::byte*>(&value), sizeof value};
}

}  // namespace

void HostileSession::fill_filter(wire::NamespaceFilter::Builder filter) {
  std::array<kj::byte, 64> id{};
  const NamespaceId& known = random_.pick(universe_.namespaces()).id;
  std::memcpy(id.data(), &known, sizeof known);
  constexpr const char* kModels[]{"m", "n", "none", "m@1"};
  switch (random_.below(4U)) {
    case 0:
      break;
    case 1:
      filter.setId({id.data(), random_.odd<std::size_t>(16, 60) % id.size()});
      break;
    default:
      filter.setModel(random_.pick(kModels));
      filter.setRevisionRule(static_cast<std::uint8_t>(random_.odd(random_.below(3U), 60)));
      filter.setRevision(random_.one_in(2) ? "1" : "2");
  }
}

void HostileSession::fill_selection(wire::Selection::Builder selection) {
  fill_filter(selection.initNamespaces());
  if (random_.one_in(3)) return;
  if (const auto key = pick_key()) selection.setKey(data_of(*key));
  selection.setAround(static_cast<std::uint8_t>(random_.odd(random_.below(3U), 60)));
}

void HostileSession::list() {
  ask([&](Builder m) {
    auto list = m.initList();
    if (random_.one_in(3)) fill_filter(list.initNamespaces());
    list.setBlocksMax(random_.odd(100U, 10));
    list.setNamespacesMax(random_.odd(20U, 10));
    list.setTiers(static_cast<std::uint8_t>(random_.odd(0U, 3)));
    list.setFromBlock(random_.odd(0U, 3));
    list.setFromNamespace(random_.odd(0U, 3));
  });
}

// All of everything seldom: then there is nothing left to do wrong with.
void HostileSession::drop() {
  ask([&](Builder m) {
    auto drop = m.initDrop();
    auto selection = drop.initSelection();
    const auto key = pick_key();
    if (key && !random_.one_in(50)) {
      selection.setKey(data_of(*key));
      selection.setAround(static_cast<std::uint8_t>(random_.odd(random_.below(3U), 60)));
    } else {
      fill_selection(selection);
    }
    drop.setTiers(static_cast<std::uint8_t>(random_.odd(0U, 2)));
    drop.setForce(random_.one_in(3));
  });
}

void HostileSession::scrub() {
  ask([&](Builder m) { m.initScrub().setStart(random_.one_in(10)); });
}

void HostileSession::set_quota() {
  ask([&](Builder m) {
    auto quota = m.initSetQuota();
    constexpr const char* kTenants[]{"small", "small", "apart", "default", "none"};
    const auto name = random_.pick(kTenants);
    quota.setTenant(name);
    quota.setTier(static_cast<std::uint8_t>(random_.odd(random_.below(3U), 60)));
    const std::uint64_t mib = 1ULL << (20 + random_.below(6U));
    quota.setQuotaBytes(random_.one_in(3) ? ~0ULL : random_.odd(mib, 20));
    quota.setGuaranteedBytes(random_.one_in(10) ? random_.odd(mib / 4, 3) : 0);
  });
}

void HostileSession::inspect() {
  ask([&](Builder m) {
    auto inspect = m.initInspect();
    if (const auto key = pick_key()) inspect.setKey(data_of(*key));
    inspect.setVerify(random_.one_in(2));
  });
}

void HostileSession::pin() {
  ask([&](Builder m) {
    auto pin = m.initPin();
    fill_selection(pin.initSelection());
    pin.setTiers(static_cast<std::uint8_t>(random_.odd(0U, 2)));
    pin.setSeconds(random_.odd(1 + random_.below(3U), 30));
  });
}

void HostileSession::unpin() {
  ask([&](Builder m) {
    auto unpin = m.initUnpin();
    fill_selection(unpin.initSelection());
    unpin.setTiers(static_cast<std::uint8_t>(random_.odd(0U, 2)));
  });
}

void HostileSession::invalidate() {
  ask([&](Builder m) { fill_filter(m.initInvalidate()); });
}

void HostileSession::sessions() {
  ask([](Builder m) { m.setSessions(); });
}

}  // namespace kvtier::protocol
