// kvtier-load-bench: load or compute. A prompt whose prefix is on a disk of a given rate, answered
// with each policy. On the CPU the bundled model's KV is small for what it costs to compute, so
// rates are chosen by how long the load takes beside computing (--ratio); at the shape of a large
// model on a GPU they are what a disk has (--rate).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/serve/bench_model.h"
#include "bench/support/daemon_child.h"
#include "bench/support/program.h"
#include "bench/support/records.h"
#include "engine_adapter/reference/scheduler/generator.h"

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;
using engine::LoadPolicy;

constexpr const char* kExamples = R"(
Examples:
  kvtier-load-bench --model engine_adapter/models/docs-4m
      On the CPU: disks that take 0.1 to 10 times as long to load the prefix as computing it takes.
  kvtier-load-bench --random-weights llama-3.1-8b --device cuda --prompt-tokens 32768 --pool-tokens 40960
      --dir /mnt/nvme --rate 0.2 --rate 1 --rate 5
      On a GPU: disks of 0.2, 1 and 5 GB/s.

cost_model_over_better and both_over_better are times over the better of always_load and always_compute.
Each answer is compared with the first one. On the CPU another one ends the benchmark; on a GPU, where the matrix
library may choose by the number of rows, such answers are counted.

Exit status: 0 measured; 1 it could not be measured; 2 usage.
)";

struct Options {
  std::string model, shape;
  std::string device = "cpu";
  std::string directory = "/tmp";
  std::string kvtierd;
  std::uint32_t prompt_tokens = 2048;
  std::uint32_t pool_tokens = 0;
  std::uint32_t chunk_tokens = 128;
  std::uint32_t rounds = 3;
  std::vector<double> ratios;
  std::vector<double> rates;  // GB/s
};

struct Policy {
  LoadPolicy policy;
  const char* name;
};
constexpr Policy kPolicies[] = {{LoadPolicy::always_load, "always_load"},
                                {LoadPolicy::always_compute, "always_compute"},
                                {LoadPolicy::always_both, "both"},
                                {LoadPolicy::automatic, "cost_model"}};

// A model, and a prompt that it answers with one token.
class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        model_(options.model, options.shape, options.device,
               {.device = {},
                .pool_tokens = options.pool_tokens,
                .chunk_tokens = options.chunk_tokens}) {
    engine::SplitMix64 random(5);
    request_.prompt.resize(options.prompt_tokens);
    for (Token& token : request_.prompt) {
      token = static_cast<Token>(random.next() % model_.loaded->config.vocab_size);
    }
    request_.tokens_max = 1;
    request_.cache_deadline = 60s;
  }

  void run(Report& report) {
    auto alone = generator(nullptr, LoadPolicy::always_compute);
    answer(*alone);  // warm
    std::vector<double> computed;
    for (std::uint32_t i = 0; i < options_.rounds; ++i) computed.push_back(answer(*alone));
    const double compute_s = median(computed);
    report.add("compute", 1e3 * compute_s, "ms");
    const auto blocks = blocks_matchable(options_.prompt_tokens, engine::kBlockTokens);
    const double bytes = static_cast<double>(blocks * model_.instance.pool->layout().record_bytes);
    report.add("prefix", bytes / 1e6, "MB");
    for (const double rate : options_.rates) measure(rate * 1e9, report);
    for (const double ratio : options_.ratios) measure(bytes / (compute_s * ratio), report);
    report.add("answers_different", static_cast<double>(different_), "answers");
  }

 private:
  std::unique_ptr<engine::Generator> generator(Cache* cache, LoadPolicy policy) {
    return std::make_unique<engine::Generator>(*model_.instance.model, *model_.instance.pool,
                                               id_of(model_.instance.ns), cache, policy);
  }

  // Seconds to the first token, which is the same whatever the policy.
  double answer(engine::Generator& generator) {
    const auto result = need(generator.generate(request_));
    if (!expected_) expected_ = result.tokens;
    if (result.tokens != *expected_) {
      if (model_.instance.model->rows_are_independent()) {
        throw std::runtime_error("another answer than before");
      }
      ++different_;
    }
    return std::chrono::duration<double>(result.first_token).count();
  }

  void measure(double bytes_per_s, Report& report) {
    const auto rate = std::to_string(static_cast<std::uint64_t>(bytes_per_s));
    ::setenv("KVTIER_DISK_BYTES_PER_S", rate.c_str(), 1);
    const std::uint64_t need_bytes = 2 * options_.prompt_tokens / engine::kBlockTokens *
                                     model_.instance.pool->layout().record_bytes;
    const std::string memory = std::to_string(need_bytes / (1U << 20) + 64) + "MiB";
    const std::string disk = std::to_string(need_bytes / (1U << 20) + 1024) + "MiB";
    const ScratchDirectory scratch(options_.directory);
    const DaemonChild daemon(
        options_.kvtierd, scratch.path(),
        {.host_capacity = memory, .host_extent = "16MiB", .disk_capacity = disk});
    auto client = need(Client::start({.cuda_device = model_.device.cuda,
                                      .socket = daemon.socket(),
                                      .name = "kvtier-load-bench"}));
    need(client->wait_connected(Clock::now() + 30s));
    auto cache = need(client->open(model_.instance.ns));
    // What was dropped for want of slots is offered again.
    for (int i = 0; i < 8 && cache->match(request_.prompt).blocks <
                                 blocks_matchable(request_.prompt.size(), engine::kBlockTokens);
         ++i) {
      answer(*generator(cache.get(), LoadPolicy::always_compute));
      need(client->flush(Clock::now() + 600s));
    }
    std::vector<double> times;
    const std::string title = "disk_" + std::to_string(bytes_per_s / 1e9).substr(0, 6) + "_gb_s_";
    for (const Policy& policy : kPolicies) {
      const auto engine = generator(cache.get(), policy.policy);
      std::vector<double> taken;
      // In the first two rounds a policy that measures learns what there is to know.
      for (std::uint32_t round = 0; round < options_.rounds + 2; ++round) {
        daemon.drop(TierSet{}.with(Tier::device).with(Tier::host));
        const double seconds = answer(*engine);
        if (round >= 2) taken.push_back(seconds);
      }
      times.push_back(median(taken));
      report.add(title + policy.name, 1e3 * times.back(), "ms");
    }
    const double better = std::min(times[0], times[1]);
    report.add(title + "both_over_better", times[2] / better, "ratio");
    report.add(title + "cost_model_over_better", times[3] / better, "ratio", 1.05);
  }

  const Options& options_;
  BenchModel model_;
  engine::GenerateRequest request_;
  std::optional<std::vector<Token>> expected_;
  std::uint64_t different_ = 0;
};

int run(int argc, char** argv) {
  Options options;
  options.directory = std::filesystem::temp_directory_path();
  options.kvtierd = kvtierd_beside();
  CLI::App app{"Loading a prefix from slow disks beside computing it.", "kvtier-load-bench"};
  app.footer(kExamples);
  auto* model = app.add_option_group("model")->require_option(1);
  model->add_option("--model", options.model, "A model's directory")->check(CLI::ExistingDirectory);
  model->add_option("--random-weights", options.shape, "As kvtier-engine --random-weights");
  app.add_option("--device", options.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--dir", options.directory, "Where to keep the daemon's disk tier")
      ->check(CLI::ExistingDirectory);
  app.add_option("--kvtierd", options.kvtierd, "The daemon to measure with");
  app.add_option("--prompt-tokens", options.prompt_tokens, "Of the prompt")->capture_default_str();
  app.add_option("--pool-tokens", options.pool_tokens, "As kvtier-engine")->capture_default_str();
  app.add_option("--chunk-tokens", options.chunk_tokens, "As kvtier-engine")->capture_default_str();
  app.add_option("--rounds", options.rounds, "The median of so many counts")
      ->check(CLI::Range(1U, 1000U))
      ->capture_default_str();
  app.add_option("--rate", options.rates, "GB/s of the disk; may be given again");
  app.add_option("--ratio", options.ratios,
                 "Or: a disk that takes so many times as long as computing; may be given again");
  return run_program(app, argc, argv, [&](Report& report) {
    if (options.rates.empty() && options.ratios.empty()) {
      options.ratios = {0.1, 0.34, 0.6, 1, 1.7, 2.9, 10};
    }
    Bench(options).run(report);
  });
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  return kvtier::bench::run(argc, argv);
}
