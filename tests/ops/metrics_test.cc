// What is served against docs/metrics.md, against promtool, and with names that mean harm.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "daemon/limits.h"
#include "tests/ops/running_daemon.h"

namespace kvtier::daemon::testing {
namespace {

// name: type and labels, as "counter tier reason".
using Table = std::map<std::string, std::string>;

Table documented() {
  std::ifstream file(KVTIER_SOURCE_DIR "/docs/metrics.md");
  Table table;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `kvtier_") && !line.starts_with("| `process_")) continue;
    std::istringstream cells(line);
    std::string cell, name, type, labels;
    std::getline(cells, cell, '|');
    for (std::string* field : {&name, &type, &labels}) {
      std::getline(cells, cell, '|');
      std::erase_if(cell, [](char c) { return c == '`' || c == ','; });
      std::istringstream words(cell);
      for (std::string word; words >> word;) *field += (field->empty() ? "" : " ") + word;
    }
    table[name] = type + (labels.empty() ? "" : " " + labels);
  }
  return table;
}

Table served(const std::string& text) {
  Table table;
  std::map<std::string, std::string> types;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) {
      const auto space = line.rfind(' ');
      types[line.substr(7, space - 7)] = line.substr(space + 1);
      continue;
    }
    if (line.starts_with('#')) continue;
    std::string name = line.substr(0, line.find_first_of("{ "));
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      if (name.ends_with(suffix) &&
          types.contains(name.substr(0, name.size() - std::strlen(suffix))))
        name.resize(name.size() - std::strlen(suffix));
    }
    std::string labels;
    for (auto at = line.find('{'); at != std::string::npos && at < line.size();) {
      const auto end = line.find("=\"", at);
      if (end == std::string::npos) break;
      const std::string label = line.substr(at + 1, end - at - 1);
      if (label != "le") labels += " " + label;
      at = line.find("\",", end + 2);
      if (at != std::string::npos) ++at;
    }
    table[name] = types.at(name) + labels;
  }
  return table;
}

class MetricsTest : public ::testing::Test {
 protected:
  std::string more() const {
    std::filesystem::create_directory(scratch / "shared");
    return disk_config((scratch / "disk").string()) +
           "[device]\ncapacity = '1MiB'\nextent_size = '256KiB'\nhuge_pages = false\n" +
           "[remote]\nurl = 'file://" + (scratch / "shared").string() + "'\n";
  }
  void open_and_use(WireClient& client, const std::string& model) {
    const Namespace ns = small_namespace(model);
    const auto handle = client.open(ns);
    const auto blocks = prefix_of(id_of(ns), 4, 1);
    for (const auto& block : blocks) ASSERT_TRUE(client.put(handle, ns, block));
    ASSERT_EQ(client.look(handle, ns, blocks).size(), 4U);
    ASSERT_TRUE(client.flush());
  }
  WireClient connect() { return WireClient::greeted((scratch / "s").string()); }
  std::string text() const { return daemon.get("/metrics").body; }
  // The exit code of `promtool check metrics`.
  int promtool_check(const std::string& metrics) {
    std::ofstream(scratch / "metrics", std::ios::binary) << metrics;
    const std::string command = "promtool=$(" KVTIER_FIND_PROMTOOL
                                ") || exit $?; \"$promtool\" check metrics <" +
                                (scratch / "metrics").string();
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static constexpr int kNoPromtool = 77;

  Scratch scratch;
  RunningDaemon daemon{scratch, more()};
};

TEST_F(MetricsTest, are_those_of_the_documentation_with_their_types_and_labels) {
  auto client = connect();
  open_and_use(client, "m");
  const Table in_docs = documented(), in_fact = served(text());
  for (const auto& [name, what] : in_fact) {
    EXPECT_TRUE(in_docs.contains(name))
        << "| `" << name << "` | " << what << " | is not in docs/metrics.md";
    if (in_docs.contains(name)) {
      EXPECT_EQ(in_docs.at(name), what) << name;
    }
  }
  for (const auto& [name, what] : in_docs)
    EXPECT_TRUE(in_fact.contains(name)) << name << " is not served";
}

TEST_F(MetricsTest, pass_promtool) {
  auto client = connect();
  open_and_use(client, "m");
  if (const int code = promtool_check(text()); code == kNoPromtool) {
    GTEST_SKIP() << "there is no promtool; the output above says why";
  } else {
    EXPECT_EQ(code, 0);
  }
}

TEST_F(MetricsTest, of_use_agree_with_what_the_client_did) {
  auto client = connect();
  open_and_use(client, "m");
  const Metrics metrics = daemon.metrics();
  EXPECT_EQ(sum_of(metrics, "kvtier_hit_blocks_total", "tier=\"host\""), 4);
  EXPECT_EQ(sum_of(metrics, "kvtier_hit_blocks_total", "model=\"m\""), 4);
  EXPECT_EQ(sum_of(metrics, "kvtier_tier_blocks", "tier=\"disk\""), 4);
  EXPECT_EQ(sum_of(metrics, "kvtier_disk_write_seconds_count"), 4);
  EXPECT_EQ(sum_of(metrics, "kvtier_disk_write_seconds_bucket", "le=\"+Inf\""), 4);
  EXPECT_EQ(metrics.at("kvtier_sessions"), 1);
  EXPECT_GT(metrics.at("process_resident_memory_bytes"), 1e6);
}

TEST_F(MetricsTest, tell_where_age_decides_and_which_chance_is_worth_a_write) {
  const auto is_ready = [](const RunningDaemon& of) { return of.get("/readyz").status == 200; };
  ASSERT_TRUE(comes_to_hold([&] { return is_ready(daemon); }));
  const Metrics now = daemon.metrics();
  EXPECT_EQ(sum_of(now, "kvtier_tier_goes_by_age"), 0);
  EXPECT_EQ(now.at("kvtier_disk_write_chance_min"), WriteBudget::kChanceMin);
  const Scratch other;
  const RunningDaemon by_age(other, "[cache]\npolicy = 'lru'\n");
  ASSERT_TRUE(comes_to_hold([&] { return is_ready(by_age); }));
  EXPECT_EQ(sum_of(by_age.metrics(), "kvtier_tier_goes_by_age", "tier=\"host\""), 1);
}

// Four blocks, far more than 1 KiB a day allows in some seconds.
TEST_F(MetricsTest, tell_that_a_budget_of_writes_has_been_used_up) {
  const Scratch other;
  const RunningDaemon frugal(other, disk_config((other / "disk").string()) +
                                        "admission = 'expected_reuse'\nwrite_budget = '1KiB'\n");
  auto client = WireClient::greeted((other / "s").string());
  open_and_use(client, "m");
  EXPECT_TRUE(comes_to_hold([&] {
    return frugal.metrics().at("kvtier_disk_write_chance_min") > WriteBudget::kChanceMin;
  }));
}

TEST_F(MetricsTest,
       reports_of_clients_are_summed_up_and_one_with_too_many_counters_ends_its_session) {
  auto client = connect();
  for (int i = 0; i < 2; ++i) {
    client.send([](WireClient::Builder m) {
      auto report = m.initReport();
      report.setProofFaults(2);
      report.initDropped(kDropReasons).set(1, 3);
      auto loads = report.initLoads(kTiers);
      loads[1].initBuckets(kLog2Buckets + 1).set(10, 5);
      loads[1].setSumUs(4000);
      loads[1].setBytes(1 << 20);
    });
  }
  ASSERT_TRUE(client.status().has_value());
  const Metrics metrics = daemon.metrics();
  EXPECT_EQ(sum_of(metrics, "kvtier_block_faults_total", "proof"), 4);
  EXPECT_EQ(sum_of(metrics, "kvtier_write_backs_dropped_total", "queue_full"), 6);
  EXPECT_EQ(sum_of(metrics, "kvtier_client_load_seconds_count", "host"), 10);
  EXPECT_NEAR(sum_of(metrics, "kvtier_client_load_seconds_sum", "host"), 0.008, 1e-9);
  EXPECT_EQ(sum_of(metrics, "kvtier_client_loaded_bytes_total", "host"), 2 << 20);
  client.send([](WireClient::Builder m) { m.initReport().initDropped(kDropReasons + 1); });
  EXPECT_TRUE(client.is_closed());
  auto other = connect();
  other.send(
      [](WireClient::Builder m) { m.initReport().initWriteBacks().initBuckets(kLog2Buckets + 2); });
  EXPECT_TRUE(other.is_closed());
  auto third = connect();
  third.send([](WireClient::Builder m) { m.initReport().initMissed(1)[0].setNs(5); });
  EXPECT_TRUE(third.is_closed());
}

TEST_F(MetricsTest, with_hostile_names_stay_well_formed) {
  auto client = connect();
  const std::string hostile =
      "</script>\"} 1\nkvtier_evil 666\n\\\" \xff<img src=x onerror=alert(1)>";
  open_and_use(client, hostile);
  const std::string body = text();
  EXPECT_EQ(body.find("\nkvtier_evil"), std::string::npos);
  const auto status = nlohmann::json::parse(daemon.get("/status").body);
  ASSERT_EQ(status["namespaces"].size(), 1U);
  EXPECT_EQ(status["namespaces"][0]["model"],
            R"(</script>"} 1\x0akvtier_evil 666\x0a\" \xff<img src=x onerror=alert(1)>)");
  const int code = promtool_check(body);
  EXPECT_TRUE(code == 0 || code == kNoPromtool) << code;
}

TEST_F(MetricsTest, of_thousands_of_namespaces_are_no_more_than_the_bound) {
  std::vector<WireClient> clients;
  for (std::uint32_t n = 0; n < 200; ++n) {
    if (n % limits::kNamespacesPerSessionMax == 0) clients.push_back(connect());
    const auto handle = clients.back().open(small_namespace("m" + std::to_string(n)));
    clients.back().send([&](WireClient::Builder m) {
      auto missed = m.initReport().initMissed(1)[0];
      missed.setNs(handle);
      missed.setBlocks(n);
    });
  }
  for (auto& client : clients) ASSERT_TRUE(client.status().has_value());
  const Metrics metrics = daemon.metrics();
  const auto series = std::ranges::count_if(metrics, [](const auto& metric) {
    return metric.first.starts_with("kvtier_looked_up_blocks_total");
  });
  EXPECT_EQ(series, limits::kNamespaceLabelsMax + 1);
  EXPECT_EQ(sum_of(metrics, "kvtier_looked_up_blocks_total"), 200 * 199 / 2);
  const auto status = nlohmann::json::parse(daemon.get("/status").body);
  EXPECT_EQ(status["namespaces"].size(), limits::kNamespacesShownMax);
  EXPECT_EQ(status["namespaces_known"], 200);
}

std::string source_file(const std::string& path) {
  std::ifstream file(std::string(KVTIER_SOURCE_DIR "/") + path);
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

TEST(Dashboard, asks_only_for_metrics_that_are_served) {
  const Table in_docs = documented();
  // Those of the bundled engine are in no table of the daemon's.
  const std::string of_engine = source_file("engine_adapter/reference/server/server_metrics.cc");
  for (const char* name : {"kvtier-dashboard.json", "kvtier-alerts.yml"}) {
    const std::string text = source_file(std::string("docs/monitoring/") + name);
    std::size_t asked = 0;
    for (std::size_t at = 0; (at = text.find("kvtier_", at)) != std::string::npos; ++asked) {
      const auto end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", at);
      std::string metric = text.substr(at, end - at);
      const bool recorded = at > 0 && text[at - 1] == ':';
      for (const char* suffix : {"_bucket", "_sum", "_count"}) {
        if (metric.ends_with(suffix)) metric.resize(metric.size() - std::strlen(suffix));
      }
      if (!recorded) {
        EXPECT_TRUE(in_docs.contains(metric) ||
                    of_engine.find('"' + metric + '"') != std::string::npos)
            << metric << " in " << name;
      }
      at = end;
    }
    EXPECT_GT(asked, 10U) << name;
  }
}

}  // namespace
}  // namespace kvtier::daemon::testing
