// Whose turn it is on the copy thread.
#include "client/transfer/copy_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace kvtier::transfer {
namespace {

using Priority = CopyQueue::Priority;

// What the jobs did, in order, and how many have ended.
struct Record {
  void note(std::string what) {
    const std::lock_guard lock(mutex);
    notes.push_back(std::move(what));
  }
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex);
    return notes;
  }
  std::mutex mutex;
  std::vector<std::string> notes;
};

// Sets so many pieces under way, one a step, and then waits for them, one a step.
class PiecewiseJob final : public CopyJob {
 public:
  PiecewiseJob(Record& record, std::string name, int pieces)
      : record_(record), name_(std::move(name)), left_(pieces) {}
  Step step() noexcept override {
    if (left_ > 0) {
      record_.note(name_ + " sets under way");
      --left_;
      ++under_way_;
      return Step::more;
    }
    record_.note(name_ + " waits");
    return --under_way_ == 0 ? Step::done : Step::more;
  }
  bool all_under_way() const noexcept override { return left_ == 0 && under_way_ > 0; }
  void begin() noexcept override {
    if (left_ == 0 || under_way_ > 0) return;
    record_.note(name_ + " begins");
    --left_;
    ++under_way_;
  }
  void abandon() noexcept override { record_.note(name_ + " is abandoned"); }

 private:
  Record& record_;
  const std::string name_;
  int left_;
  int under_way_ = 0;
};

class CopyQueueTest : public ::testing::Test {
 protected:
  ~CopyQueueTest() override { queue.stop(); }
  void push(Priority priority, const std::string& name, int pieces) {
    ASSERT_TRUE(queue.push(priority, std::make_shared<PiecewiseJob>(record, name, pieces), 8));
  }
  void run() {
    queue.start();
    for (const Priority priority : {Priority::load, Priority::write_back})
      ASSERT_TRUE(queue.drain(priority, Clock::now() + std::chrono::seconds(60)));
  }
  Record record;
  CopyQueue queue;
};

TEST_F(CopyQueueTest, JobBehindBeginsBeforeTheOneInFrontIsWaitedFor) {
  push(Priority::write_back, "a", 2);
  push(Priority::write_back, "b", 2);
  run();
  EXPECT_EQ(record.all(),
            (std::vector<std::string>{"a sets under way", "a sets under way", "b begins", "a waits",
                                      "a waits", "b sets under way", "b waits", "b waits"}));
}

TEST_F(CopyQueueTest, JobOfAnotherPriorityDoesNotBeginBesideIt) {
  push(Priority::write_back, "a", 1);
  push(Priority::load, "b", 1);
  run();
  EXPECT_EQ(record.all(), (std::vector<std::string>{"b sets under way", "b waits",
                                                    "a sets under way", "a waits"}));
}

TEST_F(CopyQueueTest, WhatIsQueuedIsAbandonedInItsOrder) {
  push(Priority::write_back, "a", 1);
  push(Priority::write_back, "b", 1);
  queue.stop();
  EXPECT_EQ(record.all(), (std::vector<std::string>{"a is abandoned", "b is abandoned"}));
}

}  // namespace
}  // namespace kvtier::transfer
