// kvtier-bench trace as a whole, with a trace of its own.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/e2e/run_program.h"

namespace kvtier::bench {
namespace {

class TraceBench : public ::testing::Test {
 protected:
  const std::string file = testing::TempDir() + std::to_string(::getpid()) + "-trace_bench.jsonl";

  // Conversations of two turns, the second 20 requests after the first, among prompts that nobody
  // asks for again.
  TraceBench() {
    std::ofstream lines(file);
    int next = 1;
    std::vector<std::vector<int>> first_turns;
    for (int i = 0; i < 2000; ++i) {
      std::vector<int> blocks{0};
      const bool second = i % 2 == 1 && i >= 40;
      if (second) blocks = first_turns[static_cast<std::size_t>(i / 2 - 20)];
      for (int n = second || i % 2 == 0 ? 2 : 9; n > 0; --n) blocks.push_back(next++);
      if (i % 2 == 0) first_turns.push_back(blocks);
      write(lines, i, blocks);
      if (i % 2 == 0) {
        std::vector<int> lone{0};
        for (int n = 8; n > 0; --n) lone.push_back(next++);
        write(lines, i, lone);
      }
    }
  }
  ~TraceBench() override { std::filesystem::remove(file); }
  static void write(std::ostream& to, int i, const std::vector<int>& blocks) {
    to << nlohmann::json{{"timestamp", i * 700},
                         {"input_length", blocks.size() * 512},
                         {"output_length", 50},
                         {"hash_ids", blocks}}
              .dump()
       << "\n";
  }
  std::map<std::string, nlohmann::json> rows(const std::string& options) const {
    const auto outcome =
        e2e::run(std::string(KVTIER_BENCH) + " trace --trace " + file + " --json " + options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::map<std::string, nlohmann::json> rows;
    for (const auto& row : nlohmann::json::parse(outcome.output)) rows[row.at("name")] = row;
    return rows;
  }
  static double value(const nlohmann::json& row) { return row.at("value").get<double>(); }
};

TEST_F(TraceBench, tells_shares_by_policy_and_capacity_below_those_of_the_optimum) {
  const auto all = rows("--blocks 100 --blocks 250 --blocks 100000 --cost-blocks 0");
  EXPECT_EQ(value(all.at("trace.requests")), 3000);
  EXPECT_EQ(value(all.at("trace.block_tokens")), 512);
  const double endless = value(all.at("trace.hit_share.endless"));
  for (const std::string blocks : {"100", "250", "100000"}) {
    const auto& lru = all.at("trace.hit_share.lru." + blocks);
    const auto& density = all.at("trace.hit_share.hit_density." + blocks);
    EXPECT_EQ(density.at("limit"), lru.at("value"));
    EXPECT_GE(value(density), value(lru) - 0.003);
    EXPECT_LE(value(density), value(all.at("trace.hit_share.optimum." + blocks)));
    EXPECT_LE(value(all.at("trace.hit_share.optimum." + blocks)), endless);
  }
  EXPECT_GT(value(all.at("trace.hit_share.hit_density.100")),
            1.2 * value(all.at("trace.hit_share.lru.100")));
  EXPECT_EQ(value(all.at("trace.hit_share.lru.100000")), endless);
}

TEST_F(TraceBench, tells_where_two_tiers_hit_and_what_is_written) {
  const auto all = rows("--blocks 100 --disk-blocks 100000 --block-bytes 1MiB --cost-blocks 0");
  for (const std::string policy : {"lru", "hit_density"}) {
    EXPECT_EQ(value(all.at("trace.written." + policy + ".100")),
              value(all.at("trace.different_blocks")) * (1 << 20));
    EXPECT_NEAR(value(all.at("trace.hit_share_host." + policy + ".100")) +
                    value(all.at("trace.hit_share_disk." + policy + ".100")),
                value(all.at("trace.hit_share.endless")), 1e-9);
  }
  const auto second = rows(
      "--blocks 100 --disk-blocks 100000 --block-bytes 1MiB --cost-blocks 0 --admission "
      "second_hit");
  EXPECT_LT(value(second.at("trace.written.lru.100")), value(all.at("trace.written.lru.100")));
}

TEST_F(TraceBench, tells_what_an_operation_and_a_block_cost_beside_lru) {
  const auto all = rows("--blocks 100 --cost-blocks 10000");
  for (const std::string operation : {"insert", "touch", "evict"}) {
    const auto& lru = all.at("trace." + operation + "_ns.lru");
    const auto& density = all.at("trace." + operation + "_ns.hit_density");
    EXPECT_GT(value(lru), 0);
    EXPECT_DOUBLE_EQ(density.at("limit").get<double>(), 1.3 * value(lru));
  }
  EXPECT_GT(value(all.at("trace.bytes_per_block.lru")), 64);
}

TEST_F(TraceBench, names_the_line_that_is_wrong_and_the_mend) {
  std::ofstream(file, std::ios::app) << "{\"timestamp\": 1}\n";
  const auto outcome = e2e::run(std::string(KVTIER_BENCH) + " trace --trace " + file);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.output.find("trace_bench.jsonl:3001: no 'input_length': add it"),
            std::string::npos)
      << outcome.output;
  EXPECT_EQ(e2e::run(std::string(KVTIER_BENCH) + " trace").exit_code, 2);
}

}  // namespace
}  // namespace kvtier::bench
