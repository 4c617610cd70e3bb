// A session that comes to its end in the middle of a request: the code that was at it goes on, and
// the daemon with it.
#include <sys/resource.h>

#include <algorithm>
#include <set>
#include <utility>

#include "daemon/limits.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Builder = WireClient::Builder;
using Reader = WireClient::Reader;

class SessionEndTest : public ::testing::Test {
 protected:
  // Memory of an isolated tenant, of which only those are told who have a namespace of it open.
  SessionEndTest()
      : daemon(scratch, "socket = '" + socket() +
                            "'\n[index]\nblocks_max = 4096\n[host]\ncapacity = '64MiB'\n"
                            "extent_size = '1MiB'\nhuge_pages = false\n"
                            "[limits]\nrequests_per_second = 100000000\n"
                            "[[tenant]]\nname = 'alone'\nisolated = true\n"),
        ns(small_namespace("m")) {
    ns.tenant = "alone";
  }
  std::string socket() const { return (scratch / "s").string(); }
  WireClient client() const { return WireClient::greeted(socket()); }

  // Blocks in several extents.
  std::vector<TestBlock> fill(WireClient& writer) {
    const auto handle = writer.open(ns);
    auto blocks = prefix_of(id_of(ns), kBlocks, 1);
    for (const TestBlock& block : blocks) EXPECT_TRUE(writer.put(handle, ns, block));
    EXPECT_GE(writer.extents(), 3U);
    return blocks;
  }
  // Of the session that reads least.
  static std::uint64_t unsent(WireClient& bystander) {
    std::uint64_t most = 0;
    bystander.request([](Builder m) { m.setStatus(); },
                      [&](Reader m) {
                        for (const auto peer : m.getStatusReply().getPeers())
                          most = std::max(most, peer.getUnsentBytes());
                      });
    return most;
  }
  // Sends `count` of them, and waits until the answers to all are in the queue.
  static void pile_up(WireClient& silent, WireClient& bystander, std::uint64_t count,
                      std::uint64_t bytes_each, const std::function<void(Builder)>& request) {
    constexpr std::uint64_t kAtOnce = 500;
    while (count > 0) {
      const std::uint64_t now = std::min(count, kAtOnce);
      const std::uint64_t all = unsent(bystander) + now * bytes_each;
      for (std::uint64_t i = 0; i < now; ++i) ASSERT_TRUE(silent.send(request, 5));
      ASSERT_TRUE(comes_to_hold([&] { return unsent(bystander) == all; }));
      count -= now;
    }
  }
  // What one answer adds to a queue of which nothing is sent any more.
  static std::uint64_t bytes_of_answer(WireClient& silent, WireClient& bystander,
                                       const std::function<void(Builder)>& request) {
    const std::uint64_t before = unsent(bystander);
    EXPECT_TRUE(silent.send(request, 5));
    EXPECT_TRUE(comes_to_hold([&] { return unsent(bystander) > before; }));
    return unsent(bystander) - before;
  }
  // Until there is no room for another answer of the smallest kind.
  static void fill_queue(WireClient& silent, WireClient& bystander, std::uint32_t handle) {
    const auto large = [](Builder m) { m.setStatus(); };
    const auto small = [handle](Builder m) { m.initLease().setNs(handle); };
    ASSERT_TRUE(comes_to_hold([&] { return silent.send(large, 5) && unsent(bystander) > 0; }));
    std::uint64_t settled = 0;
    ASSERT_TRUE(comes_to_hold(
        [&] { return std::exchange(settled, unsent(bystander)) == unsent(bystander); }));
    for (const auto& request : {std::function<void(Builder)>(large), {small}}) {
      const std::uint64_t each = bytes_of_answer(silent, bystander, request);
      const std::uint64_t room = limits::kSessionOutputBytesMax - unsent(bystander);
      pile_up(silent, bystander, room / each, each, request);
    }
  }
  void expect_ended_alone(WireClient& bystander, std::uint64_t sessions) {
    EXPECT_TRUE(comes_to_hold([&] {
      const auto status = bystander.status();
      return !status || status->sessions == sessions;
    }));
    ASSERT_TRUE(daemon.running()) << daemon.output();
    EXPECT_TRUE(bystander.status());
    EXPECT_TRUE(client().try_open(ns));
  }

  static constexpr std::size_t kBlocks = 300;
  Scratch scratch;
  Kvtierd daemon;
  Namespace ns;
};

// introduce() ended the session, and went on to tell it of the next extent: an abort.
TEST_F(SessionEndTest, a_full_output_queue_ends_the_session_in_the_middle_of_a_lease_and_no_other) {
  WireClient bystander = client();
  const auto blocks = fill(bystander);
  WireClient silent = client();
  const auto handle = silent.open(ns);
  fill_queue(silent, bystander, handle);
  const auto keys = keys_of(blocks);
  ASSERT_TRUE(silent.send([&](Builder m) {
    m.initLease().setKeys(
        {reinterpret_cast<const kj::byte*>(keys.data()), keys.size() * sizeof(Key)});
  }));
  expect_ended_alone(bystander, 1);
  EXPECT_EQ(bystander.status()->leases, 0U);
}

TEST_F(SessionEndTest, a_full_output_queue_ends_the_session_in_the_middle_of_a_reserve) {
  WireClient bystander = client();
  bystander.open(ns);
  WireClient silent = client();
  const auto handle = silent.open(ns);
  fill_queue(silent, bystander, handle);
  ASSERT_TRUE(silent.send([&](Builder m) {
    m.initReserve().setCount(wire::kReserveMax);
    m.getReserve().setTier(static_cast<std::uint8_t>(Tier::host));
  }));
  expect_ended_alone(bystander, 1);
  // It was never told of them, so it writes to none.
  EXPECT_TRUE(comes_to_hold(
      [&] { return bystander.status()->reserved + bystander.status()->quarantined == 0; }));
}

TEST_F(SessionEndTest, no_descriptor_for_an_extent_ends_the_session_which_is_told_and_no_other) {
  WireClient bystander = client();
  const auto blocks = fill(bystander);
  WireClient reader = client();
  const auto handle = reader.open(ns);
  std::set<int> open;
  for (const auto& fd :
       std::filesystem::directory_iterator("/proc/" + std::to_string(daemon.pid()) + "/fd"))
    open.insert(std::stoi(fd.path().filename()));
  rlim_t none_left = 0;
  while (open.contains(static_cast<int>(none_left))) ++none_left;
  rlimit before{};
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit low{none_left, before.rlim_max};
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, &low, nullptr), 0);
  EXPECT_TRUE(reader.lease(handle, blocks).empty());
  EXPECT_TRUE(reader.is_closed());
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_NE((reader.why + daemon.output()).find("no file descriptor left"), std::string::npos);
  expect_ended_alone(bystander, 1);
}

// What the earlier session had must be quarantined before the new one says that it has let go.
TEST_F(SessionEndTest, a_client_that_comes_back_and_lets_go_in_one_breath_has_its_slots_free) {
  WireClient bystander = client();
  const auto hello = [](Builder m) {
    m.initHello().setVersion(wire::kProtocolVersion);
    m.getHello().setClient(77);
  };
  WireClient first(socket());
  ASSERT_TRUE(first.request(hello));
  ASSERT_EQ(first.reserve(first.open(ns), 5).size(), 5U);
  WireClient second(socket());
  auto both = message_bytes(hello);
  const auto let_go = message_bytes([](Builder m) { m.setLetGo(); });
  both.insert(both.end(), let_go.begin(), let_go.end());
  ASSERT_TRUE(second.send_raw(both));
  EXPECT_TRUE(first.is_closed());
  EXPECT_TRUE(comes_to_hold([&] {
    const auto status = bystander.status();
    return status->sessions == 2 && status->reserved + status->quarantined == 0;
  }));
}

}  // namespace
}  // namespace kvtier::daemon::testing
