// Blocks with more to their keys than tokens, in every way that a block comes back.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/daemon/support/kept_fixture.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

struct Stored {
  Namespace ns;
  std::vector<TestBlock> blocks;
};

std::vector<Stored> all_kinds() {
  const Namespace extra = namespace_with_extra("image"), digests = namespace_of_digests("digest");
  return {{extra, blocks_with_extra(extra, 6, 1, "a picture")},
          {extra, blocks_with_extra(extra, 6, 1, "another picture")},
          {digests, blocks_of_digests(digests, 6, 1)}};
}

void put_all(WireClient& client, const std::vector<Stored>& stored) {
  for (const Stored& of : stored) {
    const auto handle = client.open(of.ns);
    for (const TestBlock& block : of.blocks) ASSERT_TRUE(client.put(handle, of.ns, block));
  }
}

void expect_all(WireClient& client, const std::vector<Stored>& stored) {
  for (const Stored& of : stored)
    EXPECT_EQ(right_blocks(client, of.ns, of.blocks), of.blocks.size()) << of.ns.model;
}

TEST(ProofsOfMore, the_same_tokens_with_another_image_are_other_blocks) {
  const auto stored = all_kinds();
  for (std::size_t i = 0; i < stored[0].blocks.size(); ++i)
    EXPECT_NE(stored[0].blocks[i].key(), stored[1].blocks[i].key());
}

TEST(ProofsOfMore, come_back_from_kept_memory) {
  const auto stored = all_kinds();
  KeptDaemon daemon;
  daemon.start();
  {
    WireClient client = daemon.client();
    put_all(client, stored);
  }
  daemon.kill_and_start();
  WireClient client = daemon.client();
  expect_all(client, stored);
  EXPECT_EQ(memory_status(client).blocks[index_of(Tier::host)], 18U);
}

TEST(ProofsOfMore, come_back_from_disk_without_an_index) {
  const auto stored = all_kinds();
  const Scratch scratch;
  const std::filesystem::path disk = scratch / "disk";
  const std::string config = small_config(scratch) + disk_config(disk.string());
  const std::string socket = (scratch / "s").string();
  {
    Kvtierd daemon(scratch, config);
    WireClient client = WireClient::greeted(socket);
    put_all(client, stored);
    ASSERT_TRUE(client.flush());
  }
  std::filesystem::remove_all(disk / "index");
  Kvtierd daemon(scratch, config);
  WireClient client = WireClient::greeted(socket);
  const MemoryStatus before = memory_status(client);
  EXPECT_EQ(before.blocks[index_of(Tier::host)], 0U);
  EXPECT_EQ(before.blocks[index_of(Tier::disk)], 18U);
  expect_all(client, stored);
}

}  // namespace
}  // namespace kvtier::daemon::testing
