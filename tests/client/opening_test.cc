// What a client says of itself: whether its namespace is open, why not, and its log.
#include "client/session/log.h"
#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

using OpeningTest = ClientTest;

// Lines of a log, kept.
struct Lines {
  LogSink sink() {
    return [this](LogLevel level, std::string_view line) {
      const std::lock_guard lock(mutex);
      lines.emplace_back(level, line);
    };
  }
  bool come_to_have(const std::string& text) {
    const Deadline deadline = soon();
    while (Clock::now() < deadline) {
      {
        const std::lock_guard lock(mutex);
        for (const auto& [level, line] : lines)
          if (line.find(text) != std::string::npos) return true;
      }
      std::this_thread::yield();
    }
    return false;
  }
  std::mutex mutex;
  std::vector<std::pair<LogLevel, std::string>> lines;
};

TEST_F(OpeningTest, ANamespaceIsOpenOnceTheDaemonSaysSo) {
  start();
  ASSERT_TRUE(cache->wait_open(soon()));
  EXPECT_TRUE(cache->state());
  EXPECT_TRUE(client->open(ns, soon()));
}

TEST_F(OpeningTest, ARefusalIsReportedWithItsText) {
  daemon.with([](auto& s) {
    s.refused[Which::OPEN_NAMESPACE] = make_error(Errc::refused, "tenant unknown");
  });
  Lines lines;
  start({.log = lines.sink()});
  const auto opened = client->open(ns, soon());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Errc::refused);
  EXPECT_NE(opened.error().message.find("tenant unknown"), std::string::npos);
  EXPECT_EQ(cache->state().error().code, Errc::refused);
  EXPECT_TRUE(lines.come_to_have("tenant unknown"));
  client.reset();
}

TEST_F(OpeningTest, AnotherVersionIsReportedAtOnce) {
  daemon.with([](auto& s) { s.version = wire::kProtocolVersion + 1; });
  start();
  const auto opened = client->open(ns, soon());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Errc::version);
  EXPECT_EQ(cache->state().error().code, Errc::version);
}

TEST_F(OpeningTest, WithoutADaemonTheDeadlineSaysWhyItIsNotConnected) {
  auto alone = Client::start({.socket = "/nowhere/kvtierd.sock"}).value();
  const auto opened = alone->open(ns, in(milliseconds(30)));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Errc::deadline);
  EXPECT_NE(opened.error().message.find("/nowhere"), std::string::npos);
  EXPECT_EQ(alone->open(ns).value()->state().error().code, Errc::unavailable);
}

TEST_F(OpeningTest, ADaemonThatDoesNotAnswerCostsNoMoreThanTheDeadline) {
  daemon.with([](auto& s) { s.ignored = {Which::OPEN_NAMESPACE}; });
  start();
  EXPECT_EQ(cache->wait_open(in(milliseconds(30))).error().code, Errc::deadline);
  EXPECT_EQ(cache->state().error().code, Errc::unavailable);
  daemon.answer_ignored();
  EXPECT_TRUE(cache->wait_open(soon()));
}

TEST_F(OpeningTest, ANamespaceThatTheDaemonClosesSaysSo) {
  start_connected();
  ASSERT_TRUE(cache->wait_open(soon()));
  daemon.send_namespace_closed();
  const Deadline deadline = soon();
  while (cache->state() && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(cache->state().error().code, Errc::refused);
}

TEST_F(OpeningTest, ConnectionsAndTheirEndsAreLogged) {
  Lines lines;
  start_connected({.log = lines.sink()});
  EXPECT_TRUE(lines.come_to_have("connected to kvtierd at " + daemon.socket()));
  daemon.hang_up();
  EXPECT_TRUE(lines.come_to_have("the connection ended"));
  client.reset();
}

TEST_F(OpeningTest, DroppedBlocksAreLoggedWithTheirReason) {
  Lines lines;
  start_connected({.log = lines.sink()});
  RecordPages pages(1, layout.record_bytes);
  cache->write_back(prompt_of(17), 0, pages.pages()).wait();
  EXPECT_TRUE(lines.come_to_have("1 blocks were not written back: no_slot"));
  client.reset();
}

TEST_F(OpeningTest, LinesBelowTheLevelAreNotMade) {
  Lines lines;
  session::Log log(lines.sink(), LogLevel::warning);
  EXPECT_FALSE(log.wants(LogLevel::info));
  log.line(session::Topic::lease, LogLevel::info, "not this one");
  EXPECT_TRUE(lines.lines.empty());
}

TEST_F(OpeningTest, OfAKindOneLineASecondComesAndTheNextSaysHowManyDidNot) {
  Lines lines;
  session::Log log(lines.sink(), LogLevel::debug);
  for (int i = 0; i < 5; ++i) log.line(session::Topic::drop, LogLevel::warning, "a drop");
  log.line(session::Topic::fault, LogLevel::warning, "a fault");
  ASSERT_EQ(lines.lines.size(), 2U);
  const Deadline deadline = soon();
  while (lines.lines.size() == 2 && Clock::now() < deadline)
    log.line(session::Topic::drop, LogLevel::warning, "a drop");
  ASSERT_EQ(lines.lines.size(), 3U);
  EXPECT_NE(lines.lines[2].second.find("were left out"), std::string::npos);
}

}  // namespace
}  // namespace kvtier::test
