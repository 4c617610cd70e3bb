// Whatever a peer sends ends its own session and nothing else.
#include <sys/socket.h>

#include <random>

#include "kvtier/hint.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using Send = std::function<void(WireClient&)>;

class ServerFramesTest : public ServerTest {
 protected:
  // Each offence ends the offender's session and is counted; the bystander goes on.
  void expect_ended(const std::vector<std::pair<const char*, Send>>& offences, bool greeted) {
    WireClient bystander = client();
    std::uint64_t errors = bystander.status()->frame_errors;
    for (const auto& [what, send] : offences) {
      WireClient offender = greeted ? client() : WireClient(socket());
      send(offender);
      EXPECT_TRUE(offender.is_closed()) << what;
      const auto status = bystander.status();
      ASSERT_TRUE(status) << what;
      EXPECT_EQ(status->frame_errors, ++errors) << what;
    }
    EXPECT_TRUE(daemon.running());
  }
};

Send header(wire::FrameHeader header, std::size_t body = 0) {
  return [=](WireClient& c) { c.send_raw(frame_bytes(header, std::vector<std::byte>(body))); };
}
Send message(const std::function<void(Builder)>& fill) {
  return [=](WireClient& c) { c.send(fill, 77); };
}

TEST_F(ServerFramesTest, a_malformed_frame_ends_its_own_session_only) {
  constexpr std::uint32_t kMagic = wire::kFrameMagic;
  const int descriptor = STDERR_FILENO;
  expect_ended(
      {{"magic", header({kMagic + 1, 8, 0, 0}, 8)},
       {"no length", header({kMagic, 0, 0, 0})},
       {"odd length", header({kMagic, 12, 0, 0}, 12)},
       {"a length past the bound", header({kMagic, wire::kFrameBytesMax + 8, 0, 0})},
       {"the largest length", header({kMagic, 0xFFFFFFF8, 0, 0})},
       {"two descriptors", header({kMagic, 8, 2, 0}, 8)},
       {"a word that must be zero", header({kMagic, 8, 0, 1}, 8)},
       {"a descriptor that does not come", header({kMagic, 8, 1, 0}, 8)},
       {"a descriptor that was not announced",
        [&](WireClient& c) {
          c.send_raw(frame_bytes({kMagic, 8, 0, 0}, std::vector<std::byte>(8)), descriptor);
        }},
       {"one descriptor too many",
        [&](WireClient& c) {
          const auto bytes = frame_bytes({kMagic, 8, 1, 0}, std::vector<std::byte>(8));
          c.send_raw(std::span(bytes).first(16), descriptor);
          c.send_raw(std::span(bytes).subspan(16), descriptor);
        }},
       {"a body of ones",
        [](WireClient& c) {
          c.send_raw(frame_bytes({kMagic, 64, 0, 0}, std::vector<std::byte>(64, std::byte{0xFF})));
        }},
       {"an empty body", header({kMagic, 8, 0, 0}, 8)}},
      true);
}

TEST_F(ServerFramesTest, a_first_message_other_than_hello_ends_the_session) {
  expect_ended({{"status", message([](Builder m) { m.setStatus(); })},
                {"release", message([](Builder m) { m.initRelease(1); })},
                {"a daemon's message", message([](Builder m) { m.initWelcome(); })}},
               false);
}

// Every welcome carries a descriptor, so a peer that never read could have used up the daemon's.
TEST_F(ServerFramesTest, a_second_hello_ends_the_session) {
  expect_ended(
      {{"hello", message([](Builder m) { m.initHello().setVersion(wire::kProtocolVersion); })}},
      true);
}

TEST_F(ServerFramesTest, a_message_that_only_the_daemon_sends_ends_the_session) {
  expect_ended({{"error", message([](Builder m) { m.initError(); })},
                {"welcome", message([](Builder m) { m.initWelcome(); })},
                {"opened", message([](Builder m) { m.setOpened(1); })},
                {"leased", message([](Builder m) { m.initLeased(); })},
                {"reserved", message([](Builder m) { m.initReserved(); })},
                {"committed", message([](Builder m) { m.setCommitted(1); })},
                {"done", message([](Builder m) { m.setDone(); })},
                {"statusReply", message([](Builder m) { m.initStatusReply(); })},
                {"listReply", message([](Builder m) { m.initListReply(); })},
                {"dropped", message([](Builder m) { m.initDropped(); })},
                {"namespaceClosed", message([](Builder m) { m.setNamespaceClosed(1); })},
                {"extent", message([](Builder m) { m.initExtent(); })},
                {"extentGone", message([](Builder m) { m.setExtentGone(1); })},
                {"ready", message([](Builder m) { m.initReady(); })}},
               true);
}

TEST_F(ServerFramesTest, a_request_out_of_its_bounds_ends_the_session) {
  const auto opened = [this](const std::function<void(Builder)>& fill) {
    return [this, fill](WireClient& c) {
      c.open(ns);
      c.send(fill, 77);
    };
  };
  static const std::vector<kj::byte> bytes((wire::kLeaseBlocksMax + 1) * sizeof(Key));
  const auto data = [](std::size_t size) { return capnp::Data::Reader(bytes.data(), size); };
  const auto commit = [&](std::size_t key, std::size_t proof, unsigned slots) {
    return opened([=](Builder m) {
      auto block = m.initCommit().initBlocks(1)[0];
      block.setKey(data(key));
      block.setParent(data(16));
      block.setProof(data(proof));
      block.initSlots(slots);
    });
  };
  expect_ended(
      {{"lease in a namespace not opened", message([](Builder m) { m.initLease().setNs(0); })},
       {"a handle past the opened ones", opened([](Builder m) { m.initLease().setNs(1); })},
       {"reserve in a namespace not opened", message([](Builder m) { m.initReserve().setNs(9); })},
       {"commit in a namespace not opened", message([](Builder m) { m.initCommit().setNs(9); })},
       {"a lease of too many blocks",
        opened([&](Builder m) { m.initLease().setKeys(data(bytes.size())); })},
       {"a lease of part of a key", opened([&](Builder m) { m.initLease().setKeys(data(17)); })},
       {"slots of the disk tier", opened([](Builder m) { m.initReserve().setTier(2); })},
       {"slots of no tier", opened([](Builder m) { m.initReserve().setTier(255); })},
       {"a commit of too many blocks",
        opened([](Builder m) { m.initCommit().initBlocks(wire::kCommitBlocksMax + 1); })},
       {"a commit with a short key", commit(15, 16, 1)},
       {"a commit with a proof longer than any", commit(16, kProofBytesMax + 1, 1)},
       {"a commit with too many slots", commit(16, 16, 4)},
       {"a hint of part of a key", opened([&](Builder m) { m.initHint().setKeys(data(17)); })},
       {"a hint of too many blocks",
        opened([&](Builder m) { m.initHint().setKeys(data(bytes.size())); })},
       {"a hint of no kind", opened([](Builder m) { m.initHint().setKind(kHintKinds); })},
       {"a hint of the disk tier", opened([](Builder m) { m.initHint().setTier(2); })},
       {"a hint of no priority",
        opened([](Builder m) { m.initHint().setPriority(kHintPriorityMax + 1); })},
       {"a hint in a namespace not opened", message([](Builder m) { m.initHint().setNs(9); })},
       {"a report of a short key",
        opened([&](Builder m) { m.initReport().initBadKeys(1).set(0, data(3)); })}},
      true);
}

TEST_F(ServerFramesTest, another_protocol_version_is_told_both_versions_and_the_mend) {
  WireClient old(socket());
  EXPECT_FALSE(old.request([](Builder m) { m.initHello().setVersion(99); }));
  ASSERT_TRUE(old.error());
  EXPECT_EQ(old.error()->code, Errc::version);
  EXPECT_EQ(old.error()->message,
            "protocol version 99 is not spoken here: this kvtierd speaks version 1; install "
            "matching kvtierd "
            "and libkvtier");
  EXPECT_TRUE(old.is_closed());
  EXPECT_TRUE(client().status());
}

TEST_F(ServerFramesTest, a_refusal_is_an_error_and_the_session_goes_on) {
  WireClient c = client();
  const std::vector<kj::byte> garbage(40, 7);
  EXPECT_FALSE(c.request([&](Builder m) { m.setOpenNamespace({garbage.data(), garbage.size()}); }));
  EXPECT_EQ(c.error()->code, Errc::malformed);
  EXPECT_FALSE(c.request([&](Builder m) {
    m.initDrop().initSelection().initNamespaces().setId({garbage.data(), 16});
  }));
  EXPECT_EQ(c.error()->code, Errc::not_found);
  EXPECT_FALSE(c.request([&](Builder m) { m.initList().initNamespaces().setModel("unknown"); }));
  EXPECT_EQ(c.error()->code, Errc::not_found);
  EXPECT_FALSE(c.request([&](Builder m) { m.initInspect().setKey({garbage.data(), 16}); }));
  EXPECT_EQ(c.error()->code, Errc::not_found);
  EXPECT_FALSE(c.request([&](Builder m) { m.initPin().setSeconds(0); }));
  EXPECT_EQ(c.error()->code, Errc::invalid);
  EXPECT_FALSE(c.request([&](Builder m) { m.initInvalidate(); }));
  EXPECT_EQ(c.error()->code, Errc::invalid);
  EXPECT_FALSE(c.request([&](Builder m) { m.initSetQuota().setTenant("nobody"); }));
  EXPECT_EQ(c.error()->code, Errc::not_found);
  for (int i = 0; i < 64; ++i) c.open(ns);
  const auto encoded = encode(ns);
  EXPECT_FALSE(c.request([&](Builder m) {
    m.setOpenNamespace({reinterpret_cast<const kj::byte*>(encoded.data()), encoded.size()});
  }));
  EXPECT_EQ(c.error()->code, Errc::no_space);
  EXPECT_TRUE(c.status());
}

// Bytes that are random, in a true frame, or a true message with some bits changed.
TEST_F(ServerFramesTest, five_thousand_random_byte_strings_leave_the_daemon_serving) {
  constexpr unsigned kSeed = 20250101;
  std::mt19937 random(kSeed);
  const auto good = message_bytes([&](Builder m) {
    m.setId(3);
    auto block = m.initCommit().initBlocks(2)[1];
    block.setKey({reinterpret_cast<const kj::byte*>("0123456789abcdef"), 16});
    block.setParent({reinterpret_cast<const kj::byte*>("0123456789abcdef"), 16});
    block.initSlots(2).set(0, 1ULL << 32);
  });
  const auto report = message_bytes([](Builder m) { m.initReport().initBadKeys(3); });
  for (int i = 0; i < 5000 && !HasFailure(); ++i) {
    WireClient c = i % 7 == 0 ? WireClient(socket()) : client();
    if (i % 7 != 0 && i % 2 == 0) c.open(ns);
    std::vector<std::byte> bytes;
    if (i % 3 == 0) {
      std::vector<std::byte> body((1 + random() % 32) * 8);
      for (auto& b : body) b = std::byte(random() % 4 == 0 ? random() : random() % 3);
      bytes = frame_bytes({wire::kFrameMagic, static_cast<std::uint32_t>(body.size()), 0, 0}, body);
    } else if (i % 3 == 1) {
      bytes = random() % 2 == 0 ? good : report;
      for (int n = 0; n < 3; ++n)
        bytes[16 + random() % (bytes.size() - 16)] ^= std::byte(1U << random() % 8);
    } else {
      bytes.resize(1 + random() % 300);
      for (auto& b : bytes) b = std::byte(random());
    }
    c.send_raw(bytes);
    c.finish_sending();
    EXPECT_TRUE(c.is_closed()) << "seed " << kSeed << ", string " << i;
  }
  WireClient last = client();
  EXPECT_TRUE(comes_to_hold([&] { return last.status()->sessions == 1; }));
  EXPECT_TRUE(daemon.running()) << daemon.output();
}

}  // namespace
}  // namespace kvtier::daemon::testing
