// The engine on the first GPU beside what it is held against. Each throws std::runtime_error where
// it cannot measure.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "bench/support/report.h"

namespace kvtier::bench {

struct GpuEngineOptions {
  std::string shape = "llama-3.1-8b";
  std::string format = "fp8_e4m3";
  std::uint32_t chunk_tokens = 0;  // 0: the engine's default
  std::uint32_t prompt_tokens = 32768;
  std::uint32_t rounds = 3;
  std::string kvtierd;
  std::filesystem::path directory;  // for the daemon's disk tier
  // Milliseconds of other programs by name ("pytorch prefill 2048"), where there are any.
  std::map<std::string, double> baseline;
};

// Prompts computed without a cache, and decode steps.
void measure_engine_compute(const GpuEngineOptions& options, Report& report);
// A long prompt's first token with its prefix in each tier of a kvtierd of its own, and what
// writing back costs a prompt that is computed.
void measure_engine_reuse(const GpuEngineOptions& options, Report& report);

}  // namespace kvtier::bench
