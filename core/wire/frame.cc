#include "core/wire/frame.h"

#include <kj/exception.h>
#include <sys/socket.h>

#include <cstring>

namespace kvtier::wire {
namespace {

// What a message can make its reader do is bounded by its own frame: one that points to the same
// bytes again and again, or has elements that take none (each counts for a word), is read no
// further. A list is counted each time that it is asked for, so some repetition is right.
capnp::ReaderOptions reader_options(std::size_t words) {
  constexpr std::size_t kRepeated = 16;
  constexpr std::size_t kAlways = 4096;
  capnp::ReaderOptions options;
  options.traversalLimitInWords = kAlways + kRepeated * words;
  options.nestingLimit = 16;
  return options;
}

Error malformed(const std::string& what) {
  return make_error(Errc::malformed, "frame: " + what);
}

}  // namespace

Result<void> Frame::read(const std::function<void(Message::Reader)>& use) const {
  const auto exception = kj::runCatchingExceptions([&] {
    capnp::FlatArrayMessageReader reader({words_.data(), words_.size()},
                                         reader_options(words_.size()));
    use(reader.getRoot<Message>());
  });
  KJ_IF_MAYBE (e, exception) {
    return malformed(e->getDescription().cStr());
  }
  return {};
}

UniqueFd Frame::take_descriptor() {
  if (descriptors_.empty()) return {};
  UniqueFd fd = std::move(descriptors_.back());
  descriptors_.pop_back();
  return fd;
}

Result<void> FrameReader::take_header() {
  std::memcpy(&current_, header_.data(), sizeof current_);
  header_.clear();
  if (current_.magic != kFrameMagic) return malformed("bad magic: the peer does not speak kvtier");
  if (current_.length == 0 || current_.length % sizeof(capnp::word) != 0 ||
      current_.length > kFrameBytesMax) {
    return malformed("length " + std::to_string(current_.length) +
                     " is not a multiple of 8 up to " + std::to_string(kFrameBytesMax));
  }
  if (current_.descriptors > kDescriptorsMax || current_.zero != 0) {
    return malformed("bad descriptor count");
  }
  words_ = std::vector<capnp::word>(current_.length / sizeof(capnp::word));
  filled_ = 0;
  in_body_ = true;
  return {};
}

ssize_t FrameReader::receive_some(int socket, iovec into, int& flags) {
  // As many as the kernel lets a message have: it would close those without room itself.
  constexpr std::size_t kOfOneMessageMax = 253;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kOfOneMessageMax)];
  msghdr message{};
  message.msg_iov = &into;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  flags = message.msg_flags;
  if (got <= 0) return got;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      descriptors_.emplace_back(fd);
    }
  }
  return got;
}

bool FrameReader::discard(int socket) {
  constexpr std::size_t kAtOnce = 64 << 10;
  constexpr int kTimesMax = 64;
  std::vector<std::byte> dropped(kAtOnce);
  for (int i = 0; i < kTimesMax; ++i) {
    int flags = 0;
    const ssize_t got = receive_some(socket, {dropped.data(), dropped.size()}, flags);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
  }
  return false;
}

Result<void> FrameReader::receive(int socket, std::vector<Frame>& frames, std::size_t frames_max) {
  const std::size_t enough = frames.size() + frames_max;
  while (frames.size() < enough) {
    // A descriptor comes with its frame's first byte; reading header and body apart keeps them
    // together.
    std::byte header_bytes[sizeof(FrameHeader)];
    iovec into;
    if (in_body_) {
      auto* body = reinterpret_cast<std::byte*>(words_.data());
      into = {body + filled_, current_.length - filled_};
    } else {
      into = {header_bytes, sizeof(FrameHeader) - header_.size()};
    }
    int flags = 0;
    const ssize_t got = receive_some(socket, into, flags);
    if (got == 0) return make_error(Errc::unavailable, "the peer closed the connection");
    if (got < 0) {
      if (errno == EAGAIN) return {};
      if (errno == EINTR) continue;
      return errno_error(errno == ECONNRESET ? Errc::unavailable : Errc::io, "recvmsg");
    }
    if (descriptors_.size() > kDescriptorsMax || (flags & MSG_CTRUNC) != 0) {
      return malformed("too many descriptors");
    }
    if (rule_ == Descriptors::refused && !descriptors_.empty())
      return malformed("a descriptor, and none is taken here");
    if (!in_body_) {
      header_.insert(header_.end(), header_bytes, header_bytes + got);
      if (header_.size() < sizeof(FrameHeader)) continue;
      if (auto good = take_header(); !good) return good.error();
      continue;
    }
    filled_ += static_cast<std::size_t>(got);
    if (filled_ < current_.length) continue;
    if (descriptors_.size() != current_.descriptors) return malformed("descriptors missing");
    frames.emplace_back(std::move(words_), std::move(descriptors_));
    words_.clear();
    descriptors_.clear();
    in_body_ = false;
  }
  return {};
}

Result<void> FrameWriter::push(capnp::MessageBuilder& message, UniqueFd descriptor) {
  const std::size_t words = capnp::computeSerializedSizeInWords(message);
  const std::size_t length = words * sizeof(capnp::word);
  if (length > kFrameBytesMax) {
    return make_error(Errc::invalid, "a message of " + std::to_string(length) +
                                         " bytes does not fit a frame of " +
                                         std::to_string(kFrameBytesMax));
  }
  Pending pending;
  pending.bytes.resize(sizeof(FrameHeader) + length);
  if (bytes_ + pending.bytes.size() > bytes_max_) {
    return make_error(Errc::no_space, "the peer does not read its messages");
  }
  const FrameHeader header{kFrameMagic, static_cast<std::uint32_t>(length), descriptor ? 1U : 0U,
                           0};
  std::memcpy(pending.bytes.data(), &header, sizeof header);
  const kj::Array<capnp::word> flat = capnp::messageToFlatArray(message);
  std::memcpy(pending.bytes.data() + sizeof header, flat.begin(), length);
  pending.descriptor = std::move(descriptor);
  bytes_ += pending.bytes.size();
  queue_.push_back(std::move(pending));
  return {};
}

Result<void> FrameWriter::send(int socket) {
  while (!queue_.empty()) {
    Pending& next = queue_.front();
    iovec from{next.bytes.data() + next.sent, next.bytes.size() - next.sent};
    msghdr message{};
    message.msg_iov = &from;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (next.descriptor) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = next.descriptor.get();
      std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EAGAIN) return {};
      if (errno == EINTR) continue;
      return errno_error(errno == EPIPE || errno == ECONNRESET ? Errc::unavailable : Errc::io,
                         "sendmsg");
    }
    next.descriptor.reset();
    next.sent += static_cast<std::size_t>(sent);
    sent_ += static_cast<std::uint64_t>(sent);
    if (next.sent < next.bytes.size()) continue;
    bytes_ -= next.bytes.size();
    queue_.pop_front();
  }
  return {};
}

}  // namespace kvtier::wire
