// Stores by layer: begun, filled layer after layer, committed or abandoned.
#include "tests/client/fixture.h"

namespace kvtier::test {
namespace {

class LayerStoreTest : public ClientTest {
 protected:
  LayerStoreTest() : prefix(ns), pages(4, layout.record_bytes) {
    EXPECT_TRUE(prefix.append(prompt));
    for (std::size_t i = 0; i < pages.memory.size(); ++i)
      std::ranges::fill(pages.memory[i], std::byte(0x40 + i));
  }
  LayerStore begin() { return cache->begin_store(prefix, 0, pages.pages()).value(); }
  void hand_over_all(LayerStore& store) {
    for (std::uint32_t layer = 0; layer < ns.layers; ++layer) ASSERT_TRUE(store.layer(layer));
  }

  const std::vector<Token> prompt = prompt_of(64);
  Prefix prefix;
  RecordPages pages;
};

TEST_F(LayerStoreTest, LayersInAnyOrderMakeTheBlocks) {
  daemon.with([](auto& s) { s.slots_left = {64, 64}; });
  start_connected();
  LayerStore store = begin();
  EXPECT_EQ(store.blocks(), 4U);
  for (const std::uint32_t layer : {2U, 0U, 1U}) ASSERT_TRUE(store.layer(layer));
  WriteBack write = store.commit();
  write.wait();
  EXPECT_EQ(write.accepted(), 4U);
  EXPECT_FALSE(write.error());
  ASSERT_TRUE(client->flush(soon()));
  const auto committed = daemon.with([](auto& s) { return s.committed; });
  ASSERT_EQ(committed.size(), 4U);
  const auto chain = keys(prompt);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(committed[i].key, chain[i]);
    ASSERT_EQ(committed[i].slots.size(), 2U) << "one on the host, one on the device";
    for (const auto slot : committed[i].slots) {
      const auto record = daemon.slot(slot);
      EXPECT_TRUE(verify_header(record, layout,
                                {cache->id(), chain[i], i == 0 ? Key{} : chain[i - 1], i},
                                std::span(prompt).subspan(i * 16, 16)));
      EXPECT_TRUE(std::ranges::equal(record.subspan(layout.header_bytes, layout.payload_bytes),
                                     payload(pages.memory[i])));
    }
  }
}

TEST_F(LayerStoreTest, ALayerIsCopiedWhenItIsHandedOverAndNotBefore) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  LayerStore store = begin();
  ASSERT_TRUE(store.layer(0));
  ASSERT_TRUE(client->flush(soon())) << "what is handed over is copied";
  const LayerLayout first = layout.layer(0), second = layout.layer(1);
  std::ranges::fill(std::span(pages.memory[1]).subspan(first.offset, first.bytes), std::byte{1});
  std::ranges::fill(std::span(pages.memory[1]).subspan(second.offset, second.bytes), std::byte{2});
  ASSERT_TRUE(store.layer(1));
  ASSERT_TRUE(store.layer(2));
  store.commit().wait();
  ASSERT_TRUE(client->flush(soon()));
  const auto record =
      daemon.slot(daemon.with([](auto& s) { return s.committed.at(1).slots.at(0); }));
  EXPECT_EQ(record[first.offset], std::byte{0x41}) << "it is the engine's again after the copy";
  EXPECT_EQ(record[second.offset], std::byte{2});
}

TEST_F(LayerStoreTest, AbandonedItLeavesNothingAndItsSlotsAreOfUseToOthers) {
  daemon.with([](auto& s) { s.slots_left = {0, 4}; });
  start_connected({.slots_ahead = 4});
  {
    LayerStore store = begin();
    ASSERT_TRUE(store.layer(0));
    ASSERT_TRUE(client->flush(soon()));
  }
  EXPECT_EQ(client->stats().blocks_dropped, 0U);
  auto write = cache->write_back(prefix, 0, pages.pages());
  write.wait();
  EXPECT_EQ(write.accepted(), 4U) << "the four slots that there are";
  ASSERT_TRUE(client->flush(soon()));
  EXPECT_EQ(daemon.with([](auto& s) { return s.committed.size(); }), 4U);
}

TEST_F(LayerStoreTest, WithAMissingLayerNothingIsStored) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  LayerStore store = begin();
  ASSERT_TRUE(store.layer(0));
  ASSERT_TRUE(store.layer(2));
  WriteBack write = store.commit();
  EXPECT_TRUE(write.ended());
  EXPECT_EQ(write.accepted(), 0U);
  EXPECT_EQ(write.dropped()[DropReason::failed], 4U);
  EXPECT_NE(write.error()->message.find("layer 1"), std::string::npos);
  EXPECT_EQ(store.blocks(), 0U) << "it is empty afterwards";
  ASSERT_TRUE(client->flush(soon()));
  EXPECT_TRUE(daemon.with([](auto& s) { return s.committed.empty(); }));
}

TEST_F(LayerStoreTest, ALayerTwiceOrOneThatIsNotThereIsRefused) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  LayerStore store = begin();
  ASSERT_TRUE(store.layer(1));
  EXPECT_EQ(store.layer(1).error().code, Errc::invalid);
  EXPECT_EQ(store.layer(3).error().code, Errc::invalid);
}

TEST_F(LayerStoreTest, BlocksThatAreCachedAndThoseWithoutASlotAreTold) {
  daemon.publish(keys(prompt)[0], TierSet{}.with(Tier::host), 0);
  daemon.with([](auto& s) { s.slots_left = {0, 2}; });
  start_connected({.slots_ahead = 2});
  LayerStore store = begin();
  hand_over_all(store);
  WriteBack write = store.commit();
  write.wait();
  EXPECT_EQ(write.cached(), 1U);
  EXPECT_EQ(write.accepted(), 2U);
  EXPECT_EQ(write.dropped()[DropReason::no_slot], 1U);
}

TEST_F(LayerStoreTest, ManyMayBeUnderWayAtATime) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  Prefix other(ns);
  ASSERT_TRUE(other.append(prompt_of(64, 7000)));
  LayerStore one = begin();
  LayerStore two = cache->begin_store(other, 0, pages.pages()).value();
  for (std::uint32_t layer = 0; layer < ns.layers; ++layer) {
    ASSERT_TRUE(one.layer(layer));
    ASSERT_TRUE(two.layer(layer));
  }
  WriteBack second = two.commit(), first = one.commit();
  second.wait();
  first.wait();
  EXPECT_EQ(first.accepted() + second.accepted(), 8U);
}

TEST_F(LayerStoreTest, AConnectionThatEndsMeanwhileDropsItsBlocks) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  LayerStore store = begin();
  ASSERT_TRUE(store.layer(0));
  ASSERT_TRUE(client->flush(soon()));
  daemon.hang_up();
  ASSERT_TRUE(daemon.eventually([](const auto& s) { return s.connections == 2; }));
  ASSERT_TRUE(store.layer(1));
  ASSERT_TRUE(store.layer(2));
  WriteBack write = store.commit();
  write.wait();
  EXPECT_EQ(write.accepted(), 0U);
  EXPECT_EQ(write.dropped()[DropReason::disconnected], 4U);
}

TEST_F(LayerStoreTest, AClientThatEndsMeanwhileDropsThem) {
  daemon.with([](auto& s) { s.slots_left = {0, 64}; });
  start_connected();
  LayerStore begun = begin(), committed = begin();
  hand_over_all(begun);
  hand_over_all(committed);
  client.reset();
  WriteBack write = begun.commit();
  write.wait();
  EXPECT_EQ(write.accepted() + write.dropped().total(), 4U);
  // The other is abandoned by the end of the test.
}

TEST_F(LayerStoreTest, WithoutADaemonReadingOnlyOrWithWrongPagesItIsNotBegun) {
  start_connected({.read_only = true});
  EXPECT_EQ(cache->begin_store(prefix, 0, pages.pages()).error().code, Errc::refused);
  start_connected();
  Pages wrong = pages.pages();
  wrong.k_pages = {reinterpret_cast<void* const*>(pages.pointers.data()), 1};
  EXPECT_EQ(cache->begin_store(prefix, 0, wrong).error().code, Errc::invalid);
  auto alone = Client::start({.socket = "/nowhere/kvtierd.sock"}).value();
  EXPECT_EQ(alone->open(ns).value()->begin_store(prefix, 0, pages.pages()).error().code,
            Errc::unavailable);
}

}  // namespace
}  // namespace kvtier::test
