#include "core/wire/frame.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <random>

namespace kvtier::wire {
namespace {

struct Sockets {
  Sockets() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    ours.reset(fds[0]);
    theirs.reset(fds[1]);
  }
  UniqueFd ours, theirs;
};

struct Received {
  Result<void> result;
  std::vector<Frame> frames;
};

Received receive(FrameReader& reader, const Sockets& sockets) {
  Received r;
  r.result = reader.receive(sockets.theirs.get(), r.frames);
  return r;
}

std::vector<std::byte> bytes_of(const FrameHeader& header, std::size_t body) {
  std::vector<std::byte> bytes(sizeof header + body);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

Received receive_bytes(std::span<const std::byte> bytes) {
  Sockets sockets;
  FrameReader reader;
  EXPECT_EQ(::send(sockets.ours.get(), bytes.data(), bytes.size(), MSG_DONTWAIT),
            static_cast<ssize_t>(bytes.size()));
  return receive(reader, sockets);
}

void push_hello(FrameWriter& writer, UniqueFd descriptor = {}) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<Message>();
  root.setId(5);
  root.initHello().setName("someone");
  ASSERT_TRUE(writer.push(message, std::move(descriptor)));
}

std::vector<std::byte> hello_bytes() {
  Sockets sockets;
  FrameWriter writer(1 << 20);
  push_hello(writer);
  EXPECT_TRUE(writer.send(sockets.ours.get()));
  std::vector<std::byte> bytes(4096);
  const auto got = ::recv(sockets.theirs.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

TEST(Frames, ArriveAsTheyWereSent) {
  Sockets sockets;
  FrameWriter writer(1 << 20);
  auto memory = make_memfd("passed", 4096).value();
  push_hello(writer);
  push_hello(writer, std::move(memory));
  ASSERT_TRUE(writer.send(sockets.ours.get()));
  FrameReader reader;
  auto received = receive(reader, sockets);
  ASSERT_TRUE(received.result);
  ASSERT_EQ(received.frames.size(), 2U);
  EXPECT_FALSE(received.frames[0].take_descriptor());
  EXPECT_TRUE(received.frames[1].take_descriptor());
  std::string name;
  ASSERT_TRUE(
      received.frames[1].read([&](Message::Reader m) { name = m.getHello().getName().cStr(); }));
  EXPECT_EQ(name, "someone");
}

TEST(Frames, AreReadHoweverTheyAreCut) {
  const auto bytes = hello_bytes();
  Sockets sockets;
  FrameReader reader;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(::send(sockets.ours.get(), &bytes[i], 1, 0), 1);
    auto received = receive(reader, sockets);
    ASSERT_TRUE(received.result);
    EXPECT_EQ(received.frames.size(), i + 1 == bytes.size() ? 1U : 0U);
  }
}

TEST(Frames, MalformedHeadersAreRefused) {
  const FrameHeader good{kFrameMagic, 8, 0, 0};
  auto header = good;
  header.magic ^= 1;
  EXPECT_EQ(receive_bytes(bytes_of(header, 8)).result.error().code, Errc::malformed);
  for (const std::uint32_t length :
       {0U, 1U, 7U, 9U, kFrameBytesMax + 8, 0xFFFFFFF8U, 0xFFFFFFFFU}) {
    header = good;
    header.length = length;
    EXPECT_EQ(receive_bytes(bytes_of(header, 0)).result.error().code, Errc::malformed) << length;
  }
  header = good;
  header.descriptors = kDescriptorsMax + 1;
  EXPECT_EQ(receive_bytes(bytes_of(header, 8)).result.error().code, Errc::malformed);
  header = good;
  header.zero = 1;
  EXPECT_EQ(receive_bytes(bytes_of(header, 8)).result.error().code, Errc::malformed);
}

TEST(Frames, AMissingDescriptorIsRefused) {
  FrameHeader header{kFrameMagic, 8, 1, 0};
  EXPECT_EQ(receive_bytes(bytes_of(header, 8)).result.error().code, Errc::malformed);
}

TEST(Frames, TooManyDescriptorsAreRefused) {
  Sockets sockets;
  for (int i = 0; i < 2; ++i) {
    FrameWriter writer(1 << 20);
    push_hello(writer, make_memfd("extra", 4096).value());
    ASSERT_TRUE(writer.send(sockets.ours.get()));
  }
  // Says it brings none, and brings one.
  auto bytes = bytes_of({kFrameMagic, 8, 0, 0}, 8);
  auto memory = make_memfd("smuggled", 4096).value();
  iovec from{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &from;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = memory.get();
  std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  ASSERT_GT(::sendmsg(sockets.ours.get(), &message, 0), 0);
  FrameReader reader;
  const auto received = receive(reader, sockets);
  ASSERT_FALSE(received.result);
  EXPECT_EQ(received.result.error().code, Errc::malformed);
  EXPECT_EQ(received.frames.size(), 2U);
}

TEST(Frames, AClosedPeerIsUnavailable) {
  Sockets sockets;
  sockets.ours.reset();
  FrameReader reader;
  EXPECT_EQ(receive(reader, sockets).result.error().code, Errc::unavailable);
}

TEST(Frames, APeerThatDoesNotReadIsNoticed) {
  FrameWriter writer(200);
  push_hello(writer);
  capnp::MallocMessageBuilder message;
  message.initRoot<Message>().initHello().setName(std::string(400, 'x'));
  EXPECT_EQ(writer.push(message).error().code, Errc::no_space);
}

// A list of structs of no size takes a pointer and a tag, however many they are.
TEST(Frames, ElementsThatTakeNoRoomAreNotReadOnAndOn) {
  const auto elements_read = [](std::uint64_t elements) {
    capnp::MallocMessageBuilder message;
    message.initRoot<Message>().initSessionsReply(1);
    const auto flat = capnp::messageToFlatArray(message);
    std::vector<capnp::word> words(flat.size());
    std::memcpy(static_cast<void*>(words.data()), flat.begin(), flat.asBytes().size());
    std::size_t patched = 0;
    for (std::size_t at = 1; at + 1 < words.size() && patched == 0; ++at) {
      std::uint64_t pointer;
      std::memcpy(&pointer, &words[at], sizeof pointer);
      if ((pointer & 3) != 1 || (pointer >> 32 & 7) != 7) continue;
      patched = at + 1 + (static_cast<std::uint32_t>(pointer) >> 2);
      pointer &= 0x7'FFFF'FFFFULL;
      const std::uint64_t tag = elements << 2;
      std::memcpy(static_cast<void*>(&words[at]), &pointer, sizeof pointer);
      std::memcpy(static_cast<void*>(&words[patched]), &tag, sizeof tag);
    }
    EXPECT_NE(patched, 0U);
    std::uint64_t read = 0;
    const auto good = Frame(std::move(words), {}).read([&](Message::Reader m) {
      for ([[maybe_unused]] const auto session : m.getSessionsReply()) ++read;
    });
    return good ? read : 0;
  };
  EXPECT_EQ(elements_read(100), 100U);
  EXPECT_EQ(elements_read(1 << 20), 0U);
  EXPECT_EQ(elements_read((1 << 29) - 1), 0U);
}

TEST(Frames, RandomBytesNeverCrashTheReader) {
  std::mt19937_64 random(20240607);
  const auto good = hello_bytes();
  for (int i = 0; i < 10'000; ++i) {
    auto bytes = good;
    // Half of them keep a good header, so that the message behind it is reached.
    const std::size_t from = i % 2 == 0 ? sizeof(FrameHeader) : 0;
    const std::size_t changes = 1 + random() % 8;
    for (std::size_t c = 0; c < changes; ++c) {
      bytes[from + random() % (bytes.size() - from)] = static_cast<std::byte>(random());
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size() + 1);
    auto received = receive_bytes(bytes);
    for (const Frame& frame : received.frames) {
      [[maybe_unused]] const auto read = frame.read([](Message::Reader m) {
        // What a peer would look at.
        if (m.isHello()) [[maybe_unused]]
          const auto size = m.getHello().getName().size();
        if (m.isLease()) [[maybe_unused]]
          const auto size = m.getLease().getKeys().size();
        if (m.isCommit()) {
          for (const auto block : m.getCommit().getBlocks()) {
            [[maybe_unused]] const auto size = block.getProof().size() + block.getSlots().size();
          }
        }
        if (m.isRelease()) {
          for (const auto lease : m.getRelease()) [[maybe_unused]] const auto copy = lease;
        }
      });
    }
  }
}

}  // namespace
}  // namespace kvtier::wire
