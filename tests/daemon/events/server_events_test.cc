// A real kvtierd that publishes, and a subscriber whose picture of the index is held against what
// kvtierctl lists.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/daemon/events/event_subscriber.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

using Json = nlohmann::json;
using View = EventSubscriber::View;

class ServerEvents : public ::testing::Test {
 protected:
  ~ServerEvents() override { daemon.reset(); }

  std::string path(const std::string& name) const { return (scratch / name).string(); }
  std::string endpoint() const { return "ipc://" + path("e"); }
  std::string replay_endpoint() const { return "ipc://" + path("r"); }
  void start(const std::string& events = "") {
    daemon.emplace(scratch,
                   small_config(scratch) +
                       "[device]\ncapacity = '512KiB'\nextent_size = '256KiB'\n" +
                       disk_config(path("disk")) + "[events]\nendpoint = '" + endpoint() +
                       "'\nreplay_endpoint = '" + replay_endpoint() +
                       "'\nblock_hashes = 'bytes'\ntokens = true\n" + events,
                   "", &manager);
    client.emplace(WireClient::greeted(path("s")));
  }
  void kill_and_start() {
    client.reset();
    daemon->signal(SIGKILL);
    daemon->wait();
    manager.settle();
    start();
  }
  std::string ctl(const std::string& command) const {
    std::FILE* run = ::popen((KVTIER_CTL " --socket " + path("s") + " " + command).c_str(), "r");
    std::string text;
    for (int c; (c = std::fgetc(run)) != EOF;) text += static_cast<char>(c);
    EXPECT_EQ(::pclose(run), 0) << text;
    return text;
  }
  Json status() const { return Json::parse(ctl("status --json")); }

  // By key in hexadecimal: where kvtierctl says that it is.
  std::map<std::string, std::set<std::string>> listed() const {
    const std::map<std::string, std::string> media{
        {"device", "GPU"}, {"host", "CPU"}, {"disk", "STORAGE"}};
    std::map<std::string, std::set<std::string>> all;
    const Json list = Json::parse(ctl("ls --json --limit 100000"));
    for (const Json& block : list["blocks"]) {
      for (const std::string tier : block["tiers"]) all[block["key"]].insert(media.at(tier));
    }
    return all;
  }
  static std::map<std::string, std::set<std::string>> in_view(const View& view) {
    std::map<std::string, std::set<std::string>> all;
    for (const auto& [name, seen] : view) {
      Key key;
      std::memcpy(key.bytes.data(), name.data(), key.bytes.size());
      all[to_hex(key)] = seen.media;
    }
    return all;
  }
  bool is_exact(EventSubscriber& subscriber) {
    return subscriber.comes_to([&](const View& view) { return in_view(view) == listed(); });
  }
  std::uint32_t open(const std::string& model) { return client->open(small_namespace(model)); }
  // Prefixes of 6 blocks each; as many as are to push each other out.
  void put(const std::string& model, Token from, int prefixes,
           std::initializer_list<Tier> tiers = {Tier::host}) {
    const Namespace of = small_namespace(model);
    const auto handle = client->open(of);
    for (int i = 0; i < prefixes; ++i) {
      for (const auto& block : prefix_of(id_of(of), 6, from + static_cast<Token>(i) * 1000))
        (void)client->put(handle, of, block, tiers);
    }
  }

  Scratch scratch;
  ServiceManager manager;
  std::optional<Kvtierd> daemon;
  std::optional<WireClient> client;
};

TEST_F(ServerEvents, a_subscriber_has_the_index_through_evictions_drops_and_a_killed_daemon) {
  start();
  EventSubscriber subscriber(endpoint(), replay_endpoint());
  put("m", 1, 40, {Tier::host, Tier::device});
  put("other", 500'000, 5);
  ASSERT_TRUE(client->flush());
  ASSERT_TRUE(is_exact(subscriber));
  const auto tiers = [&](const std::string& medium) {
    return std::ranges::count_if(
        subscriber.view(), [&](const auto& seen) { return seen.second.media.contains(medium); });
  };
  EXPECT_GT(tiers("GPU"), 0);
  EXPECT_GT(tiers("CPU"), 200);
  EXPECT_GT(tiers("STORAGE"), 0);  // of a long queue of writes some may have been left out

  // More than the index holds, so that all tiers evict.
  put("m", 1'000'000, 200);
  ASSERT_TRUE(client->flush());
  // Of those, any may have been left out of a long queue of writes.
  put("m", 1'500'000, 1);
  ASSERT_TRUE(client->flush());
  ASSERT_TRUE(is_exact(subscriber));

  // Out of memory, and back from the disk.
  ctl("drop --tier device --tier host");
  ASSERT_TRUE(is_exact(subscriber));
  EXPECT_EQ(tiers("CPU"), 0);
  const Namespace m = small_namespace("m");
  const auto handle = client->open(m);
  EXPECT_EQ(client->look(handle, m, prefix_of(id_of(m), 6, 1'500'000)).size(), 6U);
  ASSERT_TRUE(is_exact(subscriber));
  EXPECT_EQ(tiers("CPU"), 6);

  // A namespace that is wanted no more.
  put("gone", 2'000'000, 10);
  ASSERT_TRUE(client->flush());
  ASSERT_TRUE(is_exact(subscriber));
  ctl("invalidate gone");
  ASSERT_TRUE(is_exact(subscriber));
  for (const auto& [name, seen] : subscriber.view()) EXPECT_NE(seen.model, "gone");

  const std::uint64_t before = *subscriber.last();
  kill_and_start();
  // Its numbers go on behind those of the daemon before.
  ASSERT_TRUE(subscriber.comes_to([&](const View&) { return *subscriber.last() > before; }));
  ASSERT_TRUE(is_exact(subscriber));
  EXPECT_GT(subscriber.view().size(), 500U);
  put("m", 3'000'000, 20);
  ASSERT_TRUE(client->flush());
  ASSERT_TRUE(is_exact(subscriber));
  EventSubscriber late(endpoint(), replay_endpoint());
  late.ask(0);
  ASSERT_TRUE(is_exact(late));

  const Json events = status()["events"];
  EXPECT_EQ(events["listening"], true);
  EXPECT_EQ(events["lost"], 0);
  EXPECT_GT(events["snapshots"], 0);
  EXPECT_NE(ctl("status").find("\nevents      "), std::string::npos);
}

TEST_F(ServerEvents, subscribers_that_come_and_go_while_it_changes_are_exact_in_the_end) {
  start("replay_size = '64KiB'\nqueue_size = '256KiB'\n");
  for (Token round = 0; round < 5; ++round) {
    EventSubscriber subscriber(endpoint(), replay_endpoint());
    put("m", round * 10'000'000, 60);
    subscriber.read(std::chrono::milliseconds(100));
    put("m", round * 10'000'000, 120);
    ASSERT_TRUE(is_exact(subscriber)) << "round " << round;
  }
}

TEST_F(ServerEvents, the_socket_is_for_those_whom_the_mode_names) {
  start("ipc_mode = '0620'\n");
  EventSubscriber subscriber(endpoint(), replay_endpoint());
  put("m", 1, 1);
  ASSERT_TRUE(is_exact(subscriber));
  for (const char* name : {"e", "r"}) {
    struct stat file {};
    ASSERT_EQ(::stat(path(name).c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0620U);
  }
}

TEST_F(ServerEvents, a_place_that_is_not_there_is_said_and_does_not_keep_the_cache) {
  daemon.emplace(
      scratch, small_config(scratch) + "[events]\nendpoint = 'ipc://" + path("missing/e") + "'\n");
  client.emplace(WireClient::greeted(path("s")));
  put("m", 1, 1);
  EXPECT_TRUE(comes_to_hold([&] {
    return daemon->output().find("events: cannot listen on ipc://") != std::string::npos;
  }));
  EXPECT_EQ(status()["events"]["listening"], false);
  EXPECT_NE(ctl("status").find("not published"), std::string::npos);
  ASSERT_EQ(::mkdir(path("missing").c_str(), 0700), 0);
  EXPECT_TRUE(comes_to_hold([&] { return status()["events"]["listening"] == true; }));
}

}  // namespace
}  // namespace kvtier::daemon::testing
