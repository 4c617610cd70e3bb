// What the tiers stand on, with real memory and real directories.
#include "daemon/server/tier_backing.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "core/base/units.h"
#include "tests/daemon/support/kvtierd_process.h"

namespace kvtier::daemon::testing {
namespace {

class TierBackingTest : public ::testing::Test {
 protected:
  TierBackingTest() {
    config.host = {4_MiB, 1_MiB, false, false};
    config.device = {{1_MiB, 256_KiB, false, false}, DeviceBackend::memory, {0, 5}};
    config.disk.directories = {scratch / "a", scratch / "b"};
    config.disk.capacity_bytes = 64_MiB;
    config.disk.segment_bytes = 1_MiB;
  }
  std::unique_ptr<storage::Extent> extent(storage::MemoryExtents& of, std::uint32_t id) {
    return of.create(storage::ExtentId(id), {1_MiB, 8_KiB}).value();
  }
  // Runs what the control thread is asked to, until `done`.
  void turn_until(const bool& done) {
    io.restart();
    const auto work = boost::asio::make_work_guard(io);
    while (!done) io.run_one();
  }

  Scratch scratch;
  Config config;
  boost::asio::io_context io{1};
  std::vector<std::string> progress;
  Disposal disposal;
  TierBacking backing{
      {[this](std::function<void()> task) { boost::asio::post(io, std::move(task)); },
       [](std::chrono::milliseconds, const std::function<void()>&) {},
       [this](const std::string& text) { progress.push_back(text); }},
      disposal};
};

TEST_F(TierBackingTest, each_part_of_a_tier_has_the_name_that_the_configuration_gave_it) {
  ASSERT_TRUE(backing.open(config));
  ASSERT_EQ(backing.gpus().size(), 2U);
  ASSERT_EQ(backing.disks().size(), 2U);
  EXPECT_EQ(backing.name_of_part(Tier::device, 1), "GPU 5 (memory)");
  EXPECT_EQ(backing.name_of_part(Tier::disk, 1), (scratch / "b").string());
  EXPECT_EQ(backing.name_of_part(Tier::host, 0), "host memory");
  EXPECT_EQ(backing.segments_bytes() % 1_MiB, 0U);
  EXPECT_LT(backing.segments_bytes(), 64_MiB) << "the index has its part";
  EXPECT_EQ(progress.size(), 2U) << "each directory is said to be opened";
  EXPECT_TRUE(backing.close());
}

TEST_F(TierBackingTest, more_segments_than_a_place_can_name_are_refused) {
  config.disk.capacity_bytes = 1ULL << 60;
  EXPECT_EQ(backing.open(config).error().code, Errc::invalid);
}

TEST_F(TierBackingTest, an_extent_goes_when_every_disk_has_let_go_of_it) {
  ASSERT_TRUE(backing.open(config));
  auto of_host = extent(backing.host(), 1);
  backing.register_extent(*of_host);
  bool gone = false;
  backing.dispose(std::move(of_host), [&] { gone = true; });
  EXPECT_FALSE(gone) << "never at once: whoever disposes is in the middle of something";
  turn_until(gone);
  bool device_gone = false;
  backing.dispose(extent(*backing.gpus()[0].extents, 2), [&] { device_gone = true; });
  turn_until(device_gone);
  EXPECT_TRUE(backing.close());
}

}  // namespace
}  // namespace kvtier::daemon::testing
