#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

class LeaseTest : public ClientTest {
 protected:
  const std::vector<Token> prompt = prompt_of(64 + 1);  // four blocks may be leased
};

TEST_F(LeaseTest, BlocksAreLoadedAsTheyWereStored) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, cache->match(prompt).blocks, soon());
  ASSERT_TRUE(lease);
  ASSERT_EQ(lease->blocks(), 4U);
  EXPECT_EQ(lease->source(0), Tier::host);
  EXPECT_EQ(lease->wait_ready(soon()), 4U);
  RecordPages pages(4, layout.record_bytes);
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  EXPECT_EQ(load->blocks(), 4U);
  EXPECT_TRUE(load->faults().empty());
  EXPECT_EQ(load->finish(), 4U);
  for (unsigned i = 0; i < 4; ++i) {
    const auto slot = daemon.slot(daemon.slot_name(Tier::host, i));
    EXPECT_EQ(std::memcmp(pages.memory[i].data(), slot.data(), layout.record_bytes), 0);
  }
  const auto stats = client->stats();
  EXPECT_EQ(stats.blocks_looked_up, 4U);
  EXPECT_EQ(stats.hits[index_of(Tier::host)], 4U);
  EXPECT_EQ(stats.misses, 0U);
}

TEST_F(LeaseTest, AnEmptyLeaseAsksTheDaemonNothing) {
  start_connected();
  auto lease = cache->lease(prompt, 0, soon());
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->blocks(), 0U);
  EXPECT_EQ(lease->wait_ready(soon()), 0U);
  EXPECT_EQ(client->stats().misses, 4U);
  EXPECT_FALSE(daemon.with([](auto& s) { return s.seen.contains(Which::LEASE); }));
}

TEST_F(LeaseTest, NeverMoreThanTheMatchableBlocksAreLeased) {
  const auto exact = prompt_of(64);
  cache_prompt(exact);
  start_connected();
  const auto lease = cache->lease(exact, 4, soon());
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->blocks(), 3U);
}

TEST_F(LeaseTest, ALateReplyIsReleasedAtOnce) {
  cache_prompt(prompt);
  daemon.with([](auto& s) { s.ignored = {Which::LEASE}; });
  start_connected();
  EXPECT_EQ(cache->lease(prompt, 4, in(milliseconds(20))).error().code, Errc::deadline);
  daemon.answer_ignored();
  EXPECT_TRUE(
      daemon.eventually([](const auto& s) { return s.released == std::vector<std::uint64_t>{1}; }));
  EXPECT_EQ(daemon.with([](auto& s) { return s.usable; }),
            (std::map<std::uint64_t, std::uint32_t>{{1, 0}}));
}

TEST_F(LeaseTest, AReleaseSaysHowManyBlocksWereOfUseWhereOneDidNotHold) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  daemon.slot(daemon.slot_name(Tier::host, 2))[offsetof(RecordHeader, key)] ^= std::byte{1};
  RecordPages pages(4, layout.record_bytes);
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  EXPECT_EQ(load->finish(), 2U);
  lease->release();
  EXPECT_TRUE(daemon.eventually([](const auto& s) {
    return s.usable == std::map<std::uint64_t, std::uint32_t>{{1, 2}};
  }));
}

TEST_F(LeaseTest, ALeaseIsReleasedOnceHoweverOftenItIsAskedFor) {
  cache_prompt(prompt);
  start_connected();
  {
    auto lease = cache->lease(prompt, 4, soon());
    ASSERT_TRUE(lease);
    lease->release();
    lease->release();
    EXPECT_FALSE(lease->held());
    Lease moved = std::move(*lease);
    moved.release();
    lease->release();
    *lease = std::move(moved);
  }
  ASSERT_TRUE(client->flush(soon()));
  EXPECT_EQ(daemon.with([](auto& s) { return s.released; }), std::vector<std::uint64_t>{1});
}

TEST_F(LeaseTest, ALeaseOfAnEndedConnectionIsNotReleasedOnTheNext) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  daemon.hang_up();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.connections == 2; }));
  ASSERT_TRUE(client->wait_connected(soon()));
  EXPECT_FALSE(lease->held());
  lease->release();
  ASSERT_TRUE(client->flush(soon()));
  EXPECT_TRUE(daemon.with([](auto& s) { return s.released.empty(); }));
}

TEST_F(LeaseTest, ALeaseLostDuringItsCopyIsWorthNothing) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  RecordPages pages(4, layout.record_bytes);
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  daemon.hang_up();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.connections == 2; }));
  EXPECT_EQ(load->finish(), 0U);
  EXPECT_EQ(load->finish(), 0U);
  EXPECT_EQ(client->stats().leases_lost, 1U);
  EXPECT_EQ(lease->load_into(pages.pages()).error().code, Errc::stale);
}

TEST_F(LeaseTest, AReleaseWaitsForTheCopiesOutOfTheLease) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  RecordPages pages(4, layout.record_bytes);
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  lease->release();
  ASSERT_TRUE(client->flush(soon()));
  EXPECT_TRUE(daemon.with([](auto& s) { return s.released.empty(); }));
  EXPECT_EQ(load->finish(), 4U);
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.released.size() == 1; }));
}

TEST_F(LeaseTest, BlocksFromDiskAreReadyWhenTheDaemonSaysSo) {
  cache_prompt(prompt);
  const auto chain = keys(prompt);
  daemon.publish(chain[2], TierSet{}.with(Tier::disk), 0);
  daemon.publish(chain[3], TierSet{}.with(Tier::disk), 0);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  ASSERT_EQ(lease->blocks(), 4U);
  EXPECT_EQ(lease->source(3), Tier::disk);
  EXPECT_EQ(lease->wait_ready(in(milliseconds(1))), 2U);
  daemon.send_ready(1, {3}, {daemon.slot_name(Tier::host, 3)});
  daemon.send_ready(1, {2}, {daemon.slot_name(Tier::host, 2)});
  EXPECT_EQ(lease->wait_ready(soon()), 4U);
  RecordPages pages(4, layout.record_bytes);
  EXPECT_EQ(lease->load_into(pages.pages())->finish(), 4U);
  EXPECT_TRUE(payload_is(pages.memory[3], 4));
}

TEST_F(LeaseTest, ABlockThatTheDaemonCannotBringEndsTheRun) {
  cache_prompt(prompt);
  daemon.publish(keys(prompt)[1], TierSet{}.with(Tier::disk), 0);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  daemon.send_ready(1, {1}, {0});
  EXPECT_EQ(lease->wait_ready(soon()), 1U);
  RecordPages pages(4, layout.record_bytes);
  auto load = lease->load_into(pages.pages());
  ASSERT_EQ(load->faults().size(), 1U);
  EXPECT_EQ(load->faults()[0].block, 1U);
  EXPECT_EQ(load->faults()[0].error.code, Errc::io);
  EXPECT_EQ(load->finish(), 1U);
}

TEST_F(LeaseTest, AClosedConnectionWakesWhoWaitsForTheDisk) {
  for (const Key& key : keys(prompt)) daemon.publish(key, TierSet{}.with(Tier::disk), 0);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  std::uint32_t ready = 9;
  std::thread waiter([&] { ready = lease->wait_ready(soon()); });
  daemon.hang_up();
  waiter.join();
  EXPECT_EQ(ready, 0U);
  EXPECT_EQ(client->stats().deadlines_missed, 0U);
}

TEST_F(LeaseTest, AWrongBlockIsAFaultAndReportedNotServed) {
  struct Case {
    const char* what;
    std::size_t offset;
  };
  for (const Case c :
       {Case{"magic", offsetof(RecordHeader, magic)},
        Case{"sizes", offsetof(RecordHeader, record_bytes)},
        Case{"namespace", offsetof(RecordHeader, ns)}, Case{"key", offsetof(RecordHeader, key)},
        Case{"parent", offsetof(RecordHeader, parent)},
        Case{"place", offsetof(RecordHeader, block_index)},
        Case{"proof", layout.proof_offset + 5}}) {
    SCOPED_TRACE(c.what);
    cache_prompt(prompt);
    daemon.slot(daemon.slot_name(Tier::host, 2))[c.offset] ^= std::byte{1};
    daemon.with([](auto& s) { s.bad_keys.clear(); });
    start_connected();
    auto lease = cache->lease(prompt, 4, soon());
    ASSERT_TRUE(lease);
    RecordPages pages(4, layout.record_bytes);
    auto load = lease->load_into(pages.pages());
    ASSERT_TRUE(load);
    ASSERT_EQ(load->faults().size(), 1U);
    EXPECT_EQ(load->faults()[0].block, 2U);
    EXPECT_EQ(load->faults()[0].error.code, Errc::corrupt);
    EXPECT_EQ(load->finish(), 2U);
    EXPECT_TRUE(payload_is(pages.memory[2], 0));
    EXPECT_EQ(client->stats().faults, 1U);
    const Key bad = keys(prompt)[2];
    EXPECT_TRUE(
        daemon.eventually([&](const auto& s) { return s.bad_keys == std::vector<Key>{bad}; }));
  }
}

TEST_F(LeaseTest, LayersLandInOrder) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  RecordPages pages(4, layout.record_bytes);
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  for (std::uint32_t layer = 0; layer < layout.layers; ++layer) {
    load->wait_layer(layer);
    // Of every block, this layer and those before it.
    const auto end = layout.header_bytes + (layer + 1) * layout.layer_bytes;
    for (unsigned i = 0; i < 4; ++i) {
      const auto slot = daemon.slot(daemon.slot_name(Tier::host, i));
      EXPECT_EQ(std::memcmp(pages.memory[i].data(), slot.data(), end), 0) << "layer " << layer;
    }
  }
  EXPECT_EQ(load->finish(), 4U);
}

TEST_F(LeaseTest, FewerPagesThanBlocksLoadFewerBlocks) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  RecordPages pages(2, layout.record_bytes);
  auto load = lease->load_into(pages.pages());
  ASSERT_TRUE(load);
  EXPECT_TRUE(load->faults().empty());
  EXPECT_EQ(load->finish(), 2U);
}

TEST_F(LeaseTest, PagesOfNoFormAreInvalid) {
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  RecordPages records(2, layout.record_bytes);
  Pages pages = records.pages();
  void* some = records.memory[0].data();
  const std::vector<void*> odd(layout.layers + 1, some);
  pages.k_pages = pages.v_pages = odd;
  EXPECT_EQ(lease->load_into(pages).error().code, Errc::invalid);
  pages.records = {};
  EXPECT_EQ(lease->load_into(pages).error().code, Errc::invalid);
  EXPECT_EQ(
      lease->load_into(records.pages(), StreamView(static_cast<CUstream_st*>(some))).error().code,
      Errc::invalid);
}

TEST_F(LeaseTest, ALoadFromHostIsPromotedToTheDevice) {
  daemon.with([](auto& s) { s.slots_left = {16, 16}; });
  cache_prompt(prompt);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  RecordPages pages(4, layout.record_bytes);
  EXPECT_EQ(lease->load_into(pages.pages())->finish(), 4U);
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.committed.size() == 4; }));
  const auto committed = daemon.with([](auto& s) { return s.committed; });
  for (unsigned i = 0; i < 4; ++i) {
    ASSERT_EQ(committed[i].slots.size(), 1U);
    EXPECT_EQ(committed[i].slots[0] >> 32, index_of(Tier::device) + 1);
    EXPECT_EQ(committed[i].key, keys(prompt)[i]);
    const auto promoted = daemon.slot(committed[i].slots[0]);
    const auto original = daemon.slot(daemon.slot_name(Tier::host, i));
    EXPECT_TRUE(std::ranges::equal(promoted, original));
  }
  EXPECT_EQ(cache->match(prompt).per_tier[index_of(Tier::device)], 4U);
}

TEST_F(LeaseTest, InPlaceBlocksOfTheDeviceTierAreNotCopied) {
  cache_prompt(prompt_of(33), Tier::device);
  cache_prompt(prompt, Tier::host, 10);
  // The first two blocks of the longer prompt are the shorter one's.
  const auto chain = keys(prompt);
  for (std::uint32_t i = 0; i < 2; ++i) {
    daemon.publish(chain[i], TierSet{}.with(Tier::device), daemon.slot_name(Tier::device, i));
  }
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->wait_ready(soon()), 4U);
  RecordPages out(4, layout.record_bytes);
  Pages pages = out.pages();
  pages.in_place = true;
  auto load = lease->load_into(pages);
  ASSERT_TRUE(load);
  EXPECT_EQ(load->finish(), 4U);
  ASSERT_EQ(load->records().size(), 4U);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::span record(load->records()[i], layout.record_bytes);
    EXPECT_EQ(record.data() == out.pointers[i], i >= 2);
    EXPECT_TRUE(payload_is({record.begin(), record.end()}, i + 1));
  }
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(std::ranges::all_of(out.memory[i], [](std::byte b) { return b == std::byte{}; }));
  }
}

TEST_F(LeaseTest, RecordsAreWhereTheirPagesAre) {
  cache_prompt(prompt, Tier::device);
  start_connected();
  auto lease = cache->lease(prompt, 4, soon());
  ASSERT_TRUE(lease);
  RecordPages out(3, layout.record_bytes);
  auto load = lease->load_into(out.pages());
  ASSERT_TRUE(load);
  EXPECT_EQ(load->finish(), 3U);
  EXPECT_TRUE(std::ranges::equal(load->records(), out.pointers));
}

TEST_F(LeaseTest, ABlockOnAnotherGpuIsMatchedWhereElseItIs) {
  cache_prompt(prompt, Tier::host);
  for (const Key& key : keys(prompt)) {
    daemon.publish(key, TierSet{}.with(Tier::device).with(Tier::host), 0);
  }
  daemon.with([](auto& s) { s.device = kNoDevice; });
  start_connected();
  const Match match = cache->match(prompt);
  EXPECT_EQ(match.blocks, 4U);
  EXPECT_EQ(match.per_tier[index_of(Tier::device)], 0U);
  EXPECT_EQ(match.per_tier[index_of(Tier::host)], 4U);
}

}  // namespace
}  // namespace kvtier::test
