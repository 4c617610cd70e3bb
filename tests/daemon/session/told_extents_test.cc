// What a client is told of the memory that slots lie in, and with which descriptor.
#include "daemon/session/told_extents.h"

#include <fcntl.h>

#include "tests/daemon/support/session_context.h"

namespace kvtier::daemon::testing {
namespace {

class Silent final : public Connection {
 public:
  using Connection::Connection;

 private:
  Result<void> handle(wire::Frame&) override { return {}; }
  bool has_more_to_do() const override { return false; }
  void do_more() override {}
  void closed() override {}
};

class ToldExtentsTest : public ::testing::Test {
 protected:
  ToldExtentsTest() {
    auto [ours, theirs] = Surroundings::connected();
    peer = std::move(theirs);
    connection = std::make_shared<Silent>(1, Peer{}, around.socket(std::move(ours)), around.context,
                                          [](SessionId) {});
    connection->start();
    EXPECT_TRUE(namespaces.open(encode(small_namespace("m")), true, 0));
  }
  ~ToldExtentsTest() override {
    if (connection->open()) connection->end("the test is over");
    connection->close();
    namespaces.close();
    connection.reset();
    around.turn();
  }
  SlotName slot() {
    return around.cache->reserve(1, TestCache::kWriter, namespaces.numbers()[0], Tier::host, 1)
        .at(0);
  }
  std::vector<wire::Frame> read() {
    std::vector<wire::Frame> frames;
    (void)reader.receive(peer.get(), frames);
    return frames;
  }
  ToldExtents extents_of(bool read_only) {
    ToldExtents extents(*connection, around.context, namespaces);
    extents.set_read_only(read_only);
    return extents;
  }

  Surroundings around;
  UniqueFd peer;
  wire::FrameReader reader;
  OpenNamespaces namespaces{*around.cache};
  std::shared_ptr<Silent> connection;
};

TEST_F(ToldExtentsTest, an_extent_is_told_of_once_and_again_only_when_it_has_gone) {
  auto extents = extents_of(false);
  const SlotName first = slot(), second = slot();
  ASSERT_EQ(first >> 32, second >> 32);
  extents.introduce(first);
  extents.introduce(second);
  extents.introduce(0);
  auto said = read();
  ASSERT_EQ(said.size(), 1U);
  ASSERT_TRUE(said[0].read([&](wire::Message::Reader m) {
    EXPECT_EQ(m.getExtent().getId(), first >> 32);
    EXPECT_EQ(m.getExtent().getSlotBytes(), kRecordBytes);
  }));
  const ExtentId id(static_cast<std::uint32_t>(first >> 32));
  extents.gone(id);
  extents.gone(id);
  EXPECT_EQ(read().size(), 1U);
  extents.introduce(first);
  EXPECT_EQ(read().size(), 1U);
}

TEST_F(ToldExtentsTest, who_only_reads_gets_a_descriptor_that_cannot_be_written_through) {
  for (const bool read_only : {false, true}) {
    auto extents = extents_of(read_only);
    extents.introduce(slot());
    auto said = read();
    ASSERT_EQ(said.size(), 1U);
    const UniqueFd memory = said[0].take_descriptor();
    ASSERT_TRUE(memory);
    EXPECT_EQ(::fcntl(memory.get(), F_GETFL) & O_ACCMODE, read_only ? O_RDONLY : O_RDWR);
  }
}

TEST_F(ToldExtentsTest, what_a_client_still_has_mapped_counts_if_it_is_the_same_and_mapped_alike) {
  around.context.welcomed.lineage[0] = std::byte{1};
  const auto known = static_cast<std::uint32_t>(slot() >> 32);
  const auto recalled = [&](std::byte lineage, bool mapped_read_only) {
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<wire::Message>().initHello();
    Lineage said = around.context.welcomed.lineage;
    said[0] = lineage;
    hello.setLineage({reinterpret_cast<const kj::byte*>(said.data()), said.size()});
    auto list = hello.initExtents(2);
    list.set(0, known);
    list.set(1, known + 1);
    hello.setExtentsReadOnly(mapped_read_only);
    auto extents = extents_of(false);
    EXPECT_TRUE(extents.recall(hello.asReader(), 0));
    return extents.ids();
  };
  EXPECT_EQ(recalled(std::byte{1}, false), std::set<std::uint32_t>{known});
  EXPECT_TRUE(recalled(std::byte{2}, false).empty()) << "another daemon's";
  EXPECT_TRUE(recalled(std::byte{1}, true).empty()) << "mapped for reading alone";
}

}  // namespace
}  // namespace kvtier::daemon::testing
