// kvtier-gpu-bench: how fast the CUDA backend is, beside what bounds it.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <set>

#include "bench/gpu_commands.h"

namespace kvtier::bench {
namespace {

constexpr const char* kExamples = R"(
Examples:
  kvtier-gpu-bench
      Everything, as a table. Needs 8 GiB of GPU memory and 2 GiB of host memory.
  kvtier-gpu-bench transfers --json
      The copies between host and GPU alone, as a JSON list.

A row's limit is what the figure is held against: cudaMemcpyAsync from or to the same memory, or a copy
inside the GPU's memory, bytes read and written; the ratio is value / limit.

Exit status: 0 measured; 1 it could not be measured; 2 usage.
)";

struct Part {
  const char* name;
  void (*measure)(Report&);
};
constexpr Part kParts[] = {
    {"transfers", measure_transfers},
    {"elementwise", measure_elementwise},
    {"gemm", measure_gemm},
    {"decode-attention", measure_decode_attention},
    {"prefill-attention", measure_prefill_attention},
};

int run(int argc, char** argv) {
  bool json = false;
  std::set<std::string> chosen, known;
  for (const Part& part : kParts) known.insert(part.name);
  CLI::App app{"How fast the CUDA backend is, beside what bounds it.", "kvtier-gpu-bench"};
  app.footer(kExamples);
  app.add_flag("--json", json, "Print a JSON list instead of a table");
  app.add_option("part", chosen, "What to measure")
      ->check(CLI::IsMember(known))
      ->default_str("all");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "kvtier-gpu-bench: no GPU here\n");
    return 1;
  }
  Report report;
  try {
    for (const Part& part : kParts) {
      if (chosen.empty() || chosen.contains(part.name)) part.measure(report);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvtier-gpu-bench: %s\n", error.what());
    return 1;
  }
  report.print(json);
  return 0;
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  return kvtier::bench::run(argc, argv);
}
