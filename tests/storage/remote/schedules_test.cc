// Servers that are killed, stopped, continued, filled and slow, in schedules by chance, while
// records are read, written, found and erased: each is answered by its deadline, and what is served
// is right.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/storage/remote/support/redis_server.h"
#include "tests/storage/remote/support/remote_parts.h"

namespace kvtier::storage::testing {
namespace {

using std::chrono::milliseconds;

class Schedule {
 public:
  Schedule(RedisServer& server, unsigned seed)
      : server_(server), random_(seed), store_(server.url()) {}

  void run(int steps) {
    store_.wait_for(RemoteState::online);
    for (int i = 0; i < steps; ++i) {
      disturb();
      for (int load = 0; load < 12; ++load) act();
      settle();
    }
    mend();
    const TestRecord last(0, 999'999);
    EXPECT_TRUE(store_.brings([&] { return bool(store_.write(last)); }));
    EXPECT_TRUE(store_.brings([&] { return bool(store_.read(last)); }));
    store_.control().run_until([&] { return asked_ == answered_; });
    EXPECT_EQ(asked_, answered_);
  }

 private:
  enum class Is { up, stopped, dead };

  void disturb() {
    switch (random_() % 7) {
      case 0:
        server_.kill();
        is_ = Is::dead;
        break;
      case 1:
        if (is_ == Is::up) {
          server_.stop();
          is_ = Is::stopped;
        }
        break;
      case 2:
        if (is_ == Is::up)
          server_.say({"CONFIG", "SET", "maxmemory", random_() % 2 == 0 ? "1" : "0"});
        break;
      case 3:
        // One command that holds up all others.
        if (is_ == Is::up) server_.say({"DEBUG", "SLEEP", "0.04"});
        break;
      default:
        mend();
    }
  }
  void mend() {
    if (is_ == Is::dead) server_.start();
    if (is_ == Is::stopped) server_.go_on();
    is_ = Is::up;
    server_.say({"CONFIG", "SET", "maxmemory", "0"});
  }

  void act() {
    const auto number = static_cast<std::uint32_t>(random_() % 40);
    const auto slot = static_cast<std::uint32_t>(random_() % TestRemote::kSlots);
    if (busy_.contains(slot)) return;
    const TestRecord record(number % kKinds, number);
    const auto deadline = milliseconds(1 + random_() % 120);
    const auto until = Clock::now() + deadline;
    const auto in_time = [until] { EXPECT_LT(Clock::now(), until + std::chrono::seconds(5)); };
    const auto begin = [&] { busy_.insert(slot); };
    switch (random_() % 8) {
      case 0:
        store_->erase({record.identity.key});
        break;
      case 1:
        if (store_->find({record.identity.key}, until, [=, this](const Result<std::size_t>&) {
              ++answered_;
              in_time();
            })) {
          ++asked_;
        }
        break;
      case 2:
      case 3:
      case 4:
        begin();
        if (store_->write(store_.write_of(record, slot), [=, this](const Result<void>&) {
              ++answered_;
              busy_.erase(slot);
            })) {
          ++asked_;
        } else {
          busy_.erase(slot);
        }
        break;
      default:
        begin();
        std::ranges::fill(store_.slot(slot), std::byte{0xEE});
        if (store_->read(
                store_.read_of(record, slot, deadline), [=, this](const Result<void>& read) {
                  ++answered_;
                  in_time();
                  EXPECT_TRUE(!read || record.equals(store_.slot(slot)));
                  EXPECT_TRUE(read || read.error().code != Errc::corrupt) << read.error().message;
                  // Nothing lands here any more: what was late would be seen by the next read of
                  // it.
                  busy_.erase(slot);
                })) {
          ++asked_;
        } else {
          busy_.erase(slot);
        }
    }
  }

  // What was begun is answered, writes within their own time.
  void settle() {
    if (random_() % 3 == 0) store_.control().run_until([&] { return asked_ == answered_; });
  }

  RedisServer& server_;
  std::mt19937 random_;
  TestRemote store_;
  Is is_ = Is::up;
  std::size_t asked_ = 0, answered_ = 0;
  std::set<std::uint32_t> busy_;
};

void run_schedules(unsigned first, unsigned count, int steps) {
  for (unsigned seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RedisServer server({.more = {"--enable-debug-command", "yes"}});
    Schedule(server, seed).run(steps);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RemoteSchedules, EveryReadEndsByItsDeadlineRightOrCounted) {
  KVTIER_NEEDS_REDIS();
  run_schedules(1, 3, 10);
}

TEST(RemoteSchedulesSlow, OfTwoHundred) {
  KVTIER_NEEDS_REDIS();
  run_schedules(100, 200, 12);
}

}  // namespace
}  // namespace kvtier::storage::testing
