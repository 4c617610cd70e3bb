// Frames in and out, whatever they say: their order, their pace, and how a connection ends.
#include "daemon/session/connection.h"

#include "tests/daemon/support/session_context.h"
#include "tests/daemon/support/wire_client.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = wire::Message::Builder;

// Notes the ids of what it hears; after one that is divisible by ten there are three steps to do.
class Listening final : public Connection {
 public:
  using Connection::Connection;
  std::vector<std::uint64_t> heard;  // 0: a step
  bool was_closed = false;

 private:
  Result<void> handle(wire::Frame& frame) override {
    std::uint64_t id = 0;
    if (auto good = frame.read([&](wire::Message::Reader m) { id = m.getId(); }); !good)
      return good;
    heard.push_back(id);
    if (id % 10 == 0) steps_ = 3;
    if (id == 99) return make_error(Errc::malformed, "ninety-nine");
    return {};
  }
  bool has_more_to_do() const override { return steps_ > 0; }
  void do_more() override {
    --steps_;
    heard.push_back(0);
  }
  void closed() override { was_closed = true; }
  int steps_ = 0;
};

class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() {
    auto [ours, theirs] = Surroundings::connected();
    peer = std::move(theirs);
    connection =
        std::make_shared<Listening>(7, Peer{}, around.socket(std::move(ours)), around.context,
                                    [this](SessionId id) { doomed.push_back(id); });
    connection->start();
  }
  ~ConnectionTest() override {
    if (connection->open()) connection->end("the test is over");
    connection->close();
    connection.reset();
    around.turn();
  }
  void say(std::uint64_t id) {
    const auto bytes = message_bytes([&](Builder m) {
      m.setId(id);
      m.setStatus();
    });
    ASSERT_EQ(::send(peer.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }
  // The frames that have come to the peer.
  std::vector<wire::Frame> read() {
    std::vector<wire::Frame> frames;
    (void)reader.receive(peer.get(), frames);
    return frames;
  }

  Surroundings around;
  UniqueFd peer;
  wire::FrameReader reader;
  std::shared_ptr<Listening> connection;
  std::vector<SessionId> doomed;
};

TEST_F(ConnectionTest, what_a_frame_leaves_to_be_done_is_done_before_the_next_is_handled) {
  say(10);
  say(1);
  say(2);
  around.turn();
  EXPECT_EQ(connection->heard, (std::vector<std::uint64_t>{10, 0, 0, 0, 1, 2}));
}

TEST_F(ConnectionTest, one_that_is_ended_hears_and_says_nothing_and_stays_until_it_is_closed) {
  connection->end("enough");
  connection->end("twice");
  EXPECT_EQ(doomed, std::vector<SessionId>{7});
  say(1);
  around.turn();
  EXPECT_TRUE(connection->heard.empty());
  EXPECT_FALSE(connection->reply(1, [](Builder m) { m.setDone(); }));
  EXPECT_FALSE(connection->was_closed);
}

TEST_F(ConnectionTest, a_peer_that_said_what_it_may_not_reads_why) {
  say(1);
  say(99);
  say(2);
  around.turn();
  EXPECT_EQ(connection->heard, (std::vector<std::uint64_t>{1, 99}));
  EXPECT_EQ(around.context.counts.frame_errors, 1U);
  auto said = read();
  ASSERT_EQ(said.size(), 1U);
  std::string why;
  ASSERT_TRUE(
      said[0].read([&](wire::Message::Reader m) { why = m.getError().getMessage().cStr(); }));
  EXPECT_EQ(why, "ninety-nine");
}

TEST_F(ConnectionTest, what_was_said_before_the_peer_hung_up_is_handled) {
  for (std::uint64_t id = 101; id <= 300; ++id) say(id);
  peer.reset();
  connection->hear_out("its process has ended");
  EXPECT_EQ(std::ranges::count_if(connection->heard, [](auto id) { return id != 0; }), 200);
  EXPECT_FALSE(connection->open());
}

TEST_F(ConnectionTest, nothing_is_handled_while_its_user_owes_for_what_was) {
  around.users.charge(0, 2e6, Connection::Clock::now());
  say(1);
  around.turn();
  EXPECT_TRUE(connection->heard.empty());
  const auto now = Connection::Clock::now();
  EXPECT_FALSE(connection->overdue(now)) << "it is not the peer that is late";
}

TEST_F(ConnectionTest, a_peer_is_late_with_its_hello_until_the_daemon_that_stood_still_excuses_it) {
  const auto late = Connection::Clock::now() + around.limits.hello_time + std::chrono::seconds(1);
  EXPECT_TRUE(connection->overdue(late));
  connection->excuse(late);
  EXPECT_FALSE(connection->overdue(late));
}

TEST_F(ConnectionTest, a_peer_that_reads_nothing_is_let_go_at_the_bound_of_what_waits_for_it) {
  const std::string page(1 << 20, 'x');
  for (int i = 0; i < 64 && connection->open(); ++i)
    connection->reply(0, [&](Builder m) { m.initError().setMessage(page); });
  EXPECT_FALSE(connection->open());
  EXPECT_LE(connection->unsent_bytes(), limits::kSessionOutputBytesMax);
}

}  // namespace
}  // namespace kvtier::daemon::testing
