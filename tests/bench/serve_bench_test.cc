// kvtier-serve-bench as a whole, with a kvtierd, small enough for every test run.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/e2e/run_program.h"

namespace kvtier::bench {
namespace {

std::map<std::string, nlohmann::json> rows_of(const std::string& arguments) {
  const auto outcome = e2e::run(std::string(KVTIER_SERVE_BENCH) + " --model " + KVTIER_MODEL +
                                " --size tiny --host-capacity 64MiB"
                                " --host-extent 16MiB --deadline-seconds 200 --json " +
                                arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  // What it says meanwhile comes first.
  const auto begin = outcome.output.find("\n[\n");
  EXPECT_NE(begin, std::string::npos) << outcome.output;
  std::map<std::string, nlohmann::json> rows;
  if (begin == std::string::npos) return rows;
  for (const auto& row : nlohmann::json::parse(outcome.output.substr(begin))) {
    EXPECT_TRUE(row.contains("unit") && row.contains("limit") && row.contains("ratio")) << row;
    EXPECT_TRUE(rows.emplace(row.at("name"), row).second) << row.at("name") << " is there twice";
  }
  return rows;
}

double value(const std::map<std::string, nlohmann::json>& rows, const std::string& name) {
  const auto at = rows.find(name);
  if (at != rows.end()) return at->second.at("value");
  ADD_FAILURE() << "no row " << name;
  return 0;
}

void expect_figures(const std::map<std::string, nlohmann::json>& rows, const std::string& name) {
  EXPECT_GT(value(rows, name + ".requests"), 0);
  EXPECT_GT(value(rows, name + ".requests_per_s"), 0);
  for (const std::string latency : {".first_token", ".inter_token"}) {
    EXPECT_GT(value(rows, name + latency + "_p50"), 0);
    EXPECT_GE(value(rows, name + latency + "_p99"), value(rows, name + latency + "_p50"));
  }
  double share = 0;
  for (const std::string from : {"own_pages", "hbm", "host", "nvme", "computed"}) {
    share += value(rows, name + ".tokens_from." + from);
  }
  EXPECT_NEAR(share, 100, 1e-6) << name;
}

void expect_no_difference(const std::map<std::string, nlohmann::json>& rows,
                          const std::string& name) {
  for (const std::string mode : {".without_cache", ".with_cache"}) {
    EXPECT_GT(value(rows, name + mode + ".answers_compared"), 0);
    EXPECT_EQ(value(rows, name + mode + ".answers_different"), 0);
  }
}

TEST(ServeBench, measures_a_shared_prompt_and_a_chat_with_the_cache_and_without) {
  const auto rows = rows_of("--pool-tokens 1024 --workload shared_prompt --workload chat");
  for (const std::string workload : {"shared_prompt", "chat"}) {
    for (const std::string mode : {".without_cache", ".with_cache"}) {
      expect_figures(rows, workload + mode);
      EXPECT_GT(value(rows, workload + mode + ".saturated.requests_per_s"), 0);
    }
    EXPECT_EQ(value(rows, workload + ".without_cache.tokens_from.host"), 0);
    expect_no_difference(rows, workload);
  }
}

// Nothing stays in the engine's own pages, so that documents come from the daemon.
TEST(ServeBench, finds_the_rates_at_which_questions_about_documents_hold_the_bound) {
  const auto rows = rows_of(
      "--workload document_qa --pool-tokens 1024 --no-own-pages --storage-format int4 --rate 5 "
      "--first-token-bound-ms "
      "60000"
      " --trial-seconds 60 --search-seconds 0");
  for (const std::string mode : {".without_cache", ".with_cache", ".with_cache.from_cold"}) {
    expect_figures(rows, "document_qa" + mode);
  }
  EXPECT_EQ(value(rows, "document_qa.first_token_p99_bound"), 60000);
  EXPECT_EQ(value(rows, "document_qa.without_cache.rate_held"), 5);
  EXPECT_EQ(value(rows, "document_qa.without_cache.tokens_from.host"), 0);
  EXPECT_GT(value(rows, "document_qa.cached_beforehand"), 0);
  EXPECT_GT(value(rows, "document_qa.with_cache.tokens_from.host"), 0);
  expect_no_difference(rows, "document_qa");
}

// Two documents, and pages for one: whoever was parked came back at once onto the other's pages.
TEST(ServeBench, gets_on_where_two_documents_do_not_fit_into_the_pool) {
  const auto rows = rows_of(
      "--workload document_qa --pool-tokens 512 --running-max 2 --rate 5"
      " --first-token-bound-ms 60000 --trial-seconds 60 --search-seconds 0");
  expect_no_difference(rows, "document_qa");
}

TEST(ServeBench, tells_what_pages_and_continuous_batches_give) {
  const auto rows =
      rows_of("--pool-tokens 2048 --workload shared_prompt --batching --longest-context 512");
  const std::string name = "shared_prompt.batching.";
  const auto of = [&](const std::string& way, const std::string& what) {
    return value(rows, name + way + "." + what);
  };
  for (const std::string way :
       {"contiguous_fixed", "contiguous", "pages", "pages_shared_fixed", "pages_shared"}) {
    EXPECT_EQ(of(way, "answers_different"), 0) << way;
    EXPECT_GT(of(way, "requests_per_s"), 0) << way;
    EXPECT_LE(of(way, "requests_mean"), of(way, "requests_at_once")) << way;
  }
  EXPECT_EQ(of("contiguous", "requests_at_once"), 4) << "2,048 tokens by 512";
  EXPECT_EQ(of("contiguous_fixed", "requests_at_once"), 4);
  EXPECT_GT(of("pages", "requests_at_once"), 4);
  EXPECT_GE(of("pages_shared", "requests_at_once"), of("pages", "requests_at_once"));
  EXPECT_LT(of("contiguous", "tokens_a_place"), of("pages", "tokens_a_place"));
}

TEST(ServeBench, refuses_what_it_does_not_know) {
  const std::string program = KVTIER_SERVE_BENCH;
  EXPECT_EQ(e2e::run(program).exit_code, 2);
  EXPECT_EQ(e2e::run(program + " --model " + KVTIER_MODEL + " --workload other").exit_code, 2);
  const auto raw = e2e::run(program + " --model " + KVTIER_MODEL + " --storage-format raw");
  EXPECT_EQ(raw.exit_code, 1);
  EXPECT_NE(raw.output.find("int4"), std::string::npos) << raw.output;
}

TEST(ServeBench, refuses_prompts_that_the_model_does_not_take) {
  const auto outcome = e2e::run(std::string(KVTIER_SERVE_BENCH) + " --model " + KVTIER_MODEL +
                                " --workload document_qa --size large");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.output.find("choose a smaller --size"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace kvtier::bench
