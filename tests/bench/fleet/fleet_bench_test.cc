// kvtier-bench fleet as a whole, with a trace of its own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/bench/fleet/fleet_traces.h"
#include "tests/e2e/run_program.h"

namespace kvtier::bench {
namespace {

class FleetBench : public ::testing::Test {
 protected:
  const std::string file = testing::TempDir() + std::to_string(::getpid()) + "-fleet_bench.jsonl";

  FleetBench() {
    std::ofstream lines(file);
    for (const auto& request : conversations_of(1, 1000).requests) {
      lines << nlohmann::json{{"timestamp", request.at_ms},
                              {"input_length", request.input_tokens},
                              {"output_length", request.output_tokens},
                              {"hash_ids", request.blocks}}
                   .dump()
            << "\n";
    }
  }
  ~FleetBench() override { std::remove(file.c_str()); }

  e2e::Outcome bench(const std::string& command, const std::string& options) const {
    return e2e::run(std::string(KVTIER_BENCH) + " " + command + " --trace " + file + " " + options);
  }
  std::map<std::string, nlohmann::json> rows(const std::string& command,
                                             const std::string& options) const {
    const auto outcome = bench(command, "--json " + options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::map<std::string, nlohmann::json> rows;
    for (const auto& row : nlohmann::json::parse(outcome.output)) rows[row.at("name")] = row;
    return rows;
  }
  static double value(const nlohmann::json& row) { return row.at("value").get<double>(); }
};

TEST_F(FleetBench, tells_each_policy_and_routing_alone_and_beside_it_with_a_store) {
  const auto all =
      rows("fleet",
           "--hosts 4 --blocks 100 --disk-blocks 50 --remote-blocks 0 "
           "--remote-blocks 500 --network-rate 0.5GB --network-rate 10G --disk-rate 1.9GB");
  EXPECT_EQ(value(all.at("fleet.hosts")), 4);
  EXPECT_EQ(value(all.at("fleet.requests")), 1000);
  for (const std::string policy : {"lru", "hit_density"}) {
    for (const std::string routing : {"random", "round_robin", "session", "cache"}) {
      const std::string of = "." + policy + "." + routing;
      const auto& alone = all.at("fleet.hit_share" + of + ".alone");
      EXPECT_GT(value(alone), 0);
      EXPECT_TRUE(alone.at("limit").is_null());
      EXPECT_NEAR(value(alone),
                  value(all.at("fleet.hit_share_host" + of + ".alone")) +
                      value(all.at("fleet.hit_share_disk" + of + ".alone")),
                  1e-12);
      EXPECT_GT(value(all.at("fleet.disk_written" + of + ".alone")), 0);
      for (const std::string rate : {"0.5", "10"}) {
        const std::string with = of + ".remote.500." + rate;
        EXPECT_GE(value(all.at("fleet.hit_share" + with)), value(alone));
        EXPECT_EQ(all.at("fleet.hit_share" + with).at("limit"), alone.at("value"));
        EXPECT_GT(value(all.at("fleet.network_written" + with)), 0);
        EXPECT_LE(value(all.at("fleet.first_token_p50" + with)),
                  value(all.at("fleet.first_token_p99" + with)));
      }
    }
  }
}

TEST_F(FleetBench, of_one_host_says_what_trace_says) {
  const auto fleet = rows("fleet", "--hosts 1 --blocks 100 --disk-blocks 80 --remote-blocks 0");
  const auto trace = rows("trace", "--blocks 100 --disk-blocks 80 --cost-blocks 0");
  EXPECT_EQ(value(fleet.at("fleet.hit_share.endless")), value(trace.at("trace.hit_share.endless")));
  for (const std::string policy : {"lru", "hit_density"}) {
    EXPECT_EQ(value(fleet.at("fleet.hit_share." + policy + ".cache.alone")),
              value(trace.at("trace.hit_share." + policy + ".100")));
    EXPECT_EQ(value(fleet.at("fleet.disk_written." + policy + ".random.alone")),
              value(trace.at("trace.written." + policy + ".100")));
  }
}

TEST_F(FleetBench, says_the_same_whatever_the_threads) {
  const std::string options = "--json --hosts 3 --blocks 80 --copies 2 --seed 7 --threads ";
  const auto one = bench("fleet", options + "1");
  ASSERT_EQ(one.exit_code, 0) << one.output;
  EXPECT_EQ(one.output, bench("fleet", options + "3").output);
}

TEST_F(FleetBench, shows_a_line_for_each_fleet) {
  const auto outcome = bench("fleet", "--hosts 2 --blocks 90 --policy lru --routing session");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.output.find("2 hosts of 90 blocks of 32.00 MiB"), 0U) << outcome.output;
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 5);
  EXPECT_NE(outcome.output.find("lru     session   50000     3  "), std::string::npos)
      << outcome.output;
}

TEST_F(FleetBench, refuses_what_is_no_fleet) {
  for (const std::string options :
       {"--hosts 0", "--hosts 10001", "--blocks 0", "--routing nearest", "--policy fifo",
        "--remote-blocks -1", "--network-rate 0", "--speed 0", "--copies 0", "--session-blocks 0",
        "--load-seconds 0", "--admission expected_reuse", "--remote-admission none",
        "--compute-rate 0", "--threads 0"}) {
    const auto outcome = bench("fleet", options);
    EXPECT_EQ(outcome.exit_code, 2) << options << ": " << outcome.output;
    EXPECT_NE(outcome.output.find(options.substr(0, options.find(' '))), std::string::npos)
        << options << ": " << outcome.output;
  }
  EXPECT_EQ(e2e::run(std::string(KVTIER_BENCH) + " fleet").exit_code, 2);
}

TEST_F(FleetBench, names_the_line_that_is_wrong) {
  std::ofstream(file, std::ios::app) << "{\"timestamp\": 1}\n";
  const auto outcome = bench("fleet", "");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.output.find("fleet_bench.jsonl:1001: no 'input_length': add it"),
            std::string::npos)
      << outcome.output;
}

TEST_F(FleetBench, says_that_descriptors_are_too_few) {
  const auto outcome =
      e2e::run("ulimit -n 100; " + std::string(KVTIER_BENCH) + " fleet --hosts 90 --trace " + file);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.output.find("raise the hard limit (ulimit -Hn)"), std::string::npos)
      << outcome.output;
}

}  // namespace
}  // namespace kvtier::bench
