// kvtier-bench clients as a whole, with a kvtierd, small enough for every test run.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/e2e/run_program.h"

namespace kvtier::bench {
namespace {

TEST(ClientsBench, measures_a_lease_beside_clients_that_are_idle_and_that_hold_leases) {
  const auto outcome = e2e::run(std::string(KVTIER_BENCH) +
                                " clients --clients 3 --blocks 40 --seconds 0.05 --dir " +
                                testing::TempDir() + " --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  std::map<std::string, nlohmann::json> rows;
  for (const auto& row : nlohmann::json::parse(outcome.output)) rows[row.at("name")] = row;
  EXPECT_EQ(rows.size(), 8U) << outcome.output;
  for (const std::string others : {"idle", "holding"}) {
    for (const std::string share : {"p50", "p99"}) {
      const std::string name = "clients.lease_40." + share + "_us." + others;
      const auto& alone = rows[name + ".1"];
      const auto& beside = rows[name + ".3"];
      ASSERT_TRUE(alone.contains("value") && beside.contains("value")) << name;
      EXPECT_GT(alone.at("value").get<double>(), 0);
      EXPECT_TRUE(alone.at("limit").is_null());
      EXPECT_EQ(beside.at("limit"), alone.at("value"));
    }
    EXPECT_LE(rows["clients.lease_40.p50_us." + others + ".3"].at("value"),
              rows["clients.lease_40.p99_us." + others + ".3"].at("value"));
  }
}

TEST(ClientsBench, takes_no_more_clients_than_a_user_may_have) {
  EXPECT_EQ(e2e::run(std::string(KVTIER_BENCH) + " clients --clients 129").exit_code, 2);
}

}  // namespace
}  // namespace kvtier::bench
