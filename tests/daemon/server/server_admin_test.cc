// Admin commands on the wire.
#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using Reader = WireClient::Reader;

struct Piece {
  std::vector<Key> keys;
  std::uint32_t next = 0;
};

Piece list(WireClient& client, std::uint32_t from, std::uint32_t most) {
  Piece piece;
  const bool listed = client.request(
      [&](Builder m) {
        auto request = m.initList();
        request.setBlocksMax(most);
        request.setFromBlock(from);
      },
      [&](Reader m) {
        for (const auto block : m.getListReply().getBlocks()) {
          Key key;
          std::memcpy(&key, block.getKey().begin(), sizeof key);
          piece.keys.push_back(key);
        }
        piece.next = m.getListReply().getNextBlock();
      });
  EXPECT_TRUE(listed);
  return piece;
}

TEST_F(ServerTest, a_list_in_pieces_has_every_block_that_stays_once_whatever_comes_and_goes) {
  WireClient c = client();
  const auto handle = c.open(ns);
  const auto staying = prefix_of(id_of(ns), 120, 1);
  const auto going = prefix_of(id_of(ns), 60, 50'000);
  for (std::size_t i = 0; i < staying.size(); ++i) {
    ASSERT_TRUE(c.put(handle, ns, staying[i]));
    if (i % 2 == 0) {
      ASSERT_TRUE(c.put(handle, ns, going[i / 2]));
    }
  }
  std::multiset<Key> seen;
  Token next_prompt = 100'000;
  for (Piece piece{{}, 0};;) {
    piece = list(c, piece.next, 25);
    EXPECT_LE(piece.keys.size(), 25U);
    seen.insert(piece.keys.begin(), piece.keys.end());
    if (piece.next == 0) break;
    // Their numbers are used again, some before the cursor and some behind it.
    const auto& root = going[seen.size() % 20];
    c.request([&](Builder m) {
      auto selection = m.initDrop().initSelection();
      selection.setKey({reinterpret_cast<const kj::byte*>(root.key().bytes.data()), 16});
    });
    ASSERT_TRUE(c.put(handle, ns, prefix_of(id_of(ns), 1, next_prompt += 1000)[0]));
  }
  for (const auto& block : staying) EXPECT_EQ(seen.count(block.key()), 1U);
}

TEST_F(ServerTest, an_invalidation_is_told_to_those_who_have_the_model_open_and_to_nobody_else) {
  WireClient old = client();
  WireClient bystander = client();
  Namespace other = ns;
  other.model = "other@1";
  const auto handle = old.open(ns);
  const auto kept = bystander.open(other);
  const auto prefix = prefix_of(id_of(ns), 2, 1);
  ASSERT_TRUE(old.put(handle, ns, prefix[0]));
  ASSERT_TRUE(bystander.put(kept, other, prefix_of(id_of(other), 1, 1)[0]));
  std::uint32_t told = 0;
  ASSERT_TRUE(bystander.request([](Builder m) { m.initInvalidate().setModel("m"); },
                                [&](Reader m) { told = m.getInvalidated().getSessions(); }));
  EXPECT_EQ(told, 1U);
  EXPECT_FALSE(old.put(handle, ns, prefix[1]));
  EXPECT_EQ(old.closed, std::vector<std::uint32_t>{handle});
  EXPECT_TRUE(bystander.closed.empty());
  EXPECT_EQ(bystander.lease(kept, prefix_of(id_of(other), 1, 1)).size(), 1U);
  // The new weights' engine.
  WireClient fresh = client();
  const auto anew = fresh.open(ns);
  EXPECT_TRUE(fresh.lease(anew, prefix).empty());
  EXPECT_TRUE(fresh.put(anew, ns, prefix[0]));
  EXPECT_TRUE(old.lease(handle, prefix).empty());
  EXPECT_EQ(fresh.lease(anew, prefix).size(), 1U);
}

TEST(ServerRightsTest, another_account_may_use_the_cache_and_may_not_administer_it) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can try another account";
  Scratch scratch;
  ASSERT_EQ(::chmod((scratch / "").c_str(), 0755), 0);
  Kvtierd daemon(scratch, small_config(scratch, "socket_mode = '0666'"));
  WireClient::greeted((scratch / "s").string());
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(::seteuid(kNobody), 0);
  WireClient client = WireClient::greeted((scratch / "s").string());
  ASSERT_EQ(::seteuid(0), 0);
  const Namespace ns = small_namespace("m");
  EXPECT_TRUE(client.put(client.open(ns), ns, prefix_of(id_of(ns), 1, 1)[0]));
  EXPECT_TRUE(client.status());
  const std::vector<std::pair<const char*, std::function<void(Builder)>>> requests{
      {"inspect", [](Builder m) { m.initInspect(); }},
      {"drop", [](Builder m) { m.initDrop(); }},
      {"pin", [](Builder m) { m.initPin(); }},
      {"unpin", [](Builder m) { m.initUnpin(); }},
      {"invalidate", [](Builder m) { m.initInvalidate(); }},
      {"scrub", [](Builder m) { m.initScrub(); }},
      {"sessions", [](Builder m) { m.setSessions(); }},
      {"setQuota", [](Builder m) { m.initSetQuota(); }}};
  for (const auto& [name, fill] : requests) {
    EXPECT_FALSE(client.request(fill)) << name;
    ASSERT_TRUE(client.error()) << name;
    EXPECT_EQ(client.error()->code, Errc::refused) << name;
  }
}

}  // namespace
}  // namespace kvtier::daemon::testing
