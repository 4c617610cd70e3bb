// Slots that a client of an earlier daemon had reserved: nobody's until it lets go of them or ends.
#include "daemon/limits.h"
#include "tests/daemon/support/kept_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using storage::SlotState;
using Builder = WireClient::Builder;
using Reader = WireClient::Reader;

class LetGo : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kMe = 77, kOther = 78;  // two clients of this process

  WireClient client_called(std::uint64_t number) {
    WireClient client(daemon.socket());
    EXPECT_TRUE(client.request([&](Builder m) {
      auto hello = m.initHello();
      hello.setVersion(wire::kProtocolVersion);
      hello.setClient(number);
    }));
    return client;
  }
  static void let_go(WireClient& client) {
    client.send([](Builder m) { m.setLetGo(); });
  }
  static std::uint64_t quarantined(WireClient& client) { return memory_status(client).quarantined; }

  KeptDaemon daemon;
  const Namespace ns = small_namespace("reserved");
  const KeptSizes sizes{.host = "'1MiB'", .device = "0"};
};

TEST_F(LetGo, an_earlier_daemons_reservations_stay_quarantined_until_their_client_lets_go) {
  daemon.start(sizes);
  {
    WireClient mine = client_called(kMe), other = client_called(kOther);
    ASSERT_EQ(mine.reserve(mine.open(ns), 5).size(), 5U);
    ASSERT_EQ(other.reserve(other.open(ns), 3).size(), 3U);
    daemon.kill();
  }
  EXPECT_EQ(daemon.slots(SlotState::reserved), 8U);
  daemon.start(sizes);
  WireClient mine = client_called(kMe);
  EXPECT_EQ(quarantined(mine), 8U);
  EXPECT_EQ(daemon.slots(SlotState::quarantined), 8U);
  // None of them is granted, however many are asked for.
  const auto before = mine.reserve(mine.open(ns), 1000);
  EXPECT_EQ(daemon.slots(SlotState::quarantined), 8U);
  let_go(mine);
  EXPECT_EQ(quarantined(mine), 3U) << "those of the other client";
  EXPECT_EQ(memory_status(mine).reserved, before.size()) << "what this daemon granted stays";
  daemon.kill_and_start(sizes);
  WireClient other = client_called(kOther);
  EXPECT_EQ(quarantined(other), 3U + before.size()) << "over two daemons";
  let_go(other);
  EXPECT_EQ(quarantined(other), before.size());
}

TEST_F(LetGo, a_client_that_reconnects_to_the_same_daemon_lets_go_as_well) {
  daemon.start(sizes);
  WireClient first = client_called(kMe);
  ASSERT_EQ(first.reserve(first.open(ns), 4).size(), 4U);
  // The daemon has not seen the first session end, which the second one ends.
  WireClient second = client_called(kMe);
  EXPECT_TRUE(first.is_closed());
  EXPECT_EQ(quarantined(second), 4U);
  let_go(second);
  EXPECT_EQ(quarantined(second), 0U);
}

TEST_F(LetGo, sessions_of_other_clients_and_of_nameless_ones_live_side_by_side) {
  daemon.start(sizes);
  WireClient mine = client_called(kMe), other = client_called(kOther);
  WireClient nameless = daemon.client(), another = daemon.client();
  for (WireClient* client : {&mine, &other, &nameless, &another})
    EXPECT_TRUE(client->status().has_value());
  let_go(another);
  EXPECT_TRUE(another.status().has_value());
}

TEST_F(LetGo, reservations_of_a_process_that_has_ended_are_free_at_once) {
  daemon.start(sizes);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    WireClient client = WireClient::greeted(daemon.socket());
    const bool granted = client.reserve(client.open(ns), 6).size() == 6;
    (void)!::write(pipe[1], granted ? "y" : "n", 1);
    ::pause();
  }
  char said = 0;
  ASSERT_EQ(::read(pipe[0], &said, 1), 1);
  EXPECT_EQ(said, 'y');
  daemon.kill_and_start(sizes);
  WireClient client = daemon.client();
  EXPECT_EQ(quarantined(client), 6U) << "it lives";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(comes_to_hold([&] { return quarantined(client) == 0; }));
  daemon.kill();
  EXPECT_EQ(daemon.slots(SlotState::quarantined) + daemon.slots(SlotState::reserved), 0U);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_F(LetGo, a_client_keeps_the_extents_that_the_next_daemon_has_and_no_others) {
  daemon.start(sizes);
  std::uint32_t extent = 0;
  {
    WireClient client = client_called(kMe);
    const auto slots = client.reserve(client.open(ns), 1);
    ASSERT_EQ(slots.size(), 1U);
    extent = static_cast<std::uint32_t>(slots[0] >> 32);
  }
  std::string lineage;
  const auto known = [&](const std::string& of, std::vector<std::uint32_t> has) {
    std::vector<std::uint32_t> kept;
    WireClient client(daemon.socket());
    EXPECT_TRUE(client.request(
        [&](Builder m) {
          auto hello = m.initHello();
          hello.setVersion(wire::kProtocolVersion);
          hello.setLineage({reinterpret_cast<const kj::byte*>(of.data()), of.size()});
          auto list = hello.initExtents(static_cast<unsigned>(has.size()));
          for (unsigned i = 0; i < has.size(); ++i) list.set(i, has[i]);
        },
        [&](Reader m) {
          const auto data = m.getWelcome().getLineage();
          lineage.assign(reinterpret_cast<const char*>(data.begin()), data.size());
          for (const auto id : m.getWelcome().getExtents()) kept.push_back(id);
        }));
    return kept;
  };
  EXPECT_TRUE(known("", {}).empty());
  daemon.kill_and_start(sizes);
  EXPECT_EQ(known(lineage, {extent, extent + 1, 0, 0xFFFFFFFF}), std::vector{extent});
  EXPECT_TRUE(known(std::string(16, 'x'), {extent}).empty()) << "of another lineage";
  WireClient odd(daemon.socket());
  EXPECT_FALSE(odd.request([](Builder m) {
    auto hello = m.initHello();
    hello.setVersion(wire::kProtocolVersion);
    hello.initLineage(15);
  }));
  EXPECT_TRUE(odd.is_closed());
}

}  // namespace
}  // namespace kvtier::daemon::testing
