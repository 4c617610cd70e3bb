// What is in memory survives the daemon, and what of it has no place in the next one goes.
#include <chrono>
#include <random>

#include "core/base/units.h"
#include "daemon/limits.h"
#include "daemon/restart/kept_state.h"
#include "tests/daemon/support/kept_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using storage::SlotState;
using Builder = WireClient::Builder;
using Reader = WireClient::Reader;

constexpr std::initializer_list<Tier> kBoth = {Tier::host, Tier::device};
constexpr std::size_t kSlotsPerExtent = 1_MiB / kRecordBytes;

class KeptExtents : public ::testing::Test {
 protected:
  std::vector<TestBlock> prefix(std::size_t blocks, Token first) const {
    return prefix_of(id_of(ns), blocks, first);
  }
  void put(WireClient& client, std::span<const TestBlock> blocks,
           std::initializer_list<Tier> tiers = {Tier::host}) {
    const std::uint32_t handle = client.open(ns);
    for (const TestBlock& block : blocks) ASSERT_TRUE(client.put(handle, ns, block, tiers));
  }
  std::size_t right(std::span<const TestBlock> blocks) {
    WireClient client = daemon.client();
    return right_blocks(client, ns, blocks);
  }
  MemoryStatus status() {
    WireClient client = daemon.client();
    return memory_status(client);
  }
  std::uint32_t extent_of(std::span<const TestBlock> blocks) {
    WireClient client = daemon.client();
    const auto slots = client.lease(client.open(ns), blocks);
    return slots.empty() ? 0 : static_cast<std::uint32_t>(slots[0] >> 32);
  }

  KeptDaemon daemon;
  const Namespace ns = small_namespace("kept");
};

TEST_F(KeptExtents, blocks_in_host_and_device_memory_survive_a_killed_daemon_without_a_disk) {
  daemon.start();
  const auto in_host = prefix(20, 1), in_both = prefix(20, 1000);
  {
    WireClient client = daemon.client();
    put(client, in_host);
    put(client, in_both, kBoth);
  }
  for (int generation = 0; generation < 3; ++generation) {
    daemon.kill_and_start();
    WireClient client = daemon.client();
    EXPECT_EQ(right_blocks(client, ns, in_host), 20U);
    EXPECT_EQ(right_blocks(client, ns, in_both), 20U);
    const MemoryStatus status = memory_status(client);
    EXPECT_EQ(status.hits[index_of(Tier::host)], 20U);
    EXPECT_EQ(status.hits[index_of(Tier::device)], 20U);
    EXPECT_EQ(status.cap_bytes[index_of(Tier::disk)], 0U) << "there is no disk tier";
    EXPECT_EQ(status.bytes[index_of(Tier::host)], 40 * kRecordBytes);
    EXPECT_EQ(status.bytes[index_of(Tier::device)], 20 * kRecordBytes);
    EXPECT_EQ(status.index, 40U);
    EXPECT_EQ(daemon.slots(SlotState::sealed), 60U);
  }
  daemon.stop();
  daemon.start();
  EXPECT_EQ(right(in_both), 20U) << "nor after an orderly restart";
}

TEST_F(KeptExtents, a_namespace_that_is_only_in_memory_is_still_known_by_what_it_is) {
  daemon.start();
  {
    WireClient client = daemon.client();
    put(client, prefix(2, 1));
    client.open(small_namespace("empty"));
  }
  daemon.kill_and_start();
  WireClient client = daemon.client();
  std::vector<std::vector<std::byte>> encodings;
  ASSERT_TRUE(client.request([](Builder m) { m.initList().setNamespacesMax(100); },
                             [&](Reader m) {
                               for (const auto of : m.getListReply().getNamespaces()) {
                                 const auto* first =
                                     reinterpret_cast<const std::byte*>(of.getEncoded().begin());
                                 encodings.emplace_back(first, first + of.getEncoded().size());
                               }
                             }));
  // One that has no blocks is forgotten, so that there is room for others.
  ASSERT_EQ(encodings.size(), 1U);
  EXPECT_EQ(encodings[0], encode(ns));
}

// The state is written on and on, and has room for some eight thousand of this size: those that had
// come and gone took it from those that are there.
TEST_F(KeptExtents, namespaces_that_have_gone_take_no_room_from_those_that_are_there) {
  constexpr std::size_t kMoreThanFit = 8'500;
  const KeptSizes sizes{.device = "0", .more = "[limits]\nrequests_per_second = 10000000\n"};
  daemon.start(sizes);
  Namespace large = small_namespace("");
  large.adapter = large.tenant = large.positions = std::string(1024, 'a');
  for (std::size_t made = 0; made < kMoreThanFit;) {
    WireClient client = daemon.client();
    for (std::uint32_t i = 0; i < limits::kNamespacesPerSessionMax; ++i, ++made) {
      large.model = std::string(1000, 'm') + std::to_string(made);
      const auto handle = client.open(large);
      ASSERT_TRUE(client.put(handle, large, prefix_of(id_of(large), 1, 1)[0])) << made;
    }
  }
  daemon.kill_and_start(sizes);
  WireClient client = daemon.client();
  EXPECT_GT(memory_status(client).blocks[index_of(Tier::host)], 100U);
  std::uint64_t not_known = 1;
  ASSERT_TRUE(client.request([](Builder m) { m.setStatus(); },
                             [&](Reader m) { not_known = m.getStatusReply().getOrphans(); }));
  EXPECT_EQ(not_known, 0U);
}

TEST_F(KeptExtents, an_extent_leaves_the_store_when_it_is_forgotten_and_its_id_never_comes_back) {
  daemon.start({.host = "'1MiB'", .device = "0"});
  const auto narrow = prefix(kSlotsPerExtent, 1);
  {
    WireClient client = daemon.client();
    put(client, narrow);
  }
  const std::uint32_t first = extent_of(narrow);
  const Namespace wide = small_namespace("wide", true);
  const auto others = prefix_of(id_of(wide), 2, 1);
  {
    WireClient client = daemon.client();
    const std::uint32_t handle = client.open(wide);
    ASSERT_TRUE(client.put(handle, wide, others[0]));
  }
  daemon.kill();
  EXPECT_EQ(daemon.manager.names("extent-").size(), 1U);
  EXPECT_EQ(daemon.manager.names("slots-").size(), 1U);
  EXPECT_FALSE(daemon.manager.holds("extent-" + std::to_string(first)));
  // Without any extent the numbers go on all the same.
  for (const std::string& name : daemon.manager.names("extent-")) daemon.manager.remove(name);
  daemon.start({.host = "'1MiB'", .device = "0"});
  {
    WireClient client = daemon.client();
    put(client, std::span(narrow).first(1));
  }
  EXPECT_GT(extent_of(std::span(narrow).first(1)), first + 1);
  EXPECT_TRUE(daemon.said("only a part of it was kept"));
  daemon.kill();
  EXPECT_EQ(daemon.manager.names("slots-").size(), 1U);
}

TEST_F(KeptExtents, what_was_used_last_is_evicted_last_also_after_a_restart) {
  const KeptSizes one{.host = "'1MiB'", .device = "0"};
  daemon.start(one);
  const std::size_t half = kSlotsPerExtent / 2;
  const auto old = prefix(half, 1), newer = prefix(half, 10'000), fresh = prefix(half, 20'000);
  {
    WireClient client = daemon.client();
    put(client, old);
    put(client, newer);
    EXPECT_EQ(right_blocks(client, ns, old), half);  // used again
  }
  daemon.kill_and_start(one);
  {
    WireClient client = daemon.client();
    put(client, std::span(fresh).first(half - 1));
  }
  EXPECT_EQ(right(old), half);
  EXPECT_EQ(right(newer), 1U) << "the tail of a prefix goes before its head";
}

TEST_F(KeptExtents, a_lower_cap_discards_what_was_used_longest_ago) {
  daemon.start({.device = "0"});
  std::vector<std::vector<TestBlock>> prefixes;
  for (Token n = 0; n < 4; ++n) prefixes.push_back(prefix(kSlotsPerExtent, 1 + 10'000 * n));
  {
    WireClient client = daemon.client();
    for (const auto& blocks : prefixes) put(client, blocks);
    EXPECT_EQ(right_blocks(client, ns, prefixes[0]), kSlotsPerExtent);
  }
  daemon.kill_and_start({.host = "'2MiB'", .device = "0"});
  EXPECT_EQ(right(prefixes[0]), kSlotsPerExtent);
  EXPECT_EQ(right(prefixes[1]), 0U);
  EXPECT_EQ(right(prefixes[2]), 0U);
  EXPECT_EQ(right(prefixes[3]), kSlotsPerExtent);
  EXPECT_EQ(status().taken_bytes[index_of(Tier::host)], 2_MiB);
  EXPECT_TRUE(daemon.said("the host tier's capacity has no room for it any more"));
  daemon.kill();
  EXPECT_EQ(daemon.manager.names("extent-").size(), 2U);
  // Raised again, there is room for what comes, and nothing has come back.
  daemon.start({.device = "0"});
  EXPECT_EQ(right(prefixes[1]), 0U);
  EXPECT_EQ(right(prefixes[3]), kSlotsPerExtent);
}

TEST_F(KeptExtents, a_smaller_index_keeps_what_was_used_last) {
  daemon.start({.device = "0"});
  const auto old = prefix(100, 1), newer = prefix(100, 10'000);
  {
    WireClient client = daemon.client();
    put(client, old);
    put(client, newer);
    EXPECT_EQ(right_blocks(client, ns, newer), 100U);
  }
  daemon.kill_and_start({.device = "0", .blocks_max = 100});
  EXPECT_EQ(right(newer), 100U);
  EXPECT_EQ(right(old), 0U);
  EXPECT_EQ(daemon.slots(SlotState::sealed), 100U);
}

TEST_F(KeptExtents, a_tier_and_a_gpu_that_are_not_configured_any_more_are_given_up) {
  daemon.start({.gpus = "[0, 5]"});
  const auto blocks = prefix(8, 1);
  {
    WireClient client = daemon.client();
    put(client, blocks, kBoth);
  }
  daemon.kill_and_start({.gpus = "[5, 0]"});  // the same cards under other numbers
  EXPECT_EQ(status().blocks[index_of(Tier::device)], 0U);
  EXPECT_EQ(right(blocks), 8U) << "from the host tier";
  EXPECT_TRUE(daemon.said("[device] gpus has not GPU-00000000-0000-0000-0000-000000000000"));
  {
    WireClient client = daemon.client();
    put(client, prefix(8, 500), kBoth);
  }
  daemon.kill_and_start({.device = "0"});
  EXPECT_EQ(status().taken_bytes[index_of(Tier::device)], 0U);
  EXPECT_EQ(right(blocks), 8U);
  daemon.kill();
  EXPECT_EQ(daemon.manager.names("extent-").size(), 1U);
}

TEST_F(KeptExtents, extents_of_another_size_than_is_configured_now_are_kept) {
  daemon.start({.device = "0"});
  const auto blocks = prefix(8, 1);
  {
    WireClient client = daemon.client();
    put(client, blocks);
  }
  daemon.kill_and_start({.device = "0", .extent = "'2MiB'"});
  EXPECT_EQ(right(blocks), 8U);
  EXPECT_EQ(status().taken_bytes[index_of(Tier::host)], 1_MiB);
}

TEST_F(KeptExtents, a_table_with_any_field_of_its_header_damaged_is_discarded_and_named) {
  std::string name;
  for (std::size_t at = 0; at < sizeof(storage::SlotTableHeader); at += 4) {
    daemon.start({.device = "0"});
    const auto blocks = prefix(4, static_cast<Token>(1 + at));
    {
      WireClient client = daemon.client();
      put(client, blocks);
    }
    daemon.kill();
    ASSERT_EQ(daemon.manager.names("slots-").size(), 1U);
    name = daemon.manager.names("slots-")[0];
    const std::uint32_t damage = 0x5A5A5A5A;
    ASSERT_EQ(::pwrite(daemon.manager.fd(name), &damage, sizeof damage, static_cast<off_t>(at)), 4);
    daemon.start({.device = "0"});
    EXPECT_EQ(right(blocks), 0U) << at;
    EXPECT_EQ(status().index, 0U);
    EXPECT_TRUE(daemon.said("extent " + name.substr(6) + " of an earlier kvtierd is discarded"));
    daemon.kill();
    EXPECT_TRUE(daemon.manager.names("extent-").empty());
  }
}

TEST_F(KeptExtents, tables_with_random_damage_never_serve_a_wrong_byte) {
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    daemon.start();
    std::vector<std::vector<TestBlock>> prefixes;
    for (Token n = 0; n < 6; ++n)
      prefixes.push_back(prefix(12, 1 + 1000 * n + 100'000 * static_cast<Token>(round)));
    {
      WireClient client = daemon.client();
      for (const auto& blocks : prefixes) put(client, blocks, kBoth);
    }
    daemon.kill();
    for (const std::string& name : daemon.manager.names("slots-")) {
      for (int n = 0; n < 1 << (round % 6); ++n) {
        // Not the states: a table with one that is none is discarded as a whole.
        const std::size_t slot = random() % kSlotsPerExtent;
        const std::size_t within = 4 + random() % 84;
        const auto byte = static_cast<unsigned char>(random());
        const std::size_t at = sizeof(storage::SlotTableHeader) + slot * 128 + within;
        ASSERT_EQ(::pwrite(daemon.manager.fd(name), &byte, 1, static_cast<off_t>(at)), 1);
      }
    }
    daemon.start();
    WireClient client = daemon.client();
    const std::uint32_t handle = client.open(ns);
    for (const auto& blocks : prefixes) {
      for (const auto& block : blocks) (void)client.put(handle, ns, block, kBoth);
      (void)right_blocks(client, ns, blocks);  // expects no wrong one
    }
    const MemoryStatus after = memory_status(client);
    EXPECT_EQ(daemon.slots(SlotState::sealed), after.blocks[0] + after.blocks[1]);
    daemon.kill();
  }
}

TEST_F(KeptExtents, without_its_state_a_daemon_keeps_memory_but_not_its_name) {
  daemon.start();
  const auto blocks = prefix(5, 1);
  {
    WireClient client = daemon.client();
    put(client, blocks);
  }
  const std::uint32_t extent = extent_of(blocks);
  const auto lineage = [&] {
    std::string name;
    WireClient client(daemon.socket());
    client.request([](Builder m) { m.initHello().setVersion(wire::kProtocolVersion); },
                   [&](Reader m) {
                     const auto data = m.getWelcome().getLineage();
                     name.assign(reinterpret_cast<const char*>(data.begin()), data.size());
                   });
    return name;
  };
  const std::string before = lineage();
  EXPECT_EQ(before.size(), sizeof(Lineage));
  daemon.kill_and_start();
  EXPECT_EQ(lineage(), before);
  daemon.kill();
  ASSERT_EQ(daemon.manager.names("state-").size(), 1U);
  const std::uint32_t damage = 0;
  ASSERT_EQ(::pwrite(daemon.manager.fd(daemon.manager.names("state-")[0]), &damage, 4, 12), 4);
  daemon.start();
  EXPECT_NE(lineage(), before);
  EXPECT_EQ(right(blocks), 5U);
  EXPECT_EQ(extent_of(blocks), extent);
  daemon.kill();
  EXPECT_EQ(daemon.manager.names("state-").size(), 1U);
}

TEST_F(KeptExtents, a_manager_that_keeps_little_loses_extents_and_nothing_else) {
  daemon.manager.set_most(3);  // the state and one extent
  daemon.start({.device = "0"});
  const auto first = prefix(kSlotsPerExtent, 1), second = prefix(20, 10'000);
  {
    WireClient client = daemon.client();
    put(client, first);
    put(client, second);
  }
  daemon.kill_and_start({.device = "0"});
  EXPECT_EQ(right(first), kSlotsPerExtent);
  EXPECT_EQ(right(second), 0U);
}

TEST_F(KeptExtents, two_daemons_never_have_the_same_extents) {
  daemon.start();
  {
    WireClient client = daemon.client();
    put(client, prefix(3, 1));
  }
  daemon.manager.settle();
  // A second one is passed them while the first lives.
  Kvtierd second(daemon.scratch, "socket = '" + (daemon.scratch / "other").string() + "'\n", "",
                 &daemon.manager);
  const int status = second.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  EXPECT_NE(second.output().find("another kvtierd (pid " + std::to_string(daemon.process().pid())),
            std::string::npos);
  EXPECT_EQ(right(prefix(3, 1)), 3U);
}

// From the start of the process to the bytes in a client's hands.
void measure_first_hit(KeptDaemon& daemon, std::uint64_t gib, const Namespace& ns) {
  const std::uint64_t record = RecordLayout::of(ns).record_bytes;
  const std::size_t blocks = (gib << 30) / record;
  const KeptSizes sizes{.host = "'" + std::to_string(gib + 1) + "GiB'",
                        .device = "0",
                        .extent = "'1GiB'",
                        .blocks_max = 1U << 20};
  daemon.start(sizes);
  const auto prefix = prefix_of(id_of(ns), blocks, 1);
  {
    WireClient client = daemon.client();
    const std::uint32_t handle = client.open(ns);
    for (const TestBlock& block : prefix) ASSERT_TRUE(client.put(handle, ns, block));
  }
  daemon.kill();
  const auto begin = std::chrono::steady_clock::now();
  daemon.start(sizes);
  WireClient client = daemon.client();
  ASSERT_EQ(right_blocks(client, ns, std::span(prefix).first(16)), 16U);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("first hit with %zu records (%llu GiB): %.3f s\n", blocks,
              static_cast<unsigned long long>(gib), took.count());
  EXPECT_EQ(memory_status(client).index, blocks);
  EXPECT_EQ(right_blocks(client, ns, std::span(prefix).last(16)), 16U);
}

Namespace large_records() {
  Namespace ns = small_namespace("large");
  ns.layers = 16;
  ns.kv_heads = 8;
  ns.head_dim_k = ns.head_dim_v = 64;
  return ns;
}

TEST_F(KeptExtents, the_first_hit_comes_soon_after_the_start) {
  measure_first_hit(daemon, 1, large_records());
}

// By hand: KVTIER_FIRST_HIT_GIB=8.
TEST_F(KeptExtents, slow_first_hit_with_as_much_as_asked_for) {
  const char* gib = std::getenv("KVTIER_FIRST_HIT_GIB");
  if (gib == nullptr) GTEST_SKIP() << "KVTIER_FIRST_HIT_GIB is not set";
  measure_first_hit(daemon, std::strtoull(gib, nullptr, 10), large_records());
}

}  // namespace
}  // namespace kvtier::daemon::testing
