// Recalls on the wire: who is asked, who waits, and what becomes of who does not answer.
#include "daemon/limits.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using Reader = WireClient::Reader;

// 4 MiB: a process may have 128 slots of 8 KiB.
class LendingTest : public ServerTest {
 protected:
  WireClient client_that_answers() {
    WireClient made(socket());
    EXPECT_TRUE(made.request([](Builder m) {
      auto hello = m.initHello();
      hello.setVersion(wire::kProtocolVersion);
      hello.setFeatures(wire::kAnswersRecalls);
    }));
    return made;
  }
  static void send_reserve(WireClient& client, std::uint32_t handle, std::uint64_t id) {
    client.send(
        [&](Builder m) {
          auto reserve = m.initReserve();
          reserve.setNs(handle);
          reserve.setTier(1);
          reserve.setCount(64);
        },
        id);
  }
  static void give_back(WireClient& client, std::span<const std::uint64_t> slots) {
    client.send([&](Builder m) {
      auto list = m.initAbandon(static_cast<unsigned>(slots.size()));
      for (unsigned i = 0; i < list.size(); ++i) list.set(i, slots[i]);
    });
  }
};

TEST_F(LendingTest, a_request_that_is_due_slots_waits_for_those_that_are_asked_back) {
  WireClient c = client_that_answers();
  const auto first = c.open(small_namespace("1")), second = c.open(small_namespace("2"));
  const auto slots = c.reserve(first, 1000);
  ASSERT_EQ(slots.size(), 128U);
  c.on_recall = [&](const WireClient::Recall& recall) {
    ASSERT_EQ(recall.keeps.size(), 1U);
    EXPECT_EQ(recall.keeps[0].ns, first);
    EXPECT_EQ(recall.keeps[0].slots, 64U);
    give_back(c, std::span(slots).subspan(recall.keeps[0].slots));
    c.send([&](Builder m) { m.setReturned(recall.number); });
  };
  const auto granted = c.reserve(second, 1000);
  EXPECT_EQ(granted.size(), 64U);
  EXPECT_EQ(c.recalls, 1U);
}

TEST_F(LendingTest, who_does_not_answer_is_lent_nothing_more_and_keeps_what_it_has) {
  WireClient c = client_that_answers();
  const auto first = c.open(small_namespace("1")), second = c.open(small_namespace("2"));
  ASSERT_EQ(c.reserve(first, 1000).size(), 128U);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(c.reserve(second, 10).empty());
  EXPECT_GE(std::chrono::steady_clock::now() - began, limits::kRecallAnswerMax / 2);
  EXPECT_EQ(c.recalls, 1U);
  EXPECT_TRUE(c.reserve(first, 10).empty());
  EXPECT_EQ(c.status()->reserved, 128U);
}

// An unknown event would end its session.
TEST_F(LendingTest, a_client_that_knows_no_recalls_is_sent_none) {
  WireClient c = client();
  const auto first = c.open(small_namespace("1")), second = c.open(small_namespace("2"));
  const auto slots = c.reserve(first, 1000);
  ASSERT_EQ(slots.size(), 128U);
  EXPECT_TRUE(c.reserve(second, 10).empty());
  EXPECT_EQ(c.recalls, 0U);
  give_back(c, slots);
  EXPECT_EQ(c.reserve(second, 10).size(), 10U) << "it has nothing any more";
}

TEST_F(LendingTest, a_session_that_ends_while_it_waits_leaves_nothing_behind) {
  WireClient holder = client_that_answers();
  ASSERT_EQ(holder.reserve(holder.open(small_namespace("1")), 1000).size(), 128U);
  {
    WireClient c = client_that_answers();
    send_reserve(c, c.open(small_namespace("2")), 99);
  }
  EXPECT_TRUE(comes_to_hold([&] { return holder.status()->sessions == 1; }));
  EXPECT_EQ(holder.status()->reserved, 128U);
  EXPECT_EQ(holder.status()->quarantined, 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
