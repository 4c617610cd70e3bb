#include "tests/protocol/hostile/sender.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace kvtier::protocol {

Bytes framed(std::span<const std::byte> message) {
  const wire::FrameHeader header{wire::kFrameMagic, static_cast<std::uint32_t>(message.size()), 0,
                                 0};
  Bytes frame(sizeof header + message.size());
  std::memcpy(frame.data(), &header, sizeof header);
  std::memcpy(frame.data() + sizeof header, message.data(), message.size());
  return frame;
}

bool Sender::connect(const std::string& socket) {
  tally_.did(Act::connect);
  connection_ = RawConnection::open(socket);
  return connection_.has_value();
}

void Sender::half_close() {
  if (connection_) connection_->finish_sending();
}

void Sender::send(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  // It takes nothing of what has come meanwhile, so the daemon may stop to read, but for so long
  // only.
  if (connection_ && !connection_->send(bytes, descriptors, 100)) close();
}

bool Sender::garbles(Manner manner) noexcept {
  return manner == Manner::mutated || manner == Manner::broken_header ||
         manner == Manner::truncated;
}

void Sender::send_as(Manner manner, Bytes frame) {
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
      return send_truncated(std::move(frame));
    case Manner::trickled:
      return send_trickled(frame);
    case Manner::descriptors:
      return send_with_descriptors(frame);
  }
}

// It ends there, ends for one direction, or does not go on.
void Sender::send_truncated(Bytes frame) {
  tally_.did(Act::truncated);
  frame.resize(random_.below(frame.size()));
  send(frame);
  if (random_.one_in(3)) return half_close();
  if (random_.one_in(2)) close();
}

void Sender::send_trickled(const Bytes& frame) {
  tally_.did(Act::trickled);
  for (std::size_t at = 0; at < frame.size() && connection_; ++at) {
    // A long one goes on in large pieces.
    const std::size_t piece = at < 64 ? 1 : frame.size() - at;
    send(std::span(frame).subspan(at, piece));
    at += piece - 1;
  }
}

void Sender::send_with_descriptors(const Bytes& frame) {
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

}  // namespace kvtier::protocol
