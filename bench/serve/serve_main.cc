// kvtier-serve-bench: requests as people send them, through the batched scheduler, with a kvtierd
// of its own and without.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/serve/serve_batching.h"
#include "bench/serve/serve_measure.h"
#include "bench/support/program.h"

namespace kvtier::bench {
namespace {

constexpr const char* kExamples = R"(
Examples:
  kvtier-serve-bench --model engine_adapter/models/docs-4m
      The three workloads on the CPU.
  kvtier-serve-bench --model engine_adapter/models/docs-4m --batching --workload shared_prompt --pool-tokens 65536
      What pages and continuous batches give at a fixed memory.
  kvtier-serve-bench --random-weights llama-3.1-8b --device cuda --workload document_qa
      --pool-tokens 131072 --running-max 4 --device-capacity 16GiB --host-capacity 32GiB
      Questions over documents of 8,192 to 32,000 tokens on a GPU.

Each workload is drawn from --seed: the same seed, the same requests. Sessions arrive as a Poisson process.
.saturated: all requests at once. Latencies are measured at a rate of --load times what the engine without
the cache can do, the same for both; first tokens count from when a request was due. rate_held is the highest
rate at which the 99th percentile of the first token stays within the bound, which is what it is at that rate
without the cache unless --first-token-bound-ms gives one. Both runs have the engine's own pages; documents are
in the cache beforehand, but for .from_cold, which begins with nothing.

Exit status: 0 measured, all answers alike; 1 it could not be measured, or an answer differs where it must not
(on a GPU, where tokens depend on what else is in a step, differences are counted); 2 usage.
)";

const std::map<std::string, WorkloadSize> kSizes{
    {"tiny", WorkloadSize::tiny}, {"small", WorkloadSize::small}, {"large", WorkloadSize::large}};

struct Arguments {
  ServeEngineOptions engine;
  ServeOptions serve;
  std::vector<std::string> workloads;  // none: all
  std::optional<WorkloadSize> size;
  double deadline_s = 1800;
  bool batching = false;
  std::uint32_t longest_context = 0;
};

void add_engine_options(CLI::App& app, ServeEngineOptions& o) {
  auto* model = app.add_option_group("model")->require_option(1);
  model->add_option("--model", o.model, "A model's directory")->check(CLI::ExistingDirectory);
  model->add_option("--random-weights", o.shape, "As kvtier-engine --random-weights");
  app.add_option("--device", o.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--storage-format", o.format, "As kvtier-engine")->capture_default_str();
  app.add_option("--pool-tokens", o.pool_tokens, "As kvtier-engine")->capture_default_str();
  app.add_option("--chunk-tokens", o.chunk_tokens, "As kvtier-engine")->capture_default_str();
  app.add_option("--chunk-tokens-beside-answers", o.chunk_tokens_beside_answers,
                 "As kvtier-engine serve")
      ->capture_default_str();
  app.add_flag("--batch-invariant", o.batch_invariant,
               "As kvtier-engine serve; answers that differ are then a failure");
  app.add_option("--running-max", o.running_max, "As kvtier-engine serve")
      ->check(CLI::Range(1U, 1U << 12))
      ->capture_default_str();
  app.add_flag("!--no-own-pages", o.own_pages,
               "Both runs: nothing is left in the engine's own pages for the next request");
  app.add_option("--kvtierd", o.kvtierd, "The daemon to measure with")
      ->default_str("the one beside this program");
  app.add_option("--dir", o.directory, "Where to keep the daemon's files")
      ->check(CLI::ExistingDirectory)
      ->default_str("the directory for temporary files");
  app.add_option("--device-capacity", o.tiers.device_capacity, "HBM tier, on the first GPU")
      ->capture_default_str();
  app.add_option("--host-capacity", o.tiers.host_capacity, "Host tier")->capture_default_str();
  app.add_option("--host-extent", o.tiers.host_extent, "Host memory is taken in pieces of it")
      ->capture_default_str();
  app.add_option("--disk-capacity", o.tiers.disk_capacity, "Disk tier; none if left out");
}

void add_serve_options(CLI::App& app, Arguments& a) {
  app.add_option("--workload", a.workloads,
                 "shared_prompt, chat or document_qa; may be given again; all if left out")
      ->check(CLI::IsMember({"shared_prompt", "chat", "document_qa"}));
  app.add_option("--size", a.size, "Of the prompts: tiny, small or large")
      ->transform(CLI::CheckedTransformer(kSizes))
      ->default_str("small on the CPU, large on a GPU");
  app.add_option("--seed", a.serve.seed, "Of the workloads")->capture_default_str();
  app.add_option("--sessions", a.serve.sessions, "How many, in place of the size's own number")
      ->check(CLI::Range(1U, 100'000U));
  auto* rate = app.add_option("--rate", a.serve.rate, "Requests a second, for the latencies")
                   ->check(CLI::PositiveNumber);
  app.add_option("--load", a.serve.load, "Or: times what the engine without the cache can do")
      ->check(CLI::Range(0.01, 10.0))
      ->excludes(rate)
      ->capture_default_str();
  app.add_option("--first-token-bound-ms", a.serve.first_token_bound_ms,
                 "Bound of the first token's 99th percentile in the search")
      ->check(CLI::PositiveNumber);
  app.add_option("--trial-seconds", a.serve.trial_s, "Of arrivals, for each rate that is tried")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--search-seconds", a.serve.search_s, "Each search tries no new rate after it")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  auto* batching = app.add_flag(
      "--batching", a.batching,
      "Instead, and without a cache: all requests at once, with memory for the longest context or "
      "pages, apart or shared, in fixed batches or continuous ones");
  app.add_option("--longest-context", a.longest_context,
                 "Of --batching: tokens for which a request gets memory in one piece; 0: the "
                 "model's positions")
      ->needs(batching)
      ->capture_default_str();
  app.add_option("--deadline-seconds", a.deadline_s, "It gives up then, with what it has")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

// Throws std::runtime_error, also where an answer is not as it must be.
void measure(Arguments& a, Report& report) {
  a.serve.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(a.deadline_s));
  ServeEngine engine(a.engine);
  a.serve.size = a.size.value_or(engine.on_gpu() ? WorkloadSize::large : WorkloadSize::small);
  ServeMeasurement measurement(engine, a.serve, report);
  std::size_t different = 0;
  for (const WorkloadKind kind : kWorkloadKinds) {
    const auto& wanted = a.workloads;
    if (!wanted.empty() && std::ranges::find(wanted, name(kind)) == wanted.end()) continue;
    if (a.batching) {
      different += measure_batching(kind, engine, a.serve, a.longest_context, report);
    } else {
      measurement.measure(kind);
    }
  }
  different += measurement.different();
  if (different == 0 || !engine.answers_are_fixed()) return;
  throw std::runtime_error(std::to_string(different) +
                           " answers differ from those without a cache");
}

int run(int argc, char** argv) {
  Arguments arguments;
  arguments.engine.directory = std::filesystem::temp_directory_path();
  arguments.engine.kvtierd = kvtierd_beside();
  arguments.engine.tiers.host_capacity = "1GiB";
  arguments.engine.tiers.host_extent = "64MiB";
  CLI::App app{"Requests as people send them, with the cache and without.", "kvtier-serve-bench"};
  app.footer(kExamples);
  add_engine_options(app, arguments.engine);
  add_serve_options(app, arguments);
  return run_program(app, argc, argv, [&](Report& report) { measure(arguments, report); });
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  return kvtier::bench::run(argc, argv);
}
