// kvtier-gpu-engine-bench: the reference engine on a GPU beside what it is held against.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/gpu/gpu_engine.h"
#include "bench/support/program.h"

namespace kvtier::bench {
namespace {

constexpr const char* kExamples = R"(
Examples:
  python3 scripts/pytorch_prefill.py --out pytorch.json
  kvtier-gpu-engine-bench --dir /mnt/nvme --baseline pytorch.json --json
      Everything, beside PyTorch's times. Needs 28 GiB in the directory and 30 GiB on the GPU.
  kvtier-gpu-engine-bench --part compute --shape qwen3-8b
      Prompts and decode steps only; no daemon.

A row's limit is what the figure is held against; the ratio is value / limit.

Exit status: 0 measured; 1 it could not be measured; 2 usage.
)";

// Rows with "name" and "value".
std::map<std::string, double> read_baseline(const std::string& file) {
  std::map<std::string, double> found;
  for (const auto& row : nlohmann::json::parse(std::ifstream(file))) {
    found[row.at("name")] = row.at("value");
  }
  return found;
}

int run(int argc, char** argv) {
  GpuEngineOptions options;
  options.directory = std::filesystem::temp_directory_path();
  options.kvtierd = kvtierd_beside();
  std::string part = "all";
  std::string baseline;
  CLI::App app{"The reference engine on a GPU.", "kvtier-gpu-engine-bench"};
  app.footer(kExamples);
  app.add_option("--part", part, "all, compute or reuse")
      ->check(CLI::IsMember({"all", "compute", "reuse"}))
      ->capture_default_str();
  app.add_option("--shape", options.shape, "As kvtier-engine --random-weights")
      ->capture_default_str();
  app.add_option("--storage-format", options.format, "fp8_e4m3, fp8_e5m2 or bf16")
      ->capture_default_str();
  app.add_option("--chunk-tokens", options.chunk_tokens, "Rows of a step; 0: as the engine likes")
      ->capture_default_str();
  app.add_option("--prompt-tokens", options.prompt_tokens, "Of the long prompt")
      ->check(CLI::Range(64U, 1U << 20))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "The median of so many counts")
      ->check(CLI::Range(1U, 1000U))
      ->capture_default_str();
  app.add_option("--dir", options.directory, "Where to keep the daemon's disk tier")
      ->check(CLI::ExistingDirectory)
      ->default_str("the directory for temporary files");
  app.add_option("--kvtierd", options.kvtierd, "The daemon to measure with")
      ->default_str("the one beside this program");
  app.add_option("--baseline", baseline, "JSON rows of scripts/pytorch_prefill.py")
      ->check(CLI::ExistingFile);
  return run_program(app, argc, argv, [&](Report& report) {
    if (!baseline.empty()) options.baseline = read_baseline(baseline);
    if (part != "reuse") measure_engine_compute(options, report);
    if (part != "compute") measure_engine_reuse(options, report);
  });
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  return kvtier::bench::run(argc, argv);
}
