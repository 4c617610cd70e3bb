// Whoever is turned away is told why, whatever it was about to say itself.
#include <sys/wait.h>

#include <cstdio>

#include "daemon/limits.h"
#include "kvtier/client.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;

class FarewellTest : public ::testing::Test {
 protected:
  // Administrators may open a few more.
  FarewellTest()
      : daemon(scratch, small_config(scratch) + "[limits]\nsessions_per_user = " +
                            std::to_string(kSessions - limits::kAdminSessionsMax) + "\n") {}
  std::string socket() const { return (scratch / "s").string(); }
  WireClient client() const { return WireClient::greeted(socket()); }

  static constexpr std::size_t kSessions = 132;
  Scratch scratch;
  Kvtierd daemon;
};

// Seven of eight saw a broken pipe instead.
TEST_F(FarewellTest, of_140_clients_of_one_user_each_that_is_refused_reads_why) {
  std::vector<WireClient> clients;
  for (std::size_t i = 0; i < 140; ++i) clients.emplace_back(socket());
  std::size_t let_in = 0, told = 0;
  for (WireClient& one : clients) {
    // Perhaps long after it was refused.
    if (one.request([](Builder m) { m.initHello().setVersion(wire::kProtocolVersion); })) {
      ++let_in;
    } else {
      EXPECT_TRUE(one.is_closed());
      told += one.why.find("sessions_per_user") != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_EQ(let_in, kSessions);
  EXPECT_EQ(told, 140 - kSessions);
}

TEST_F(FarewellTest, kvtierctl_and_libkvtier_say_why_they_are_refused) {
  std::vector<WireClient> clients;
  for (std::size_t i = 0; i < kSessions; ++i) clients.push_back(client());
  for (int i = 0; i < 20; ++i) {
    const std::string command = std::string(KVTIER_CTL) + " --socket " + socket() + " status 2>&1";
    FILE* const pipe = ::popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string output;
    for (char text[256]; ::fgets(text, sizeof text, pipe) != nullptr;) output += text;
    const int status = ::pclose(pipe);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 4) << output;
    EXPECT_NE(output.find("sessions_per_user"), std::string::npos) << output;
  }
  ClientOptions options;
  options.socket = socket();
  const auto engine = Client::start(options).value();
  std::string why;
  EXPECT_TRUE(comes_to_hold([&] {
    const auto connected = engine->wait_connected(Clock::now() + std::chrono::milliseconds(20));
    why = connected ? "connected" : connected.error().message;
    return why.find("sessions_per_user") != std::string::npos;
  })) << why;
  clients.pop_back();
  EXPECT_TRUE(engine->wait_connected(Clock::now() + std::chrono::seconds(20)));
}

// As many as are seen off at a time, and no more descriptors than that.
TEST_F(FarewellTest, peers_that_stay_when_they_are_told_to_go_are_let_go_all_the_same) {
  std::vector<WireClient> clients;
  for (std::size_t i = 0; i < kSessions; ++i) clients.push_back(client());
  const auto descriptors = [&] {
    std::size_t open = 0;
    const auto folder = "/proc/" + std::to_string(daemon.pid()) + "/fd";
    for ([[maybe_unused]] const auto& fd : std::filesystem::directory_iterator(folder)) ++open;
    return open;
  };
  const auto turned_away = [&] { return clients[0].status()->turned_away; };
  const std::size_t before = descriptors();
  std::vector<WireClient> refused;
  for (std::size_t i = 0; i < 2 * limits::kFarewellsPerUserMax; ++i) refused.emplace_back(socket());
  ASSERT_TRUE(comes_to_hold([&] { return turned_away() == refused.size(); }));
  // One may be on its way to be closed.
  EXPECT_LE(descriptors(), before + limits::kFarewellsPerUserMax + 1);
  EXPECT_TRUE(comes_to_hold([&] { return descriptors() <= before; })) << descriptors();
}

}  // namespace
}  // namespace kvtier::daemon::testing
