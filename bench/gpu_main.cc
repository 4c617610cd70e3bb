// kvtier-gpu-bench: what the CUDA kernels reach on this card, and what they are held against.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/gpu_commands.h"
#include "bench/gpu_memory.h"

int main(int argc, char** argv) {
  CLI::App app{"Measures the CUDA kernels of kvtier on the first GPU"};
  bool json = false;
  std::string part = "all";
  app.add_flag("--json", json, "print a JSON list");
  app.add_option("part", part, "what to measure")
      ->check(CLI::IsMember({"all", "decode-attention", "prefill-attention"}));
  CLI11_PARSE(app, argc, argv);

  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::fprintf(stderr, "kvtier-gpu-bench: no GPU here\n");
    return 1;
  }
  kvtier::bench::Report report;
  if (part == "all" || part == "decode-attention") kvtier::bench::measure_decode_attention(report);
  if (part == "all" || part == "prefill-attention") {
    kvtier::bench::measure_prefill_attention(report);
  }
  report.print(json);
  return 0;
}
