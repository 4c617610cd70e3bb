#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/check.h"
#include "kvtier/client.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/run_program.h"

namespace kvtier::e2e {
namespace {

using Json = nlohmann::json;

class Programs : public testing::Test {
 protected:
  Programs() {
    daemon_.start();
    std::ofstream(prompt()) << std::string(3000, 'a') + " transaction isolation in a database";
  }
  std::string prompt() const { return (daemon_.directory() / "prompt.txt").string(); }
  std::string ctl(const std::string& arguments) const {
    return std::string(KVTIERCTL) + " --socket " + daemon_.socket() + " " + arguments;
  }
  std::string generate(const std::string& arguments) const {
    return std::string(KVTIER_ENGINE) + " generate --model " + KVTIER_MODEL + " --socket " +
           daemon_.socket() + " --prompt-file " + prompt() + " --max-tokens 4 " + arguments;
  }
  Json generated(const std::string& arguments) const {
    const Outcome outcome = run(generate("--json --deadline-ms 30000 " + arguments));
    KVTIER_CHECK(outcome.exit_code == 0);
    return Json::parse(outcome.output)["runs"][0];
  }
  // Engines, one after the other, until one finds all blocks of the prompt in the cache: on a busy
  // machine slots come too late, and what finds none is dropped so that nobody waits. The last one.
  Json generated_until_cached() const {
    const auto give_up = Clock::now() + std::chrono::minutes(3);
    for (;;) {
      const Json one = generated("--flush");
      if (one["reused_tokens"] == (one["prompt_tokens"].get<int>() - 1) / 16 * 16) return one;
      KVTIER_CHECK(Clock::now() < give_up);
    }
  }
  // Each tier has room for the whole prompt.
  DaemonProcess daemon_{{.device_capacity = "16MiB"}};
};

TEST_F(Programs, a_second_engine_reuses_what_the_first_one_wrote_and_says_from_where) {
  const auto first = generated("--flush");
  EXPECT_EQ(first["reused_tokens"], 0);
  EXPECT_EQ(first["source"], "none");
  EXPECT_EQ(first["connected"], true);
  const auto second = generated_until_cached();
  EXPECT_NE(second["source"], "none");
  EXPECT_EQ(second["answer_sha256"], first["answer_sha256"]);
  EXPECT_EQ(std::string(second["answer_sha256"]).size(), 64U);

  EXPECT_EQ(run(ctl("drop --tier device --tier host")).exit_code, 0);
  const auto third = generated("");
  EXPECT_EQ(third["source"], "disk");
  EXPECT_EQ(third["answer_sha256"], first["answer_sha256"]);
}

TEST_F(Programs, kvtierctl_scrub_checks_every_record_on_disk_and_reports) {
  generated_until_cached();
  const auto report = Json::parse(run(ctl("scrub --wait --json")).output);
  EXPECT_EQ(report["running"], false);
  EXPECT_GT(report["last"]["records"], 0);
  EXPECT_EQ(report["last"]["corrupt"], 0);
  const auto status = Json::parse(run(ctl("status --json")).output);
  EXPECT_EQ(status["disks"].size(), 1U);
  EXPECT_EQ(status["disks"][0]["blocks"], report["last"]["records"]);
  EXPECT_NE(run(ctl("scrub --report")).output.find("last pass"), std::string::npos);
}

TEST_F(Programs, kvtierctl_shows_tiers_hits_and_blocks_for_people_and_for_programs) {
  generated_until_cached();
  const auto status = Json::parse(run(ctl("status --json")).output);
  EXPECT_EQ(status["tiers"].size(), 3U);
  EXPECT_GT(status["looked_up"], 0);
  std::uint64_t hits = 0;
  for (const auto& tier : status["tiers"]) hits += tier["hits"].get<std::uint64_t>();
  EXPECT_GT(hits, 0U);
  ASSERT_EQ(status["gpus"].size(), 1U);
  EXPECT_EQ(status["gpus"][0]["name"], "memory");
  EXPECT_EQ(status["gpus"][0]["blocks"], status["tiers"][0]["blocks"]);
  EXPECT_EQ(status["gpus"][0]["used_bytes"], status["tiers"][0]["used_bytes"]);
  const auto table = run(ctl("status"));
  EXPECT_EQ(table.exit_code, 0);
  for (const char* word : {"device", "host", "disk", "MiB", "UUID"}) {
    EXPECT_NE(table.output.find(word), std::string::npos) << word << " is not in\n" << table.output;
  }
  const auto listed = Json::parse(run(ctl("ls --blocks 1000 --json")).output);
  // A block in device memory alone could not go to disk, nor could what follows it be reached
  // there.
  for (const auto& block : listed["blocks"]) {
    EXPECT_NE(block["tiers"].dump().find("disk"), std::string::npos) << block.dump();
  }
  EXPECT_EQ(listed["namespaces"].size(), 1U);
  EXPECT_GT(listed["blocks"].size(), 0U);
  const auto dropped = Json::parse(run(ctl("drop --all --json")).output);
  EXPECT_EQ(dropped["blocks_dropped"], listed["blocks"].size());
  EXPECT_EQ(Json::parse(run(ctl("ls --blocks 10 --json")).output)["blocks"].size(), 0U);
}

TEST_F(Programs, wrong_usage_exits_2_and_a_missing_daemon_exits_3_with_the_mend) {
  EXPECT_EQ(run(ctl("drop")).exit_code, 2);
  EXPECT_EQ(run(ctl("nonsense")).exit_code, 2);
  EXPECT_EQ(run(std::string(KVTIER_ENGINE) + " generate").exit_code, 2);
  daemon_.send(SIGTERM);
  const auto gone = run(ctl("status"));
  EXPECT_EQ(gone.exit_code, 3);
  EXPECT_NE(gone.output.find("is kvtierd running"), std::string::npos) << gone.output;
  EXPECT_NE(gone.output.find(daemon_.socket()), std::string::npos) << gone.output;
}

TEST_F(Programs, a_plan_knows_the_daemons_tiers_and_what_a_block_takes_in_them) {
  const auto plan = [](const std::string& more) {
    return run(std::string(KVTIER_ENGINE) + " plan --model " + KVTIER_MODEL + " --context 1024 " +
               more);
  };
  const auto planned = Json::parse(plan("--socket " + daemon_.socket() + " --json").output);
  EXPECT_EQ(planned["attention"], "GQA");
  const auto tiers = planned["formats"][0]["tiers"];
  ASSERT_EQ(tiers.size(), 3U);
  const auto status = daemon_.status();
  for (std::size_t t = 0; t < kTiers; ++t)
    EXPECT_EQ(tiers[t]["capacity_bytes"], status.cap_bytes[t]);

  generated_until_cached();
  const auto after = daemon_.status();
  EXPECT_EQ(after.used_bytes[1] / after.blocks[1], planned["formats"][0]["block_bytes"]);
  EXPECT_LE(after.blocks[0], tiers[0]["blocks"].get<std::uint64_t>());

  const auto by_hand = plan("--socket " + daemon_.socket() + " --host-tier 1GiB");
  EXPECT_NE(by_hand.output.find("1.00 GiB"), std::string::npos) << by_hand.output;
  EXPECT_NE(plan("").output.find("No tiers: give --config"), std::string::npos);
  EXPECT_EQ(plan("--host-tier 1GX").exit_code, 2);
  EXPECT_EQ(plan("--socket a --config b").exit_code, 2);
  const auto missing = plan("--config /nowhere/kvtierd.toml");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.output.find("/nowhere/kvtierd.toml"), std::string::npos) << missing.output;
}

TEST_F(Programs, a_plan_of_a_trace_says_what_more_memory_or_disk_buys) {
  const std::string file = testing::TempDir() + "/plan_trace.jsonl";
  {
    // Forty prompts that have their first block in common, asked for in turns, three times.
    std::ofstream lines(file);
    for (int i = 0; i < 120; ++i) {
      const int first = 1 + i % 40 * 3;
      lines << Json{{"timestamp", i * 1000},
                    {"input_length", 2000},
                    {"output_length", 10},
                    {"hash_ids", {0, first, first + 1, first + 2}}}
                   .dump()
            << "\n";
    }
  }
  const auto plan = [&](const std::string& more) {
    return run(std::string(KVTIER_ENGINE) + " plan --random-weights llama-3.1-8b --trace " + file +
               " " + more);
  };
  // A block of 512 tokens takes 32 MiB and some.
  const auto told = Json::parse(plan("--host-tier 2GiB --disk-tier 8GiB --json").output)["trace"];
  EXPECT_EQ(told["requests"], 120);
  const double endless = told["endless"]["share"];
  EXPECT_NEAR(endless, (480.0 - 121) / 480, 1e-9);
  ASSERT_EQ(told["sizes"].size(), 7U);
  for (const auto& size : told["sizes"]) {
    EXPECT_LE(size["hit_share"], size["optimum_share"]);
    EXPECT_LE(size["optimum_share"], endless);
    const auto disk = size["disk_bytes"].get<std::uint64_t>();
    const auto host = size["host_bytes"].get<std::uint64_t>();
    const auto share = size["hit_share"].get<double>();
    EXPECT_LE(share, endless);
    if (disk >= 8ULL << 30) {
      EXPECT_NEAR(share, endless, 1e-9);
    } else if (disk == 0 && host == 2ULL << 30) {
      EXPECT_LT(share, endless);
    }
  }
  const auto text = plan("--host-tier 2GiB --disk-tier 8GiB").output;
  EXPECT_NE(text.find("Twice the host memory (4.00 GiB and 8.00 GiB): +0.0 points"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("No disk (2.00 GiB and 0 B): -"), std::string::npos) << text;
  EXPECT_NE(plan("").output.find("74.8 % of their blocks were there before"), std::string::npos);
  std::ofstream(file, std::ios::app) << "{}\n";
  const auto wrong = plan("");
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.output.find("plan_trace.jsonl:121: no 'timestamp': add it"), std::string::npos)
      << wrong.output;
  EXPECT_EQ(plan("--trace-block-tokens 0").exit_code, 2);
}

TEST_F(Programs, an_engine_without_a_daemon_answers_and_says_so) {
  const auto with = generated("");
  daemon_.send(SIGTERM);
  const auto without = run(generate("--deadline-ms 100"));
  EXPECT_EQ(without.exit_code, 0);
  EXPECT_NE(without.output.find("without a cache"), std::string::npos) << without.output;
  EXPECT_NE(without.output.find(std::string(with["answer"])), std::string::npos);
}

TEST_F(Programs, a_truncated_model_a_token_that_it_does_not_have_and_a_missing_file_are_named) {
  const auto broken = daemon_.directory() / "model";
  std::filesystem::copy(KVTIER_MODEL, broken);
  std::filesystem::resize_file(broken / "model.safetensors", 100'000);
  const std::string command =
      std::string(KVTIER_ENGINE) + " generate --no-cache --max-tokens 1 --model ";
  const std::string plain = " --prompt x";
  auto outcome = run(command + broken.string() + plain);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.output.find("model.safetensors"), std::string::npos) << outcome.output;

  std::filesystem::copy_file(std::filesystem::path(KVTIER_MODEL) / "model.safetensors",
                             broken / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  auto config = Json::parse(std::ifstream(broken / "config.json"));
  std::ifstream tokenizer_file(broken / "tokenizer.json");
  auto tokenizer = Json::parse(tokenizer_file);
  const int beyond = config["vocab_size"].get<int>() + 5;
  tokenizer["added_tokens"].push_back({{"id", beyond}, {"content", "<pad>"}, {"special", true}});
  std::ofstream(broken / "tokenizer.json") << tokenizer;
  outcome = run(command + broken.string() + plain);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("vocab_size"), std::string::npos) << outcome.output;
  outcome = run(command + broken.string() + " --prompt 'x<pad>'");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.output.find("token " + std::to_string(beyond)), std::string::npos)
      << outcome.output;

  std::filesystem::remove(broken / "config.json");
  outcome = run(command + broken.string() + plain);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.output.find("config.json"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace kvtier::e2e
