// What a pass comes to: rates, latencies, and where the prompts' tokens came from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "bench/serve/serve_pass.h"
#include "bench/support/report.h"

namespace kvtier::bench {

struct Summary {
  std::size_t requests = 0;
  double requests_per_s = 0;
  double first_token_p50_ms = 0, first_token_p99_ms = 0;  // since the request was due
  double inter_token_p50_ms = 0, inter_token_p99_ms = 0;  // between an answer's tokens; 0: none
  std::uint64_t prompt_tokens = 0;
  std::uint64_t own_pages_tokens = 0;                         // found in the engine's own pages
  std::array<std::uint64_t, kTiersWithRemote> tier_tokens{};  // taken from a tier of the cache

  std::uint64_t computed_tokens() const noexcept;
};

// All zero for a pass that served nothing.
Summary summarise(const Pass& pass);

// Rows "NAME.requests_per_s" and so on; tokens as percentages of the prompts'.
void add_rows(Report& report, const std::string& name, const Summary& summary);

// How many of `requests` may be above a bound that the 99th percentile is not above.
std::size_t late_allowed(std::size_t requests) noexcept;

}  // namespace kvtier::bench
