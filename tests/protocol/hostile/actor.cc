#include "tests/protocol/hostile/actor.h"

#include <poll.h>

#include <array>

#include "tests/protocol/hostile/messages.h"

namespace kvtier::protocol {
namespace {

using Say = void (*)(HostileSession&);

constexpr std::array kKinds{
    Who{"writer", kWriter},
    Who{"writer of another user", kOtherWriter},
    Who{"writer apart", kApart, kApartPool},
    Who{"reader", kReader, kSharedPool, true},
    Who{"administrator", kRoot, kSharedPool, false, true},
};
constexpr std::size_t kSessions = 3;

}  // namespace

std::span<const Who> kinds_of_actors() {
  return kKinds;
}

Actor::Actor(const Who& who, const std::string& socket, const Universe& universe, Tally& tally,
             std::uint64_t seed, std::uint64_t stream)
    : who_(who), socket_(socket), universe_(universe), tally_(tally), random_(seed, stream) {
  for (std::size_t i = 0; i < kSessions; ++i)
    sessions_.emplace_back(who_, universe_, tally_, random_);
}

void Actor::run() {
  while (!tally_.stop && !dead_) turn(random_.pick(sessions_));
}

// Mostly what a client does that means well, and as much of that as leads somewhere.
void Actor::turn(HostileSession& session) {
  if (!session.connected() && !begin(session)) return;
  const std::uint32_t of = random_.below(1000U);
  if (of < 60) session.set_manner(static_cast<Manner>(1 + random_.below(5U)));
  if (of >= 60 && of < 180) {
    misuse_memory(session);
  } else if (of >= 180 && of < 200) {
    misuse_connection(session);
  } else if ((of >= 200 && of < 206) || (who_.administrator && of < 500)) {
    administer(session);
  } else {
    say(session);
  }
  session.set_manner(Manner::whole);
  // Some answers are waited for, some are taken as they have come, and some lie for a while.
  if (random_.one_in(2)) {
    constexpr int kPatienceMs = 20;
    session.take(session.waits() ? kPatienceMs : 0);
  } else if (random_.one_in(2)) {
    session.take(0);
  }
}

bool Actor::begin(HostileSession& session) {
  if (!session.connect(socket_)) {
    idle();
    return false;
  }
  if (random_.one_in(50)) return true;  // it says something else first
  say::hello(session);
  constexpr int kPatienceMs = 200;
  session.take(kPatienceMs);
  for (std::uint32_t i = random_.below(5U); i > 0 && session.connected(); --i)
    say::open_namespace(session);
  if (random_.one_in(8)) say::let_go(session);
  session.take(kPatienceMs);
  return session.connected();
}

void Actor::say(HostileSession& session) {
  struct Weighted {
    Say say;
    std::uint32_t weight;
  };
  static constexpr Weighted kSay[]{
      {say::lease, 220},         {say::release, 150},  {say::reserve, 150},
      {say::commit, 220},        {say::abandon, 60},   {say::release_partly, 40},
      {say::open_namespace, 20}, {say::report, 40},    {say::let_go, 8},
      {say::status, 10},         {say::list, 5},       {say::flush, 4},
      {say::hint, 120},          {say::look_up, 60},   {say::hello, 1},
      {say::wrong_way, 1},       {say::hollow_list, 1}};
  std::uint32_t total = 0;
  for (const auto& one : kSay) total += one.weight;
  std::uint32_t at = random_.below(total);
  for (const auto& one : kSay) {
    if (at >= one.weight) {
      at -= one.weight;
      continue;
    }
    const bool writes =
        one.say == say::reserve || one.say == say::commit || one.say == say::abandon;
    // One that may not write tries it, and mostly reads.
    if (who_.reader && writes && !random_.one_in(20)) return say::lease(session);
    return one.say(session);
  }
}

void Actor::administer(HostileSession& session) {
  static constexpr Say kAdmin[]{
      say::list,     say::status,    say::drop,  say::inspect, say::inspect, say::pin, say::unpin,
      say::sessions, say::set_quota, say::scrub, say::inspect, say::drop,    say::push};
  if (random_.one_in(200)) return say::invalidate(session);
  random_.pick(kAdmin)(session);
}

void Actor::misuse_memory(HostileSession& session) {
  SeenMemory& memory = session.has().memory;
  const auto own = session.has().own_slots();
  switch (random_.below(12U)) {
    case 0:
      tally_.did(Act::punch);
      return memory.punch(random_);
    case 1:
      tally_.did(Act::overreach);
      return memory.overreach(random_);
    case 2:
      tally_.did(Act::advise);
      return memory.advise(random_);
    case 3:
      tally_.did(Act::read_directory);
      return memory.read_directory(random_);
    case 4:
      if (!random_.one_in(4)) return;
      tally_.did(Act::seal);
      return memory.seal(random_);
    case 5:
      tally_.did(Act::resize);
      return memory.resize(random_);
    case 6:
    case 7: {
      // While the daemon checks what is committed, or while what was leased comes from disk.
      tally_.did(Act::scribble_late);
      const bool commits = !own.empty() && random_.one_in(2);
      constexpr int kPatienceMs = 2;
      memory.scribble_while(random_, commits ? own : std::vector<std::uint64_t>{}, [&] {
        (commits ? say::commit : say::lease)(session);
        session.take(kPatienceMs);
      });
      return;
    }
    default:
      tally_.did(Act::scribble);
      return memory.scribble(random_, own);
  }
}

void Actor::misuse_connection(HostileSession& session) {
  switch (random_.below(16U)) {
    case 0:
      if (!random_.one_in(3)) return;
      return crowd();
    case 1:
      return storm(session);
    case 2:
      if (!random_.one_in(20)) return;
      tally_.did(Act::die);
      dead_ = true;
      return;
    case 3:
    case 4:
      return say::flood(session);
    case 5:
      tally_.did(Act::half_close);
      return session.half_close();
    case 6:
      return idle();
    default:
      tally_.did(Act::disconnect);
      return session.leave();
  }
}

// Past what one user may have.
void Actor::crowd() {
  std::vector<RawConnection> crowd;
  for (std::uint32_t i = 8 + random_.below(100U); i > 0; --i) {
    if (auto one = RawConnection::open(socket_)) crowd.push_back(std::move(*one));
    tally_.did(Act::crowd);
  }
  if (random_.one_in(3)) idle();
}

void Actor::storm(HostileSession& session) {
  for (std::uint32_t i = 2 + random_.below(20U); i > 0; --i) {
    session.leave();
    tally_.did(Act::storm);
    if (!session.connect(socket_)) return;
    say::hello(session);
    if (random_.one_in(2)) say::reserve(session);
    if (random_.one_in(2)) session.take(1);
  }
}

void Actor::idle() {
  tally_.did(Act::idle);
  ::poll(nullptr, 0, static_cast<int>(1 + random_.below(random_.one_in(40) ? 300U : 5U)));
}

}  // namespace kvtier::protocol
