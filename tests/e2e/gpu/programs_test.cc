// kvtier-engine --device cuda beside a kvtierd with the device tier in HBM, as processes.
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/e2e/daemon_process.h"
#include "tests/e2e/run_program.h"
#include "tests/engine/gpu/gpu_engine.h"

namespace kvtier::e2e {
namespace {

using Json = nlohmann::json;

struct ModelCase {
  const char* name;
  const char* arguments;  // of kvtier-engine generate; @ is the source directory
  int prompt_tokens;
};

class GpuPrograms : public testing::TestWithParam<ModelCase> {
 protected:
  void SetUp() override {
    if (!engine::test::has_gpu()) GTEST_SKIP() << "no GPU here";
    daemon_.start();
  }

  static std::string program() {
    const char* given = std::getenv("KVTIER_TEST_ENGINE_PROGRAM");
    return given != nullptr ? given : KVTIER_ENGINE;
  }

  // The report of one engine process; empty where it failed.
  Json answer(const std::string& more = "") const {
    std::string model = GetParam().arguments;
    if (const auto at = model.find('@'); at != std::string::npos) {
      model.replace(at, 1, engine::test::source_directory().string());
    }
    const Outcome outcome =
        run(program() + " generate --device cuda " + model + " --prompt-length " +
            std::to_string(GetParam().prompt_tokens) +
            " --max-tokens 24 --deadline-ms 10000 --json --socket " + daemon_.socket() + more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.exit_code == 0 ? Json::parse(outcome.output)["runs"] : Json();
  }

  DaemonProcess daemon_{{.device_capacity = "512MiB",
                         .device_backend = "cuda",
                         .host_capacity = "1GiB",
                         .extent_size = "64MiB",
                         .disk_capacity = "1GiB",
                         .segment_size = "64MiB"}};
};

TEST_P(GpuPrograms, one_answer_computed_and_from_every_tier_and_after_restarts) {
  const Json first = answer(" --repeat 2 --flush");
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[0]["source"], "none");
  const Json wanted = first[0]["answer_sha256"];
  EXPECT_EQ(first[1]["answer_sha256"], wanted);

  const auto again = [&] {
    const Json runs = answer(" --flush");
    EXPECT_FALSE(runs.empty());
    if (runs.empty()) return std::string();
    EXPECT_EQ(runs[0]["answer_sha256"], wanted) << runs[0]["source"];
    EXPECT_EQ(runs[0]["reused_tokens"], (GetParam().prompt_tokens - 1) / 16 * 16);
    std::printf("%s from %s: %.2f ms; computed: %.2f ms\n", GetParam().name,
                runs[0]["source"].get<std::string>().c_str(),
                runs[0]["first_token_ms"].get<double>(), first[0]["first_token_ms"].get<double>());
    return runs[0]["source"].get<std::string>();
  };
  // What did not find a slot in HBM at once is brought there by those who load it.
  std::string source = again();
  for (int i = 0; i < 4 && source == "host"; ++i) source = again();
  EXPECT_EQ(source, "device");
  daemon_.drop(TierSet{}.with(Tier::device));
  EXPECT_EQ(again(), "host");
  const auto memory = TierSet{}.with(Tier::device).with(Tier::host);
  daemon_.drop(memory);
  EXPECT_EQ(again(), "disk");
  daemon_.drop(memory);
  daemon_.stop_and_start();
  EXPECT_EQ(again(), "disk");
  daemon_.drop(memory);
  daemon_.kill_and_start();
  EXPECT_EQ(again(), "disk");
}

INSTANTIATE_TEST_SUITE_P(
    Models, GpuPrograms,
    testing::Values(ModelCase{"bundled", "--model @/engine_adapter/models/docs-4m", 7000},
                    ModelCase{"random_1b", "--random-weights llama-3.2-1b", 6000}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvtier::e2e
