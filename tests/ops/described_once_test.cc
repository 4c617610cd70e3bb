// The daemon describes itself once: whoever is asked, what has one name has one value.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/ops/running_daemon.h"

namespace kvtier::daemon::testing {
namespace {

using Json = nlohmann::json;

class DescribedOnce : public ::testing::Test {
 protected:
  std::string more() const {
    return disk_config((scratch / "disk").string()) +
           "[device]\ncapacity = '1MiB'\nextent_size = '256KiB'\nhuge_pages = false\n";
  }
  WireClient connect() { return WireClient::greeted((scratch / "s").string()); }
  Json ctl(const std::string& command) {
    std::FILE* run = ::popen(
        (KVTIER_CTL " --socket " + (scratch / "s").string() + " " + command + " --json").c_str(),
        "r");
    std::string text;
    for (int c; (c = std::fgetc(run)) != EOF;) text += static_cast<char>(c);
    EXPECT_EQ(::pclose(run), 0) << text;
    return Json::parse(text);
  }
  // Compares what both have, and says how much that was.
  std::size_t compare(const Json& a, const Json& b, const std::string& where) {
    std::size_t compared = 0;
    for (const auto& [key, value] : a.items()) {
      if (!b.contains(key) || kOfTheAsking.contains(key)) continue;
      const Json& other = b[key];
      if (value.is_array() && other.is_array()) {
        EXPECT_EQ(value.size(), other.size()) << where << key;
        for (std::size_t i = 0; i < value.size() && i < other.size(); ++i)
          compared += compare(value[i], other[i], where + key + "/");
      } else if (!value.is_structured()) {
        EXPECT_EQ(value, other) << where << key;
        ++compared;
      }
    }
    return compared;
  }
  // What asking changes, or time, or what is a number here and a list there.
  const std::set<std::string> kOfTheAsking{"namespaces", "sessions", "age_s"};

  Scratch scratch;
  RunningDaemon daemon{scratch, more()};
};

TEST_F(DescribedOnce, the_status_on_the_wire_and_over_http_have_no_figure_that_differs) {
  const Namespace ns = small_namespace("m");
  auto client = connect();
  const auto handle = client.open(ns);
  const auto blocks = prefix_of(id_of(ns), 6, 1);
  for (const auto& block : blocks) ASSERT_TRUE(client.put(handle, ns, block));
  ASSERT_TRUE(client.flush());
  ASSERT_EQ(client.look(handle, ns, blocks).size(), 6U);
  ASSERT_EQ(client.reserve(handle, 5).size(), 5U);
  ASSERT_EQ(client.lease(handle, std::span(blocks).first(3)).size(), 3U);
  const Json wire = ctl("status");
  const Json http = Json::parse(daemon.get("/status").body);
  // At least: tiers' bytes, blocks, hits and insertions, GPUs, disks, and the counters.
  EXPECT_GE(compare(wire, http, ""), 50U);
  EXPECT_EQ(wire["leases"], 1U);
  EXPECT_EQ(wire["namespaces"], http["namespaces_known"]);

  const Json sessions = ctl("sessions")["sessions"];
  const Json& peers = wire["peers"];
  const auto of = [&](const Json& list, const char* id) {
    for (const Json& session : list) {
      if (session[id] == http["sessions"][0]["id"]) return session;
    }
    ADD_FAILURE() << "it is not in the list: " << list.dump();
    return Json();
  };
  const Json& seen = http["sessions"][0];  // the one that holds the most
  EXPECT_EQ(seen["leased_blocks"], 3U);
  EXPECT_EQ(of(sessions, "id")["blocks_leased"], 3U);
  EXPECT_EQ(of(sessions, "id")["slots_reserved"], 5U);
  EXPECT_EQ(of(peers, "session")["leased_blocks"], 3U);
  EXPECT_EQ(of(peers, "session")["reserved_slots"], 5U);
}

}  // namespace
}  // namespace kvtier::daemon::testing
