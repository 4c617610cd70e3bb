// Who is let in, and how sessions end: without a daemon, on sockets of the test's own.
#include "daemon/server/session_registry.h"

#include "tests/daemon/support/session_context.h"

namespace kvtier::daemon::testing {
namespace {

class SessionRegistryTest : public ::testing::Test {
 protected:
  SessionRegistryTest() {
    around.limits.sessions_per_user = 1;  // and administrators', of whom we are one
    registry.emplace(
        around.io.get_executor(),
        SessionRegistry::Needs{*around.cache, around.directory, around.lending, around.admin,
                               around.access, around.limits, Welcomed{}, SessionPorts{}});
  }
  ~SessionRegistryTest() override {
    registry->end_all("the test is over");
    around.turn();
  }
  UniqueFd let_in() {
    auto [ours, theirs] = Surroundings::connected();
    EXPECT_TRUE(registry->admit(around.socket(std::move(ours))));
    return std::move(theirs);
  }

  Surroundings around;
  std::optional<SessionRegistry> registry;
};

TEST_F(SessionRegistryTest, one_that_is_ended_is_there_until_the_turn_is_over) {
  const UniqueFd peer = let_in();
  const auto session = registry->find(1);
  ASSERT_TRUE(session);
  session->end("enough");
  EXPECT_TRUE(registry->find(1)) << "whoever is at work with it goes on";
  around.turn();
  EXPECT_FALSE(registry->find(1));
  EXPECT_TRUE(registry->sessions().empty());
}

TEST_F(SessionRegistryTest, who_is_past_a_bound_is_told_which_and_counted) {
  std::vector<UniqueFd> peers;
  for (std::uint32_t i = 0; i < 1 + limits::kAdminSessionsMax; ++i) peers.push_back(let_in());
  EXPECT_EQ(registry->turned_away(), 0U);
  const UniqueFd one_more = let_in();
  EXPECT_EQ(registry->turned_away(), 1U);
  EXPECT_EQ(registry->sessions().size(), peers.size());
  wire::FrameReader reader;
  std::vector<wire::Frame> frames;
  (void)reader.receive(one_more.get(), frames);
  ASSERT_EQ(frames.size(), 1U);
  std::string why;
  ASSERT_TRUE(
      frames[0].read([&](wire::Message::Reader m) { why = m.getError().getMessage().cStr(); }));
  EXPECT_NE(why.find("sessions_per_user"), std::string::npos) << why;
}

TEST_F(SessionRegistryTest, a_session_whose_peer_hung_up_makes_room_for_the_next) {
  for (std::uint32_t i = 0; i < 3 * limits::kAdminSessionsMax; ++i) {
    let_in().reset();
    around.turn();
  }
  EXPECT_EQ(registry->turned_away(), 0U);
  EXPECT_TRUE(registry->sessions().empty());
}

TEST_F(SessionRegistryTest, what_a_closed_sessions_process_may_be_writing_stays_its_own) {
  const UniqueFd peer = let_in();
  const auto process = registry->find(1)->process();
  const auto ns = around.cache.open(small_namespace("m"));
  ASSERT_EQ(around.cache->reserve(1, process, ns, Tier::host, 2).size(), 2U);
  registry->end_all("enough");
  EXPECT_EQ(around.cache->reservations().quarantined(), 2U);
  EXPECT_TRUE(around.cache->reservations().holds(process));
}

}  // namespace
}  // namespace kvtier::daemon::testing
