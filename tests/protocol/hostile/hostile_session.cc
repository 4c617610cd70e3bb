// The connection of a hostile session, and how its messages go out.
#include "tests/protocol/hostile/hostile_session.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace kvtier::protocol {

HostileSession::HostileSession(const Who& who, const Universe& universe, Tally& tally,
                               Random& random)
    : who_(who),
      universe_(universe),
      tally_(tally),
      random_(random),
      memory_(tally, ::geteuid() == 0),
      client_(random.next()) {}

bool HostileSession::connect(const std::string& socket) {
  tally_.did(Act::connect);
  connection_ = RawConnection::open(socket);
  return connection_.has_value();
}

void HostileSession::leave() {
  connection_.reset();
  greeted_ = read_only_ = false;
  certain_ = true;
  asked_.clear();
  opened_.clear();
  held_.clear();
  leases_.clear();
  spent_.clear();
  if (!memory_.ids().empty()) earlier_extents_ = memory_.ids();
  memory_.clear();
  silent_ = 0;
}

void HostileSession::half_close() {
  if (connection_) connection_->finish_sending();
}

std::vector<std::uint64_t> HostileSession::own_slots() const {
  std::vector<std::uint64_t> slots;
  for (const Held& held : held_) slots.push_back(held.slot);
  return slots;
}

void HostileSession::ask(const Fill& fill, Asked asked) {
  constexpr std::size_t kAskedMax = 4096;
  if (random_.one_in(200)) {
    // An event's, one that waits for its answer already, or any. Nothing comes of the answer.
    const std::uint64_t odd[]{0, last_id_, ~0ULL, random_.next() | 1ULL << 63};
    const std::uint64_t id = random_.pick(odd);
    asked_.erase(id);
    return deliver(fill, id);
  }
  const std::uint64_t id = ++last_id_;
  if (asked_.size() < kAskedMax) asked_[id] = asked;
  deliver(fill, id);
}

void HostileSession::tell(const Fill& fill) {
  deliver(fill, random_.one_in(10) ? random_.next() : 0);
}

void HostileSession::deliver(const Fill& fill, std::uint64_t id) {
  if (!connection_) return;
  capnp::MallocMessageBuilder message;
  Builder root = message.initRoot<wire::Message>();
  root.setId(id);
  fill(root);
  const auto words = capnp::messageToFlatArray(message);
  const auto body = words.asBytes();
  const wire::FrameHeader header{wire::kFrameMagic, static_cast<std::uint32_t>(body.size()), 0, 0};
  Bytes frame(sizeof header + body.size());
  std::memcpy(frame.data(), &header, sizeof header);
  std::memcpy(frame.data() + sizeof header, body.begin(), body.size());
  tally_.sent_message(static_cast<std::uint16_t>(root.which()));
  deliver_as(std::exchange(manner_, Manner::whole), std::move(frame));
}

void HostileSession::deliver_as(Manner manner, Bytes frame) {
  // What comes after may be taken for the rest of it.
  if (manner == Manner::mutated || manner == Manner::broken_header || manner == Manner::truncated)
    certain_ = false;
  switch (manner) {
    case Manner::whole:
      return send(frame);
    case Manner::mutated:
      tally_.did(Act::mutated);
      mutate_words(frame, random_);
      return send(frame);
    case Manner::broken_header:
      tally_.did(Act::broken_header);
      break_header(frame, random_);
      return send(frame);
    case Manner::truncated:
      tally_.did(Act::truncated);
      frame.resize(random_.below(frame.size()));
      send(frame);
      // It ends there, ends for one direction, or does not go on.
      if (random_.one_in(3)) return half_close();
      if (random_.one_in(2)) return leave();
      return;
    case Manner::trickled:
      tally_.did(Act::trickled);
      for (std::size_t at = 0; at < frame.size() && connection_; ++at) {
        // A long one goes on in large pieces.
        const std::size_t piece = at < 64 ? 1 : frame.size() - at;
        send(std::span(frame).subspan(at, piece));
        at += piece - 1;
      }
      return;
    case Manner::descriptors:
      return send_with_descriptors(frame);
  }
}

void HostileSession::send(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  // It takes nothing of what has come meanwhile, so the daemon may stop to read, but for so long
  // only.
  if (connection_ && !connection_->send(bytes, descriptors, 100)) leave();
}

void HostileSession::send_with_descriptors(const Bytes& frame) {
  tally_.did(Act::descriptors);
  int pipe_ends[2] = {-1, -1}, pair[2] = {-1, -1};
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0 ||
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return send(frame);
  }
  std::vector<UniqueFd> kinds;
  for (const int fd :
       {pipe_ends[0], pipe_ends[1], pair[0], pair[1], ::open("/dev/null", O_RDONLY | O_CLOEXEC),
        ::eventfd(0, EFD_CLOEXEC), ::epoll_create1(EPOLL_CLOEXEC), ::dup(connection_->fd())}) {
    if (fd >= 0) kinds.emplace_back(fd);
  }
  std::vector<int> sent;
  const std::size_t count =
      random_.one_in(6) ? 253 : 1 + random_.below(random_.one_in(2) ? 1U : 8U);
  for (std::size_t i = 0; i < count; ++i) sent.push_back(random_.pick(kinds).get());
  if (random_.one_in(2)) return send(frame, sent);
  // With bytes in the middle of it.
  const std::size_t first = random_.below(frame.size());
  send(std::span(frame).first(first));
  send(std::span(frame).subspan(first), sent);
}

void HostileSession::flood() {
  tally_.did(Act::flood);
  static constexpr void (HostileSession::*kKinds[])(){
      &HostileSession::status,  &HostileSession::list,     &HostileSession::lease,
      &HostileSession::reserve, &HostileSession::sessions, &HostileSession::hello,
      &HostileSession::flush,   &HostileSession::inspect};
  const auto kind = random_.pick(kKinds);
  for (std::uint32_t i = 20 + random_.below(random_.one_in(6) ? 3000U : 300U); i > 0 && connection_;
       --i) {
    (this->*kind)();
  }
  // What takes more than one message to answer, when there may be no room for one.
  for (std::uint32_t i = random_.below(6U); i > 0 && connection_; --i) {
    reserve();
    lease();
  }
}

}  // namespace kvtier::protocol
