// The log while nobody reads it.
#include "daemon/service/log_sink.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <sys/socket.h>

#include <csignal>
#include <sstream>
#include <thread>
#include <vector>

#include "tests/daemon/support/kvtierd_process.h"

namespace kvtier::daemon::testing {
namespace {

// Both ends of a pipe, or of a socket as journald gives it.
struct Channel {
  explicit Channel(bool socket) {
    int ends[2];
    EXPECT_EQ(socket ? ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : ::pipe(ends), 0);
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
    ::fcntl(read.get(), F_SETFL, O_NONBLOCK);
  }
  std::string take() const {
    std::string all;
    char bytes[65536];
    for (ssize_t got; (got = ::read(read.get(), bytes, sizeof bytes)) > 0;)
      all.append(bytes, static_cast<std::size_t>(got));
    return all;
  }
  UniqueFd read, write;
};

class LogSinkTest : public ::testing::TestWithParam<bool> {
 protected:
  // With what did not fit in the channel at once.
  std::string take_all() {
    std::string all;
    for (std::string some; !(some = channel.take()).empty(); log.flush()) all += some;
    return all;
  }
  Channel channel{GetParam()};
  spdlog::logger log{"test", std::make_shared<LogSink>(channel.write.get())};
};

// A pipe whose reader had stopped held the thread that logged for ever.
TEST_P(LogSinkTest, a_log_that_nobody_reads_holds_nobody_up_and_says_what_it_left_out) {
  const std::string text(200, 'x');
  constexpr int kLines = 20'000;  // more than the channel and the sink take
  for (int i = 0; i < kLines; ++i) log.info("{} {}", i, text);
  std::istringstream lines(take_all());
  int number = 0;
  std::string line;
  while (std::getline(lines, line) && line.ends_with(text)) {
    EXPECT_NE(line.find(" " + std::to_string(number) + " x"), std::string::npos) << line;
    ++number;
  }
  EXPECT_GT(number, 1000);
  EXPECT_EQ(line, "[kvtierd] " + std::to_string(kLines - number) +
                      " lines of the log were left out here: nobody read them");
  log.info("afterwards");
  EXPECT_TRUE(channel.take().ends_with("afterwards\n"));
}

// The sink was one for a single thread.
TEST_P(LogSinkTest, lines_of_several_threads_come_whole) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) log.info("thread {} says {}", t, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::istringstream lines(take_all());
  int next[4] = {};
  int all = 0;
  for (std::string line; std::getline(lines, line); ++all) {
    const auto at = line.find("thread ");
    ASSERT_NE(at, std::string::npos) << line;
    const int thread = line[at + 7] - '0';
    EXPECT_TRUE(line.ends_with("thread " + std::to_string(thread) + " says " +
                               std::to_string(next[thread]++)))
        << line;
  }
  EXPECT_EQ(all, 400);
}

TEST_P(LogSinkTest, a_reader_that_has_gone_is_nothing_to_wait_for) {
  std::signal(SIGPIPE, SIG_IGN);  // as kvtierd does
  channel.read.reset();
  for (int i = 0; i < 10'000; ++i) log.info("line {}", i);
}

INSTANTIATE_TEST_SUITE_P(Channels, LogSinkTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "socket" : "pipe"; });

}  // namespace
}  // namespace kvtier::daemon::testing
