// kvtier-gpu-bench: how fast the CUDA backend is, beside what bounds it.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <set>
#include <stdexcept>

#include "bench/gpu/gpu_commands.h"
#include "bench/support/program.h"

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
    {"tail-attention", measure_tail_attention},
    {"prefill-attention", measure_prefill_attention},
};

int run(int argc, char** argv) {
  std::set<std::string> chosen, known;
  for (const Part& part : kParts) known.insert(part.name);
  CLI::App app{"How fast the CUDA backend is, beside what bounds it.", "kvtier-gpu-bench"};
  app.footer(kExamples);
  app.add_option("part", chosen, "What to measure")
      ->check(CLI::IsMember(known))
      ->default_str("all");
  return run_program(app, argc, argv, [&](Report& report) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      throw std::runtime_error("no GPU here");
    }
    for (const Part& part : kParts) {
      if (chosen.empty() || chosen.contains(part.name)) part.measure(report);
    }
  });
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  return kvtier::bench::run(argc, argv);
}
