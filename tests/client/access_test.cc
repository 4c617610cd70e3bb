// Read-only clients, and checksums of payloads.
#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

class AccessTest : public ClientTest {
 protected:
  RecordHeader header_at(std::uint64_t slot) {
    RecordHeader header;
    std::memcpy(&header, daemon.slot(slot).data(), sizeof header);
    return header;
  }
  // How many leading blocks of the prompt come, and that they are right.
  std::uint32_t loaded() {
    auto lease = cache->lease(prompt, 4, soon());
    if (!lease || lease->wait_ready(soon()) != 4) return 0;
    RecordPages pages(4, layout.record_bytes);
    auto load = lease->load_into(pages.pages());
    if (!load) return 0;
    const std::uint32_t blocks = load->finish();
    for (std::uint32_t i = 0; i < blocks; ++i) EXPECT_TRUE(payload_is(pages.memory[i], i + 1));
    return blocks;
  }
  void expect_reads_only() {
    cache_prompt(prompt);
    EXPECT_EQ(loaded(), 4U);
    RecordPages pages(4, layout.record_bytes);
    auto write = cache->write_back(prompt_of(64, 9000), 0, pages.pages());
    write.wait();
    EXPECT_EQ(write.accepted(), 0U);
    EXPECT_TRUE(client->flush(soon()));
    EXPECT_EQ(client->stats().blocks_dropped, 4U);
    // Its last words come with its end, after all that it might have asked.
    cache.reset();
    client.reset();
    EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.open_connections == 0; }));
    const auto seen = daemon.with([](auto& s) { return s.seen; });
    for (const Which which : {Which::RESERVE, Which::COMMIT, Which::ABANDON, Which::FLUSH})
      EXPECT_FALSE(seen.contains(which)) << static_cast<int>(which);
  }
  const std::vector<Token> prompt = prompt_of(65);
};

TEST_F(AccessTest, AReadOnlyClientLoadsAndItsWriteBacksAreDroppedAndCounted) {
  daemon.with([](auto& s) { s.slots_left = {64, 64}; });
  start_connected({.read_only = true});
  EXPECT_TRUE(daemon.with([](auto& s) { return s.read_only_asked; }));
  expect_reads_only();
}

TEST_F(AccessTest, AClientThatTheDaemonOnlyLetsReadDoesTheSame) {
  daemon.with([](auto& s) {
    s.slots_left = {64, 64};
    s.read_only = true;
  });
  start_connected();
  EXPECT_FALSE(daemon.with([](auto& s) { return s.read_only_asked; }));
  expect_reads_only();
}

TEST_F(AccessTest, ABadBlockIsReportedBeforeItsLeaseIsReleased) {
  cache_prompt(prompt);
  daemon.slot(daemon.slot_name(Tier::host, 2))[0] ^= std::byte{1};
  start_connected();
  EXPECT_EQ(loaded(), 2U);
  EXPECT_TRUE(daemon.eventually([](const auto& s) { return s.released.size() == 1; }));
  daemon.with([](auto& s) {
    EXPECT_EQ(s.bad_keys.size(), 1U);
    EXPECT_EQ(s.released_before_bad_keys, 0U);
  });
}

TEST_F(AccessTest, LoadsThatAreVerifiedFindAPayloadThatIsNotTheOneWritten) {
  cache_prompt(prompt);
  const auto third = daemon.slot(daemon.slot_name(Tier::host, 2));
  ASSERT_TRUE(seal_checksums(third));
  start_connected({.verify_loads = true});
  EXPECT_EQ(loaded(), 4U);  // those without a checksum are taken
  third[layout.header_bytes + 5] ^= std::byte{1};
  EXPECT_EQ(loaded(), 2U);
  EXPECT_EQ(client->stats().faults, 1U);
  EXPECT_TRUE(daemon.eventually(
      [&](const auto& s) { return s.bad_keys == std::vector<Key>{keys(prompt)[2]}; }));
}

TEST_F(AccessTest, WriteBacksOfAClientThatVerifiesHaveChecksums) {
  for (const bool verify : {true, false}) {
    daemon.with([](auto& s) {
      s.slots_left = {0, 64};
      s.committed.clear();
    });
    start_connected({.verify_loads = verify});
    RecordPages pages(4, layout.record_bytes);
    auto write = cache->write_back(prompt_of(64, verify ? 5000 : 7000), 0, pages.pages());
    write.wait();
    ASSERT_TRUE(client->flush(soon()));
    const auto committed = daemon.with([](auto& s) { return s.committed; });
    ASSERT_EQ(committed.size(), 4U);
    for (const auto& block : committed) {
      EXPECT_EQ(header_at(block.slots[0]).payload_checksum != 0, verify);
      if (verify) {
        EXPECT_TRUE(verify_checksums(daemon.slot(block.slots[0]).first(layout.record_bytes),
                                     cache->id(), block.key));
      }
    }
    cache.reset();
    client.reset();
  }
}

TEST_F(AccessTest, VerifiedLoadsAreForEnginesWithoutAGpu) {
  const auto refused = Client::start({.cuda_device = 0, .verify_loads = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::invalid);
  EXPECT_NE(refused.error().message.find("verify_loads"), std::string::npos);
}

}  // namespace
}  // namespace kvtier::test
