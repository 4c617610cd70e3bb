#include "tests/protocol/hostile/answers.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace kvtier::protocol {

void Answers::expect(std::uint64_t id, const Asked& asked) {
  constexpr std::size_t kAskedMax = 4096;
  if (asked_.size() < kAskedMax) asked_[id] = asked;
}

void Answers::take(wire::Frame& frame) {
  const auto read = frame.read([&](Reader message) { take_message(message, frame); });
  if (!read) tally_.failures.add("the daemon sent what is no message: " + read.error().message);
}

void Answers::take_message(Reader message, wire::Frame& frame) {
  const auto kind = static_cast<std::size_t>(message.which());
  ++tally_.answered[std::min(kind, Tally::kMessages - 1)];
  if (message.isError()) {
    const std::uint16_t code = message.getError().getCode();
    if (code == 0 || code >= Tally::kCodes)
      return tally_.failures.add("the daemon sent an error of no kind");
    ++tally_.refused[code];
  }
  if (message.isWelcome()) take_welcome(message, frame);
  if (message.getId() == 0) return take_event(message, frame);
  const auto at = asked_.find(message.getId());
  if (at == asked_.end()) return;
  const Asked asked = at->second;
  asked_.erase(at);
  take_answer(message, asked);
}

void Answers::take_event(Reader message, wire::Frame& frame) {
  if (message.isExtent()) {
    const auto extent = message.getExtent();
    has_.memory.add(extent.getId(), frame.take_descriptor(), extent.getBytes(),
                    extent.getSlotBytes(), has_.read_only, has_.certain ? who_.pool : kNoPool);
  } else if (message.isExtentGone()) {
    has_.memory.remove(message.getExtentGone());
  } else if (message.isReady()) {
    const auto slots = message.getReady().getSlots();
    if (slots.size() != message.getReady().getBlocks().size())
      tally_.failures.add("a ready event has not as many slots as blocks");
    tally_.blocks_read += slots.size();
    for (const std::uint64_t slot : slots) named(slot, "ready");
  }
}

void Answers::take_answer(Reader message, const Asked& asked) {
  if (message.isOpened() && asked.what == wire::Message::OPEN_NAMESPACE) {
    const uid_t only = universe_.namespaces()[asked.ns].only;
    if (has_.certain && only != kRoot && only != who_.user && ::geteuid() == who_.user)
      tally_.failures.add("a client opened a namespace of a tenant that is not its own");
    has_.opened_namespace({message.getOpened(), asked.ns});
  } else if (message.isReserved() && asked.what == wire::Message::RESERVE) {
    if (has_.read_only) tally_.failures.add("a read-only session was given slots to fill");
    take_slots(message.getReserved().getSlots(), asked);
  } else if (message.isLeased() && asked.what == wire::Message::LEASE) {
    take_lease(message.getLeased(), asked);
  } else if (message.isCommitted() && asked.what == wire::Message::COMMIT) {
    tally_.blocks_taken += message.getCommitted();
    if (has_.certain && message.getCommitted() > asked.count)
      tally_.failures.add("more blocks were taken than committed");
  }
}

void Answers::take_lease(wire::Leased::Reader leased, const Asked& asked) {
  if ((has_.certain && leased.getSlots().size() > asked.count) ||
      leased.getSlots().size() != leased.getTiers().size()) {
    tally_.failures.add("a lease is of more blocks than were asked for");
  }
  for (const std::uint64_t slot : leased.getSlots()) named(slot, "leased");
  tally_.blocks_leased += leased.getSlots().size();
  has_.given_lease(leased.getLease());
}

void Answers::take_welcome(Reader message, wire::Frame& frame) {
  const auto welcome = message.getWelcome();
  has_.read_only = welcome.getReadOnly();
  if (who_.reader && !has_.read_only && ::geteuid() == who_.user)
    tally_.failures.add("a user who may only read has a session that may write");
  const auto lineage = welcome.getLineage();
  has_.lineage.resize(lineage.size());
  if (lineage.size() != 0) std::memcpy(has_.lineage.data(), lineage.begin(), lineage.size());
  has_.memory.set_directory(frame.take_descriptor(), welcome.getDirectoryBytes());
}

void Answers::take_slots(capnp::List<std::uint64_t>::Reader slots, const Asked& asked) {
  if (has_.certain && slots.size() > asked.count)
    tally_.failures.add("more slots were given than asked for");
  tally_.slots_given += slots.size();
  for (const std::uint64_t slot : slots) {
    named(slot, "reserved");
    has_.given_slot({slot, asked.ns, asked.tier});
  }
}

void Answers::named(std::uint64_t slot, const char* where) {
  if (slot == 0 || !has_.certain || has_.memory.knows(slot)) return;
  tally_.failures.add(std::string("a slot was named (") + where +
                      ") of an extent that the session was not told of");
}

}  // namespace kvtier::protocol
