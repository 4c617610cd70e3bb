// A daemon with two disk directories, as an operator and a client see it.
#include <fcntl.h>

#include <csignal>
#include <cstdio>
#include <fstream>

#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

struct DiskStatus {
  std::string directory, why;
  bool online;
  std::uint64_t blocks, used, written;
};

class ServerDisksTest : public ::testing::Test {
 protected:
  std::string config() const {
    return small_config(scratch) + "[disk]\ndirectories = ['" + directory('a').string() + "', '" +
           directory('b').string() +
           "']\ncapacity = '64MiB'\nsegment_size = '1MiB'\nscrub_mib_per_s = 0\n";
  }
  std::filesystem::path directory(char name) const { return scratch / std::string(1, name); }

  std::vector<DiskStatus> disks() {
    std::vector<DiskStatus> found;
    client.request(
        [](WireClient::Builder m) { m.setStatus(); },
        [&](WireClient::Reader m) {
          for (const auto disk : m.getStatusReply().getDisks()) {
            found.push_back({disk.getDirectory().cStr(), disk.getWhy().cStr(), disk.getOnline(),
                             disk.getBlocks(), disk.getUsedBytes(), disk.getBytesWritten()});
          }
        });
    return found;
  }
  void put_all(std::uint32_t handle) {
    for (const auto& block : blocks) ASSERT_TRUE(client.put(handle, ns, block));
    ASSERT_TRUE(client.flush());
  }
  void drop_host() {
    ASSERT_TRUE(client.request([](WireClient::Builder m) { m.initDrop().setTiers(2); }));
  }

  Scratch scratch;
  Kvtierd daemon{scratch, config()};
  WireClient client = WireClient::greeted((scratch / "s").string());
  const Namespace ns = small_namespace("m");
  const std::vector<TestBlock> blocks = prefix_of(id_of(ns), 20, 1);
};

TEST_F(ServerDisksTest, blocks_are_spread_shown_and_served) {
  const auto handle = client.open(ns);
  put_all(handle);
  const auto shown = disks();
  ASSERT_EQ(shown.size(), 2U);
  EXPECT_EQ(shown[0].directory, directory('a').string());
  for (const auto& disk : shown) {
    EXPECT_TRUE(disk.online) << disk.why;
    EXPECT_EQ(disk.blocks, 10U);
    EXPECT_EQ(disk.used, 10 * kRecordBytes);
    EXPECT_EQ(disk.written, 10 * kRecordBytes);
  }
  drop_host();
  EXPECT_EQ(client.look(handle, ns, blocks), std::vector(20, WireClient::Seen::right));
}

TEST_F(ServerDisksTest, a_scrub_checks_every_record_and_reports) {
  put_all(client.open(ns));
  std::uint64_t records = 0, corrupt = 0, passes = 0;
  const auto ask = [&](bool start) {
    client.request([&](WireClient::Builder m) { m.initScrub().setStart(start); },
                   [&](WireClient::Reader m) {
                     const auto report = m.getScrubReply();
                     passes = report.getPasses();
                     records = report.getLast().getRecords();
                     corrupt = report.getLast().getCorrupt();
                   });
  };
  ask(false);
  EXPECT_EQ(passes, 0U);
  ask(true);
  EXPECT_TRUE(comes_to_hold([&] { return ask(false), passes == 1; }));
  EXPECT_EQ(records, 20U);
  EXPECT_EQ(corrupt, 0U);
}

TEST_F(ServerDisksTest,
       after_the_indices_are_lost_blocks_are_orphans_until_their_namespace_is_opened) {
  put_all(client.open(ns));
  daemon.signal(SIGTERM);
  daemon.wait();
  for (const char name : {'a', 'b'}) std::filesystem::remove_all(directory(name) / "index");
  Kvtierd successor(scratch, config());
  client = WireClient::greeted((scratch / "s").string());
  const auto orphans = [&] {
    std::uint64_t count = 0;
    client.request([](WireClient::Builder m) { m.setStatus(); },
                   [&](WireClient::Reader m) { count = m.getStatusReply().getOrphans(); });
    return count;
  };
  EXPECT_EQ(orphans(), 20U);
  const auto handle = client.open(ns);
  EXPECT_EQ(orphans(), 0U);
  EXPECT_EQ(client.look(handle, ns, blocks), std::vector(20, WireClient::Seen::right));
}

TEST_F(ServerDisksTest, a_directory_that_disappears_takes_only_its_blocks_and_brings_them_back) {
  const auto handle = client.open(ns);
  put_all(handle);
  drop_host();
  std::filesystem::rename(directory('b'), scratch / "away");
  ASSERT_TRUE(comes_to_hold([&] { return !disks()[1].online; }));
  EXPECT_NE(disks()[1].why, "");
  EXPECT_TRUE(disks()[0].online);
  EXPECT_LT(client.look(handle, ns, blocks).size(), 20U);
  const auto more = prefix_of(id_of(ns), 6, 5000);
  for (const auto& block : more) ASSERT_TRUE(client.put(handle, ns, block));
  EXPECT_EQ(client.look(handle, ns, more), std::vector(6, WireClient::Seen::right));

  std::filesystem::rename(scratch / "away", directory('b'));
  ASSERT_TRUE(comes_to_hold([&] { return disks()[1].online; }));
  EXPECT_EQ(client.look(handle, ns, blocks), std::vector(20, WireClient::Seen::right));
}

TEST_F(ServerDisksTest, a_disk_that_cannot_be_used_at_the_start_comes_when_it_can) {
  put_all(client.open(ns));
  daemon.signal(SIGTERM);
  daemon.wait();
  const auto index = directory('b') / "index";
  std::filesystem::rename(index, scratch / "away");
  std::ofstream(index) << "not a directory";
  Kvtierd successor(scratch, config());
  client = WireClient::greeted((scratch / "s").string());
  const auto handle = client.open(ns);
  EXPECT_TRUE(disks()[0].online);
  EXPECT_FALSE(disks()[1].online);
  EXPECT_NE(disks()[1].why.find(index.string()), std::string::npos) << disks()[1].why;
  EXPECT_LT(client.look(handle, ns, blocks).size(), 20U);
  EXPECT_FALSE(client.request([](WireClient::Builder m) { m.initDrop().setTiers(4); }));
  ASSERT_TRUE(client.error());
  EXPECT_NE(client.error()->message.find(directory('b').string()), std::string::npos)
      << client.error()->message;

  // At once: a store that found no index would rebuild it.
  ASSERT_EQ(
      ::renameat2(AT_FDCWD, (scratch / "away").c_str(), AT_FDCWD, index.c_str(), RENAME_EXCHANGE),
      0);
  ASSERT_TRUE(comes_to_hold([&] { return disks()[1].online; }));
  EXPECT_EQ(client.look(handle, ns, blocks), std::vector(20, WireClient::Seen::right));
}

}  // namespace
}  // namespace kvtier::daemon::testing
