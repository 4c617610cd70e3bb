// What a hostile session asks as an administrator would, who it may be.
#include <array>
#include <cstring>

#include "tests/protocol/hostile/messages.h"
#include "tests/protocol/hostile/wire_data.h"

namespace kvtier::protocol::say {

using Builder = HostileSession::Builder;

namespace {

void fill_filter(HostileSession& session, wire::NamespaceFilter::Builder filter) {
  Random& random = session.random();
  std::array<kj::byte, 64> id{};
  const NamespaceId& known = random.pick(session.universe().namespaces()).id;
  std::memcpy(id.data(), &known, sizeof known);
  constexpr const char* kModels[]{"m", "n", "none", "m@1"};
  switch (random.below(4U)) {
    case 0:
      break;
    case 1:
      filter.setId({id.data(), random.odd<std::size_t>(16, 60) % id.size()});
      break;
    default:
      filter.setModel(random.pick(kModels));
      filter.setRevisionRule(static_cast<std::uint8_t>(random.odd(random.below(3U), 60)));
      filter.setRevision(random.one_in(2) ? "1" : "2");
  }
}

void fill_selection(HostileSession& session, wire::Selection::Builder selection) {
  Random& random = session.random();
  fill_filter(session, selection.initNamespaces());
  if (random.one_in(3)) return;
  if (const auto key = session.has().pick_key()) selection.setKey(data_of(*key));
  selection.setAround(static_cast<std::uint8_t>(random.odd(random.below(3U), 60)));
}

}  // namespace

void list(HostileSession& session) {
  Random& random = session.random();
  session.ask([&](Builder m) {
    auto list = m.initList();
    if (random.one_in(3)) fill_filter(session, list.initNamespaces());
    list.setBlocksMax(random.odd(100U, 10));
    list.setNamespacesMax(random.odd(20U, 10));
    list.setTiers(static_cast<std::uint8_t>(random.odd(0U, 3)));
    list.setFromBlock(random.odd(0U, 3));
    list.setFromNamespace(random.odd(0U, 3));
  });
}

// All of everything seldom: then there is nothing left to do wrong with.
void drop(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  session.ask([&](Builder m) {
    auto drop = m.initDrop();
    auto selection = drop.initSelection();
    const auto key = has.pick_key();
    if (key && !random.one_in(50)) {
      selection.setKey(data_of(*key));
      selection.setAround(static_cast<std::uint8_t>(random.odd(random.below(3U), 60)));
    } else {
      fill_selection(session, selection);
    }
    drop.setTiers(static_cast<std::uint8_t>(random.odd(0U, 2)));
    drop.setForce(random.one_in(3));
  });
}

void scrub(HostileSession& session) {
  Random& random = session.random();
  session.ask([&](Builder m) { m.initScrub().setStart(random.one_in(10)); });
}

void set_quota(HostileSession& session) {
  Random& random = session.random();
  session.ask([&](Builder m) {
    auto quota = m.initSetQuota();
    constexpr const char* kTenants[]{"small", "small", "apart", "default", "none"};
    const auto name = random.pick(kTenants);
    quota.setTenant(name);
    quota.setTier(static_cast<std::uint8_t>(random.odd(random.below(3U), 60)));
    const std::uint64_t mib = 1ULL << (20 + random.below(6U));
    quota.setQuotaBytes(random.one_in(3) ? ~0ULL : random.odd(mib, 20));
    quota.setGuaranteedBytes(random.one_in(10) ? random.odd(mib / 4, 3) : 0);
  });
}

void inspect(HostileSession& session) {
  Random& random = session.random();
  Belongings& has = session.has();
  session.ask([&](Builder m) {
    auto inspect = m.initInspect();
    if (const auto key = has.pick_key()) inspect.setKey(data_of(*key));
    inspect.setVerify(random.one_in(2));
  });
}

void pin(HostileSession& session) {
  Random& random = session.random();
  session.ask([&](Builder m) {
    auto pin = m.initPin();
    fill_selection(session, pin.initSelection());
    pin.setTiers(static_cast<std::uint8_t>(random.odd(0U, 2)));
    pin.setSeconds(random.odd(1 + random.below(3U), 30));
  });
}

void unpin(HostileSession& session) {
  Random& random = session.random();
  session.ask([&](Builder m) {
    auto unpin = m.initUnpin();
    fill_selection(session, unpin.initSelection());
    unpin.setTiers(static_cast<std::uint8_t>(random.odd(0U, 2)));
  });
}

void push(HostileSession& session) {
  Random& random = session.random();
  session.ask([&](Builder m) {
    auto push = m.initPush();
    fill_selection(session, push.initSelection());
    push.setUsedWithinS(random.odd(0U, 2));
  });
}

void invalidate(HostileSession& session) {
  session.ask([&](Builder m) { fill_filter(session, m.initInvalidate()); });
}

void sessions(HostileSession& session) {
  session.ask([](Builder m) { m.setSessions(); });
}

}  // namespace kvtier::protocol::say
