// What a hostile session makes of the daemon's messages, and what none of them may say.
#include <algorithm>
#include <cstring>

#include "tests/protocol/hostile/hostile_session.h"

namespace kvtier::protocol {

void HostileSession::take(int wait_ms) {
  if (!connection_) return;
  std::vector<wire::Frame> frames;
  const auto came = connection_->receive(frames, wait_ms);
  // What is not answered for so long is not waited for any more.
  constexpr std::uint32_t kSilentMax = 3;
  silent_ = came == RawConnection::Came::nothing && wait_ms > 0 ? silent_ + 1 : 0;
  if (silent_ > kSilentMax) asked_.clear();
  for (wire::Frame& frame : frames) {
    const auto read = frame.read([&](Reader message) { take_message(message, frame); });
    if (!read) tally_.failures.add("the daemon sent what is no message: " + read.error().message);
    if (!connection_) return;
  }
  if (came != RawConnection::Came::end) return;
  ++tally_.ended;
  leave();
}

void HostileSession::take_message(Reader message, wire::Frame& frame) {
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

void HostileSession::take_event(Reader message, wire::Frame& frame) {
  if (message.isExtent()) {
    const auto extent = message.getExtent();
    memory_.add(extent.getId(), frame.take_descriptor(), extent.getBytes(), extent.getSlotBytes(),
                read_only_, certain_ ? who_.pool : kNoPool);
  } else if (message.isExtentGone()) {
    memory_.remove(message.getExtentGone());
  } else if (message.isReady()) {
    const auto slots = message.getReady().getSlots();
    if (slots.size() != message.getReady().getBlocks().size())
      tally_.failures.add("a ready event has not as many slots as blocks");
    tally_.blocks_read += slots.size();
    for (const std::uint64_t slot : slots) named(slot, "ready");
  }
}

void HostileSession::take_answer(Reader message, const Asked& asked) {
  if (message.isOpened() && asked.what == wire::Message::OPEN_NAMESPACE) {
    const uid_t only = universe_.namespaces()[asked.ns].only;
    if (certain_ && only != kRoot && only != who_.user && ::geteuid() == who_.user)
      tally_.failures.add("a client opened a namespace of a tenant that is not its own");
    opened_.push_back({message.getOpened(), asked.ns});
  } else if (message.isReserved() && asked.what == wire::Message::RESERVE) {
    if (read_only_) tally_.failures.add("a read-only session was given slots to fill");
    take_slots(message.getReserved().getSlots(), asked);
  } else if (message.isLeased() && asked.what == wire::Message::LEASE) {
    const auto leased = message.getLeased();
    if ((certain_ && leased.getSlots().size() > asked.count) ||
        leased.getSlots().size() != leased.getTiers().size()) {
      tally_.failures.add("a lease is of more blocks than were asked for");
    }
    for (const std::uint64_t slot : leased.getSlots()) named(slot, "leased");
    tally_.blocks_leased += leased.getSlots().size();
    leases_.push_back(leased.getLease());
    tally_.leases[tally_.any_lease++ % tally_.leases.size()] = leased.getLease();
    constexpr std::size_t kLeasesMax = 512;
    if (leases_.size() > kLeasesMax) leases_.erase(leases_.begin());
  } else if (message.isCommitted() && asked.what == wire::Message::COMMIT) {
    tally_.blocks_taken += message.getCommitted();
    if (certain_ && message.getCommitted() > asked.count)
      tally_.failures.add("more blocks were taken than committed");
  }
}

void HostileSession::take_welcome(Reader message, wire::Frame& frame) {
  const auto welcome = message.getWelcome();
  greeted_ = true;
  read_only_ = welcome.getReadOnly();
  if (who_.reader && !read_only_ && ::geteuid() == who_.user)
    tally_.failures.add("a user who may only read has a session that may write");
  const auto lineage = welcome.getLineage();
  lineage_.resize(lineage.size());
  if (lineage.size() != 0) std::memcpy(lineage_.data(), lineage.begin(), lineage.size());
  memory_.set_directory(frame.take_descriptor(), welcome.getDirectoryBytes());
}

void HostileSession::take_slots(capnp::List<std::uint64_t>::Reader slots, const Asked& asked) {
  if (certain_ && slots.size() > asked.count)
    tally_.failures.add("more slots were given than asked for");
  tally_.slots_given += slots.size();
  for (const std::uint64_t slot : slots) {
    named(slot, "reserved");
    held_.push_back({slot, asked.ns, asked.tier});
    tally_.slots[tally_.any_slot++ % tally_.slots.size()] = slot;
  }
}

void HostileSession::named(std::uint64_t slot, const char* where) {
  if (slot == 0 || !certain_ || memory_.knows(slot)) return;
  tally_.failures.add(std::string("a slot was named (") + where +
                      ") of an extent that the session was not told of");
}

}  // namespace kvtier::protocol
