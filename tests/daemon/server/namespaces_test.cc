// Namespaces come and go: who makes them, who may make how many, and that a number that goes from
// one to another is never mistaken.
#include "core/record/digest.h"
#include "daemon/limits.h"
#include "tests/daemon/support/server_fixture.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using Reader = WireClient::Reader;

class NamespacesTest : public ServerTest {
 protected:
  static std::uint32_t known(WireClient& c) {
    std::uint32_t namespaces = 0;
    EXPECT_TRUE(c.request([](Builder m) { m.setStatus(); },
                          [&](Reader m) { namespaces = m.getStatusReply().getNamespaces(); }));
    return namespaces;
  }
};

// 4,096 of them, and nobody could open one until the daemon was started anew; and then neither.
TEST_F(NamespacesTest, more_namespaces_than_there_may_be_at_a_time_come_and_go) {
  std::uint32_t opened = 0;
  while (opened < limits::kNamespacesMax + 100) {
    WireClient c = client();
    for (std::uint32_t i = 0; i < limits::kNamespacesPerSessionMax; ++i)
      ASSERT_TRUE(c.try_open(small_namespace("m" + std::to_string(opened++)))) << opened;
  }
  WireClient last = client();
  EXPECT_TRUE(comes_to_hold([&] { return known(last) == 0; }));
}

TEST_F(NamespacesTest, a_reader_makes_no_namespace_and_finds_what_is_stored_later) {
  WireClient reader = WireClient::greeted(socket(), true);
  const auto there = reader.open(ns);
  const auto never = reader.open(small_namespace("never"));
  WireClient writer = client();
  EXPECT_EQ(known(writer), 0U);
  const auto blocks = prefix_of(id_of(ns), 3, 1);
  EXPECT_TRUE(reader.lease(there, blocks).empty());
  const auto handle = writer.open(ns);
  for (const TestBlock& block : blocks) ASSERT_TRUE(writer.put(handle, ns, block));
  EXPECT_EQ(reader.lease(there, blocks).size(), 3U);
  EXPECT_EQ(reader.look(there, ns, blocks),
            std::vector<WireClient::Seen>(3, WireClient::Seen::right));
  EXPECT_TRUE(reader.lease(never, blocks).empty());
  EXPECT_EQ(known(writer), 1U);
  EXPECT_EQ(reader.status()->sessions, 2U);
}

TEST_F(NamespacesTest, a_reader_is_told_what_is_wrong_with_a_namespace) {
  WireClient reader = WireClient::greeted(socket(), true);
  const std::vector<kj::byte> garbage(40, 7);
  EXPECT_FALSE(reader.request([&](Builder m) {
    m.setOpenNamespace({garbage.data(), garbage.size()});
  }));
  EXPECT_EQ(reader.error()->code, Errc::malformed);
}

TEST_F(NamespacesTest, what_a_reader_waits_for_and_was_invalidated_is_not_what_it_finds) {
  WireClient writer = client();
  const auto blocks = prefix_of(id_of(ns), 1, 1);
  const auto handle = writer.open(ns);
  ASSERT_TRUE(writer.put(handle, ns, blocks[0]));
  ASSERT_TRUE(writer.request([](Builder m) { m.initInvalidate().setModel("m"); }));
  WireClient reader = WireClient::greeted(socket(), true);
  const auto there = reader.open(ns);
  EXPECT_TRUE(reader.lease(there, blocks).empty());
  const auto anew = writer.open(ns);
  ASSERT_TRUE(writer.put(anew, ns, blocks[0]));
  EXPECT_EQ(reader.lease(there, blocks).size(), 1U);
}

// Whoever made it after that has other weights than the reader that has waited for it since before.
TEST_F(NamespacesTest,
       what_was_invalidated_while_a_reader_waited_for_it_is_closed_for_that_reader) {
  WireClient reader = WireClient::greeted(socket(), true);
  const auto there = reader.open(ns);
  const auto other = reader.open(small_namespace("other"));
  WireClient writer = client();
  writer.request([](Builder m) { m.initInvalidate().setModel("m"); });
  const auto blocks = prefix_of(id_of(ns), 1, 1);
  const auto handle = writer.open(ns);
  ASSERT_TRUE(writer.put(handle, ns, blocks[0]));
  EXPECT_TRUE(reader.lease(there, blocks).empty());
  EXPECT_EQ(reader.closed, std::vector<std::uint32_t>{there});
  EXPECT_TRUE(reader.lease(other, blocks).empty());
  EXPECT_EQ(reader.lease(reader.open(ns), blocks).size(), 1U) << "opened anew";
}

void open_for_good(Namespaces& all, std::uint16_t number) {
  ++all[number].opened;
}

TEST(NamespacesTable, no_user_can_use_up_the_namespaces_of_all) {
  const Tenants tenants;
  Namespaces all(tenants);
  for (std::uint32_t n = 0; n < limits::kNamespacesPerUserMax; ++n) {
    const auto opened = all.open(encode(small_namespace("a" + std::to_string(n))), 1000);
    ASSERT_TRUE(opened);
    open_for_good(all, *opened);
  }
  const auto more = all.open(encode(small_namespace("one more")), 1000);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Errc::no_space);
  EXPECT_NE(more.error().message.find("user 1000"), std::string::npos) << more.error().message;
  EXPECT_TRUE(all.open(encode(small_namespace("a7")), 1000)) << "which it has made";
  EXPECT_TRUE(all.open(encode(small_namespace("b")), 1001));
  --all[3].opened;
  EXPECT_EQ(all.forget_unused().size(), 2U) << "and the other user's";
  EXPECT_TRUE(all.open(encode(small_namespace("one more")), 1000));
}

TEST(NamespacesTable, a_number_goes_to_another_only_when_nobody_has_it) {
  TestCache cache({}, false);
  const auto a = cache.open(small_namespace("a"));
  const auto b = cache.open(small_namespace("b"));
  Namespaces& all = cache->catalogue().namespaces();
  const auto block = cache.prefix(a, 1, 1);
  ASSERT_EQ(cache.put_all(a, block), 1U);
  ++all[b].opened;
  cache->forget_unused_namespaces();
  EXPECT_EQ(all.count(), 2U) << "one has a block, the other a session";
  const std::uint64_t incarnation = all[b].incarnation;
  --all[b].opened;
  cache->forget_unused_namespaces();
  EXPECT_EQ(all.count(), 1U);
  EXPECT_FALSE(all.find(NamespaceId{xxh3_128(encode(small_namespace("b")))}));
  EXPECT_TRUE(cache->reserve(1, TestCache::kWriter, b, Tier::host, 1).empty());
  EXPECT_EQ(cache.lease(b, block).slots.size(), 0U);
  const auto c = cache.open(small_namespace("c"));
  EXPECT_EQ(c, b);
  EXPECT_NE(all[c].incarnation, incarnation);
  EXPECT_EQ(cache.known(c).ns.model, "c");
  EXPECT_EQ(cache.lease(a, block).slots.size(), 1U);
  EXPECT_EQ(cache.lease(c, block).slots.size(), 0U);
}

TEST(NamespacesTable, lookups_of_those_that_have_gone_are_still_counted) {
  TestCache cache({}, false);
  cache->missed(cache.open(small_namespace("a")), 5);
  cache->forget_unused_namespaces();
  EXPECT_EQ(cache->catalogue().namespaces().lookups().misses, 5U);
}

// A disk remembered every namespace that was ever opened.
TEST(NamespacesTable, a_disk_remembers_one_from_its_first_block_to_its_last) {
  TestCache cache;
  const auto ns = cache.open(small_namespace("m"));
  const NamespaceId id = cache.known(ns).id;
  EXPECT_FALSE(cache.store()[0].remembers(id));
  const auto blocks = cache.prefix(ns, 2, 1);
  cache.put_on_disk(ns, blocks);
  EXPECT_TRUE(cache.store()[0].remembers(id));
  cache->forget_unused_namespaces();
  EXPECT_TRUE(cache.store()[0].remembers(id));
  cache->drop(ns, TierSet{}.with(Tier::device).with(Tier::host).with(Tier::disk));
  cache.store().complete_all();
  cache->forget_unused_namespaces();
  EXPECT_FALSE(cache.store()[0].remembers(id));
  EXPECT_EQ(cache->catalogue().namespaces().count(), 0U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
