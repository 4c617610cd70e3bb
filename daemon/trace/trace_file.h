// Traces of requests, as serving systems publish them: JSON lines, one request each, with
//
//   timestamp      milliseconds, from any zero, never less than in the line before
//   input_length   tokens of the prompt
//   output_length  tokens of the answer
//   hash_ids       the prompt's consecutive blocks, the last one perhaps not full, as numbers:
//   where
//                  two are equal, so is the whole prefix up to them
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::daemon {

struct TracedRequest {
  std::uint64_t at_ms = 0;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
  std::vector<std::uint64_t> blocks;
};

struct Trace {
  std::vector<TracedRequest> requests;  // at least one
  std::uint32_t block_tokens = 0;       // of each block but the last of a prompt
  std::uint64_t blocks = 0;             // of all requests
  std::uint64_t different_blocks = 0;
  std::uint64_t prompt_tokens = 0;
  double seconds() const noexcept {
    return static_cast<double>(requests.back().at_ms - requests.front().at_ms) / 1e3;
  }
};

// `block_tokens`: 0 to find it from the lengths. Errors: io; invalid (file:line, what is wrong and
// the mend).
Result<Trace> read_trace(const std::filesystem::path& file, std::uint32_t block_tokens = 0);
Result<Trace> read_trace(std::istream& lines, const std::string& name,
                         std::uint32_t block_tokens = 0);

}  // namespace kvtier::daemon
