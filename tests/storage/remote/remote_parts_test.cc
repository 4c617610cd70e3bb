// The parts of the remote store that need no server.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "storage/remote/byte_budget.h"
#include "storage/remote/redis/reply_reader.h"
#include "storage/remote/redis/server_error.h"
#include "storage/remote/redis/servers.h"
#include "storage/remote/remote_url.h"
#include "storage/remote/remote_value.h"
#include "tests/storage/remote/support/remote_parts.h"

namespace kvtier::storage::testing {
namespace {

TEST(RemoteUrl, SaysWhereServersAndDirectoriesAre) {
  const auto redis = RemoteUrl::parse("redis://kv@a:1,b,[::1]:3");
  ASSERT_TRUE(redis);
  EXPECT_EQ(redis->user, "kv");
  EXPECT_FALSE(redis->tls);
  ASSERT_EQ(redis->servers.size(), 3U);
  EXPECT_EQ(redis->servers[0].text(), "a:1");
  EXPECT_EQ(redis->servers[1].text(), "b:6379");
  EXPECT_EQ(redis->servers[2].text(), "[::1]:3");
  EXPECT_TRUE(RemoteUrl::parse("rediss://a/")->tls);
  const auto socket = RemoteUrl::parse("redis+unix://kv@/run/redis.sock");
  EXPECT_TRUE(socket->servers[0].is_socket());
  EXPECT_EQ(socket->servers[0].text(), "/run/redis.sock");
  EXPECT_EQ(RemoteUrl::parse("file:///a/b/../c")->directory, "/a/c");
}

TEST(RemoteUrl, OthersAreRefusedWithTheMend) {
  for (const char* const bad :
       {"", "redis://", "redis://a:0", "redis://a:65536", "redis://a:b", "redis://a,",
        "redis://::1", "redis://[::1", "redis://[::1]x", "redis://a/3", "http://a",
        "file://relative", "redis+unix://name", "redis+unix:///"}) {
    const auto url = RemoteUrl::parse(bad);
    ASSERT_FALSE(url) << bad;
    EXPECT_EQ(url.error().code, Errc::invalid);
    EXPECT_NE(url.error().message.find("redis://[user@]host"), std::string::npos);
  }
  // One with a password is not shown.
  const auto secret = RemoteUrl::parse("redis://kv:secret@a");
  ASSERT_FALSE(secret);
  EXPECT_NE(secret.error().message.find("password_file"), std::string::npos);
  EXPECT_EQ(secret.error().message.find("secret"), std::string::npos);
}

TEST(RemoteOptions, ThatCannotBeAreRefused) {
  const TestDirectory files;
  const auto refused = [](auto change) {
    RemoteOptions options;
    options.url = "redis://127.0.0.1:1";
    change(options);
    const auto store = open_remote_store(options, [](auto) {});
    return !store && store.error().code == Errc::invalid;
  };
  EXPECT_FALSE(refused([](RemoteOptions&) {}));
  EXPECT_TRUE(refused([](RemoteOptions& o) { o.connections = 0; }));
  EXPECT_TRUE(refused([](RemoteOptions& o) { o.connections = 65; }));
  EXPECT_TRUE(refused([](RemoteOptions& o) { o.expiry = std::chrono::seconds(-1); }));
  EXPECT_TRUE(refused([](RemoteOptions& o) { o.tls_ca_file = "/etc/passwd"; }));
  EXPECT_TRUE(refused([](RemoteOptions& o) { o.password_file = "/nowhere"; }));
  EXPECT_TRUE(refused([](RemoteOptions& o) { o.url = "redis://kv@a"; }));
  EXPECT_TRUE(refused([](RemoteOptions& o) {
    o.url = "rediss://a";
    o.tls_ca_file = "/etc/passwd";
  }));
  EXPECT_TRUE(refused([](RemoteOptions& o) { o.tls_cert_file = "/etc/passwd"; }));
  EXPECT_TRUE(refused(
      [&](RemoteOptions& o) { o.key_file = write_file(files, "31", std::string(31, 'k')); }));
  EXPECT_TRUE(refused(
      [&](RemoteOptions& o) { o.key_file = write_file(files, "33", std::string(33, 'k')); }));
  EXPECT_TRUE(refused([](RemoteOptions& o) {
    o.url = "file:///tmp";
    o.cluster = true;
  }));
}

TEST(ByteBudget, LetsAsMuchPassAsTheRateSaysInTheLongRun) {
  auto now = Clock::time_point{};
  ByteBudget budget(1000, now);
  std::uint64_t passed = 0;
  for (int ms = 0; ms < 10'000; ++ms) {
    now += std::chrono::milliseconds(1);
    if (budget.take(300, now)) passed += 300;
  }
  EXPECT_GE(passed, 10'000U);
  EXPECT_LE(passed, 11'300U);  // a second saved, and one that began with little left
  ByteBudget none(0, now);
  EXPECT_TRUE(none.take(1ULL << 40, now));
}

TEST(ServerErrors, SayWhatToDo) {
  using Kind = ServerError::Kind;
  const ServerError moved = classify_error("MOVED 3999 10.0.0.1:6381");
  EXPECT_EQ(moved.kind, Kind::moved);
  EXPECT_EQ(moved.slot, 3999);
  EXPECT_EQ(moved.to.text(), "10.0.0.1:6381");
  EXPECT_EQ(classify_error("ASK 1 ::1:7").to.text(), "[::1]:7");
  EXPECT_EQ(classify_error("MOVED 5 :7").to.host, "");
  for (const char* const bad : {"MOVED ", "MOVED x a:1", "MOVED 99999 a:1", "MOVED 1 a", "MOVED 1",
                                "ASK 1 a:0", "ASK 1 a:99999", "MOVED 1 a:1x"}) {
    EXPECT_EQ(classify_error(bad).kind, Kind::other) << bad;
  }
  EXPECT_EQ(classify_error("TRYAGAIN Multiple keys").kind, Kind::try_again);
  EXPECT_EQ(classify_error("CLUSTERDOWN Hash slot not served").kind, Kind::unusable);
  EXPECT_EQ(classify_error("LOADING Redis is loading").kind, Kind::unusable);
  EXPECT_EQ(classify_error("MISCONF Redis is configured").kind, Kind::no_writes);
  EXPECT_TRUE(classify_error("OOM command not allowed").full);
  EXPECT_EQ(classify_error("READONLY You can't write").kind, Kind::not_master);
  EXPECT_EQ(classify_error("WRONGTYPE Operation").kind, Kind::not_a_value);
  EXPECT_EQ(classify_error("").kind, Kind::other);
  EXPECT_EQ(classify_error("ERR \x1b[31m").why, "answers \"ERR \\x1b[31m\"");
}

TEST(ReplyReader, BoundsWhatAServerCanMakeItTake) {
  {
    ReplyReader reader;
    EXPECT_FALSE(*reader.take("*2\r\n"));
    EXPECT_FALSE(*reader.take(":1\r\n"));
    const auto reply = reader.take("+ok\r\n");
    ASSERT_TRUE(*reply);
    EXPECT_EQ((*reply)->elements, 2U);
    EXPECT_TRUE(reader.between_replies());
  }
  EXPECT_FALSE(ReplyReader().take("*2147483647\r\n"));
  EXPECT_FALSE(ReplyReader().take("?\r\n"));
  ReplyReader reader;
  EXPECT_TRUE(reader.take("$100000000\r\n"));
  const std::string piece(1U << 20, 'x');
  bool refused = false;
  for (int i = 0; i < 8 && !refused; ++i) refused = !reader.take(piece);
  EXPECT_TRUE(refused);
  EXPECT_EQ(*bulk_length("$12\r\n"), 12);
  EXPECT_EQ(*bulk_length("$-1\r\n"), -1);
  for (const char* const bad :
       {"", "$", "$\r\n", "$-2\r\n", "$1x\r\n", "$1\n", "1\r\n", "$99999999999999999999\r\n"})
    EXPECT_FALSE(bulk_length(bad)) << bad;
}

TEST(ValueForm, ASealedValueOpensUnderItsOwnNameAlone) {
  std::array<unsigned char, ValueCipher::kKeyBytes> key{1, 2, 3};
  const ValueForm form(std::make_shared<const ValueCipher>(key));
  const TestRecord record(0, 1), another(0, 2);
  auto value = form.make(record.bytes, record.identity);
  ASSERT_TRUE(value);
  auto same = value->first, swapped = value->first;
  EXPECT_TRUE(form.open(value->first, record.identity.ns, record.identity.key));
  EXPECT_EQ(form.open(swapped, record.identity.ns, another.identity.key).error().code,
            Errc::corrupt);
  same.pop_back();
  EXPECT_EQ(form.open(same, record.identity.ns, record.identity.key).error().code, Errc::corrupt);
  EXPECT_EQ(form.make(record.bytes, another.identity).error().code, Errc::corrupt);
  // Two of the same record have nothing in common.
  EXPECT_NE(form.make(record.bytes, record.identity)->first,
            form.make(record.bytes, record.identity)->first);
}

class NobodyAsks final : public OperationOwner {
 public:
  void answered(RedisNode&, OperationPtr, Answer) override {}
  void failed(OperationPtr, Error) override {}
  void slots_known(RedisNode&, const Answer&) override {}
};

// How many servers a cluster has by the map of its slots, each range of them [first, last, port].
std::size_t servers_of(const std::vector<std::array<long long, 3>>& ranges) {
  RedisContext context{.options = {},
                       .url = *RemoteUrl::parse("redis://a:1"),
                       .form = ValueForm(nullptr),
                       .tls = {},
                       .shared = nullptr,
                       .inbox = nullptr,
                       .timers = {},
                       .now = Clock::now(),
                       .spare = {}};
  NobodyAsks owner;
  Servers servers(context, owner);
  ReplyReader reader;
  EXPECT_FALSE(*reader.take("*" + std::to_string(ranges.size()) + "\r\n"));
  Result<Reply> reply = Reply();
  for (const auto& [first, last, port] : ranges) {
    for (const std::string& line :
         {std::string("*3"), ":" + std::to_string(first), ":" + std::to_string(last),
          std::string("*2"), std::string("+b"), ":" + std::to_string(port)})
      reply = reader.take(line + "\r\n");
  }
  EXPECT_TRUE(*reply);
  servers.slots_known(*servers.nodes().front(),
                      {.what = Answer::What::array, .array = std::move(*reply)});
  return servers.nodes().size() - 1;
}

TEST(Servers, AMapHasEachSlotOnceAndPortsThatThereAre) {
  EXPECT_EQ(servers_of({{0, 8191, 1}, {8192, 16383, 2}}), 2U);
  EXPECT_EQ(servers_of({{0, 16383, 1}, {0, 16383, 2}, {5, 5, 3}}), 1U);
  EXPECT_EQ(servers_of({{0, 1, 65535}, {2, 3, 65536 + 7}, {4, 5, 0}, {6, 7, -1}}), 1U);
  EXPECT_EQ(servers_of({{-1, 1, 1}, {3, 2, 2}, {16383, 16384, 3}}), 0U);
}

}  // namespace
}  // namespace kvtier::storage::testing
