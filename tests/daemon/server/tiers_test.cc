// The tiers of a daemon, from their opening to their end, without anybody who is served.
#include "daemon/server/tiers.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "core/base/units.h"
#include "daemon/server/stop.h"
#include "tests/daemon/support/kvtierd_process.h"
#include "tests/daemon/support/records.h"

namespace kvtier::daemon::testing {
namespace {

class TiersTest : public ::testing::Test {
 protected:
  TiersTest() {
    config.index_blocks_max = 64;
    config.host = {4_MiB, 1_MiB, false, false};
    config.disk.directories = {scratch / "disk"};
    config.disk.capacity_bytes = 64_MiB;
    config.disk.segment_bytes = 1_MiB;
    EXPECT_TRUE(tiers.open(config));
    EXPECT_TRUE(tiers.take_memory().value().empty()) << "there is no earlier daemon";
    EXPECT_TRUE(tiers.recover());
  }
  void turn_until(const std::function<bool()>& done) {
    io.restart();
    const auto work = boost::asio::make_work_guard(io);
    while (!done()) io.run_one();
  }
  static constexpr ProcessId kWriter{100, 1};

  Scratch scratch;
  Config config;
  boost::asio::io_context io{1};
  PassedDescriptors passed;
  Tiers tiers{
      {[this](std::function<void()> task) { boost::asio::post(io, std::move(task)); },
       [](std::chrono::milliseconds, const std::function<void()>&) {}, [](const std::string&) {}},
      passed};
};

TEST_F(TiersTest, that_an_extent_has_gone_is_told_in_a_turn_of_its_own_and_its_memory_comes_back) {
  std::optional<storage::ExtentId> told;
  tiers.on_extent_gone = [&](storage::ExtentId id) { told = id; };
  BlockCache& cache = tiers.cache();
  const auto ns = cache.open_namespace(encode(small_namespace("m"))).value();
  const auto slots = cache.reserve(1, kWriter, ns, Tier::host, 1);
  ASSERT_EQ(slots.size(), 1U);
  EXPECT_EQ(cache.memory(Tier::host).taken_bytes(), 1_MiB);
  cache.abandon(1, slots[0]);
  tiers.set_host_cap(0);
  EXPECT_TRUE(cache.shrink());
  EXPECT_FALSE(told) << "who asked for it may be about to tell of a slot in it";
  turn_until([&] { return told && cache.memory(Tier::host).taken_bytes() == 0; });
  EXPECT_EQ(told->value, slots[0] >> 32);
  EXPECT_TRUE(tiers.backing().close());
}

TEST_F(TiersTest, a_stop_is_done_once_whether_everything_was_written_or_its_time_is_up) {
  int done = 0;
  bool closed = false;
  std::vector<std::string> said;
  Stop stop(io.get_executor(), tiers,
            {[&](const std::string& text) { said.push_back(text); },
             [&](bool all) {
               ++done;
               closed = all;
             }});
  stop.begin(std::chrono::milliseconds(0));
  turn_until([&] { return done > 0; });
  io.restart();
  io.run();
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(closed);
  EXPECT_EQ(said.back(), "Closing the disk tier");
}

}  // namespace
}  // namespace kvtier::daemon::testing
