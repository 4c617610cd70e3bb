// Hints as they come over the wire, and what a running daemon shows of them.
#include <cstdio>
#include <map>

#include "kvtier/hint.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using Reader = WireClient::Reader;

struct Shown {
  std::uint64_t host_blocks = 0, hinted_blocks = 0, demoted_blocks = 0, prefetching = 0;
  std::map<std::string, std::uint64_t> hints;  // "keep taken"
};

class ServerHintsTest : public ::testing::Test {
 protected:
  explicit ServerHintsTest(const std::string& more = "[limits]\nkept_percent = 20\n")
      : daemon(scratch, small_config(scratch, more) + disk_config((scratch / "disk").string())) {}

  std::string socket() const { return (scratch / "s").string(); }
  void hint(WireClient& from, std::uint32_t of_namespace, std::span<const TestBlock> prefix,
            const Hint& hint) {
    const auto keys = keys_of(prefix);
    from.send([&](Builder m) {
      auto out = m.initHint();
      out.setNs(of_namespace);
      out.setKeys({reinterpret_cast<const kj::byte*>(keys.data()), keys.size() * sizeof(Key)});
      out.setKind(static_cast<std::uint8_t>(hint.kind));
      out.setTier(static_cast<std::uint8_t>(hint.tier));
      out.setPriority(hint.priority);
      out.setSeconds(static_cast<std::uint32_t>(hint.keep_for.count()));
    });
  }
  Shown shown() {
    Shown found;
    EXPECT_TRUE(client.request([](Builder m) { m.setStatus(); },
                               [&](Reader m) {
                                 const auto status = m.getStatusReply();
                                 const auto host = status.getTiers()[index_of(Tier::host)];
                                 found.host_blocks = host.getBlocks();
                                 found.hinted_blocks = host.getHintedBlocks();
                                 found.demoted_blocks = host.getDemotedBlocks();
                                 found.prefetching = status.getPrefetching();
                                 for (const auto count : status.getHints()) {
                                   const std::string kind = kHintKindNames[count.getKind()];
                                   found.hints[kind + " " + count.getOutcome().cStr()] =
                                       count.getBlocks();
                                 }
                               }));
    return found;
  }
  void put_all() {
    for (const auto& block : blocks) ASSERT_TRUE(client.put(handle, ns, block));
    ASSERT_TRUE(client.flush());
  }
  std::string ctl(const std::string& command) {
    std::FILE* run = ::popen((KVTIER_CTL " --socket " + socket() + " " + command).c_str(), "r");
    std::string text;
    for (int c; (c = std::fgetc(run)) != EOF;) text += static_cast<char>(c);
    EXPECT_EQ(::pclose(run), 0) << text;
    return text;
  }
  void drop_host() {
    ASSERT_TRUE(client.request([](Builder m) { m.initDrop().setTiers(2); }));
  }

  Scratch scratch;
  Kvtierd daemon;
  WireClient client = WireClient::greeted(socket());
  const Namespace ns = small_namespace("m");
  const std::uint32_t handle = client.open(ns);
  const std::vector<TestBlock> blocks = prefix_of(id_of(ns), 20, 1);
};

TEST_F(ServerHintsTest, the_welcome_says_that_they_are_taken) {
  WireClient other(socket());
  std::uint64_t features = 0;
  ASSERT_TRUE(other.request([](Builder m) { m.initHello().setVersion(wire::kProtocolVersion); },
                            [&](Reader m) { features = m.getWelcome().getFeatures(); }));
  EXPECT_NE(features & wire::kTakesHints, 0U);
}

TEST_F(ServerHintsTest, what_was_prefetched_is_in_the_host_tier_before_anybody_leases_it) {
  put_all();
  drop_host();
  ASSERT_EQ(shown().host_blocks, 0U);
  hint(client, handle, blocks, {HintKind::prefetch});
  ASSERT_TRUE(comes_to_hold([&] { return shown().host_blocks == 20U; }));
  const Shown now = shown();
  EXPECT_EQ(now.hints.at("prefetch taken"), 20U);
  EXPECT_EQ(now.prefetching, 0U);
  const auto slots = client.lease(handle, blocks);
  ASSERT_EQ(slots.size(), 20U);
  for (const std::uint64_t slot : slots) EXPECT_NE(slot, 0U) << "none is on its way";
  EXPECT_EQ(client.look(handle, ns, blocks), std::vector(20, WireClient::Seen::right));
}

TEST_F(ServerHintsTest, what_is_kept_and_demoted_is_shown) {
  put_all();
  hint(client, handle, std::span(blocks).first(5),
       {HintKind::keep, Tier::host, 2, std::chrono::seconds(600)});
  hint(client, handle, std::span(blocks).last(3), {HintKind::demote});
  Shown now = shown();
  EXPECT_EQ(now.hinted_blocks, 5U);
  EXPECT_EQ(now.demoted_blocks, 3U);
  EXPECT_EQ(now.hints.at("keep taken"), 5U);
  EXPECT_EQ(now.hints.at("demote taken"), 3U);

  const Key& key = blocks[0].key();
  ASSERT_TRUE(client.request(
      [&](Builder m) {
        m.initInspect().setKey({reinterpret_cast<const kj::byte*>(&key), sizeof key});
      },
      [&](Reader m) {
        const auto block = m.getInspected().getBlock();
        EXPECT_EQ(block.getKept(), 1U << index_of(Tier::host));
        EXPECT_EQ(block.getPriority(), 2U);
        EXPECT_EQ(block.getDemoted(), 0U);
        const auto placement = m.getInspected().getPlacements()[0];
        EXPECT_EQ(placement.getPriority(), 2U);
        EXPECT_GT(placement.getKeptMs(), 590'000U);
        EXPECT_LE(placement.getKeptMs(), 600'000U);
      }));
  hint(client, handle, std::span(blocks).first(5), {HintKind::keep});
  EXPECT_EQ(shown().hinted_blocks, 0U) << "taken back";
}

TEST_F(ServerHintsTest, kvtierctl_shows_what_became_of_them_and_what_is_kept) {
  put_all();
  EXPECT_EQ(ctl("status").find("\nhints "), std::string::npos) << "none was given";
  hint(client, handle, std::span(blocks).first(5),
       {HintKind::keep, Tier::host, 2, std::chrono::seconds(600)});
  hint(client, handle, std::span(blocks).last(3), {HintKind::demote});
  ASSERT_EQ(shown().hinted_blocks, 5U);
  const std::string status = ctl("status");
  EXPECT_NE(status.find("hints       keep 5 taken; demote 3 taken\n"), std::string::npos) << status;
  EXPECT_NE(status.find("40.00 KiB"), std::string::npos) << status;
  const std::string kept = ctl("inspect " + to_hex(blocks[0].key()));
  EXPECT_NE(kept.find("priority 2"), std::string::npos) << kept;
  EXPECT_NE(kept.find("kept "), std::string::npos) << kept;
  const std::string demoted = ctl("inspect " + to_hex(blocks[19].key()));
  EXPECT_NE(demoted.find("demoted"), std::string::npos) << demoted;
}

TEST_F(ServerHintsTest, what_is_kept_for_a_second_is_kept_no_longer_by_itself) {
  put_all();
  hint(client, handle, blocks, {HintKind::keep, Tier::host, 0, std::chrono::seconds(1)});
  ASSERT_GT(shown().hinted_blocks, 0U);
  EXPECT_TRUE(comes_to_hold([&] { return shown().hinted_blocks == 0U; }));
}

TEST_F(ServerHintsTest, a_reader_may_prefetch_and_nothing_else) {
  put_all();
  drop_host();
  WireClient reader = WireClient::greeted(socket(), true);
  const auto theirs = reader.open(ns);
  hint(reader, theirs, blocks, {HintKind::prefetch});
  EXPECT_TRUE(comes_to_hold([&] { return shown().host_blocks == 20U; }));
  hint(reader, theirs, blocks, {HintKind::keep, Tier::host, 0, std::chrono::seconds(60)});
  hint(reader, theirs, blocks, {HintKind::demote});
  hint(reader, theirs, blocks, {HintKind::ended});
  ASSERT_TRUE(reader.status()) << "none of it ends the session";
  const Shown now = shown();
  EXPECT_EQ(now.hints.at("keep denied"), 20U);
  EXPECT_EQ(now.hints.at("demote denied"), 20U);
  EXPECT_EQ(now.hints.at("ended denied"), 20U);
  EXPECT_EQ(now.hinted_blocks + now.demoted_blocks, 0U);
}

TEST_F(ServerHintsTest, keys_that_are_not_known_are_no_error) {
  const auto unknown = prefix_of(id_of(ns), 7, 90'000);
  for (const HintKind kind :
       {HintKind::prefetch, HintKind::keep, HintKind::demote, HintKind::ended})
    hint(client, handle, unknown, {kind, Tier::host, 1});
  hint(client, handle, {}, {HintKind::ended});
  const Shown now = shown();
  for (const char* const kind : {"prefetch", "keep", "demote", "ended"})
    EXPECT_EQ(now.hints.at(std::string(kind) + " absent"), 7U) << kind;
}

}  // namespace
}  // namespace kvtier::daemon::testing
