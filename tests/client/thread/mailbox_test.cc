// What other threads leave for the session thread.
#include "client/session/mailbox.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <thread>

namespace kvtier::session {
namespace {

class MailboxTest : public ::testing::Test {
 protected:
  bool is_awake() const {
    pollfd fd{mailbox.wake_fd(), POLLIN, 0};
    return ::poll(&fd, 1, 0) == 1;
  }
  static std::vector<FilledBlock> blocks(std::size_t count) {
    return std::vector<FilledBlock>(count);
  }
  Mailbox mailbox{UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
};

TEST_F(MailboxTest, TasksComeOutInTheirOrderAndOnce) {
  std::vector<int> order;
  for (const int n : {1, 2, 3}) EXPECT_TRUE(mailbox.post([&order, n] { order.push_back(n); }));
  for (auto& task : mailbox.take().tasks) task();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(mailbox.take().tasks.empty());
}

TEST_F(MailboxTest, WhoLeavesSomethingWakesTheThread) {
  EXPECT_FALSE(is_awake());
  mailbox.commit(blocks(1));
  EXPECT_TRUE(is_awake());
  mailbox.quieten();
  EXPECT_FALSE(is_awake());
  mailbox.commit(blocks(1));
  EXPECT_FALSE(is_awake()) << "it was woken for the first one, and has not looked yet";
  mailbox.post([] {});
  EXPECT_TRUE(is_awake());
}

TEST_F(MailboxTest, BlocksThatComeTogetherStandBehindThoseBeforeThem) {
  for (std::uint32_t first : {0U, 3U}) {
    auto three = blocks(3);
    for (std::uint32_t n = 0; n < 3; ++n) three[n].block_index = first + n;
    mailbox.commit(std::move(three));
  }
  mailbox.commit(blocks(0));
  const auto mail = mailbox.take();
  ASSERT_EQ(mail.commits.size(), 6U);
  for (std::uint32_t n = 0; n < 6; ++n) EXPECT_EQ(mail.commits[n].block_index, n);
}

TEST_F(MailboxTest, NothingIsTakenInOnceItIsClosed) {
  mailbox.post([] {});
  mailbox.close();
  EXPECT_FALSE(mailbox.post([] {}));
  mailbox.commit(blocks(1));
  const auto mail = mailbox.take();
  EXPECT_TRUE(mail.closed);
  EXPECT_EQ(mail.tasks.size(), 1U) << "what came before it is done";
  EXPECT_TRUE(mail.commits.empty());
}

TEST_F(MailboxTest, ATaskIsNeverTakenWithoutTheCommitsBeforeIt) {
  constexpr std::size_t kRounds = 2000;
  std::thread engine([this] {
    for (std::size_t n = 0; n < kRounds; ++n) {
      mailbox.commit(blocks(1));
      mailbox.post([] {});
    }
  });
  std::size_t commits = 0, tasks = 0;
  while (tasks < kRounds) {
    const auto mail = mailbox.take();
    commits += mail.commits.size();
    tasks += mail.tasks.size();
    ASSERT_GE(commits, tasks);
  }
  engine.join();
}

}  // namespace
}  // namespace kvtier::session
