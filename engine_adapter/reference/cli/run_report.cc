#include "engine_adapter/reference/cli/run_report.h"

#include <openssl/sha.h>

#include <cmath>

namespace kvtier::engine::cli {
namespace {

// Milliseconds with three decimals.
double milliseconds(std::chrono::nanoseconds time) {
  return std::round(static_cast<double>(time.count()) / 1e3) / 1e3;
}

// The slowest tier that a reused block came from, or the engine's own pages.
const char* source_of(const GenerateResult& result) {
  const char* source = result.reused_own > 0 ? "own_pages" : "none";
  for (const Tier tier : kAllTiersWithRemote) {
    if (result.reused_by_tier[index_of(tier)] > 0) source = kvtier::name(tier);
  }
  return source;
}

std::string sha256(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string hex;
  for (const unsigned char byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

}  // namespace

Json to_json(const RunReport& report) {
  const GenerateResult& result = report.result;
  Json tiers = {{"own_pages", result.reused_own}};
  for (const Tier tier : kAllTiersWithRemote) {
    tiers[kvtier::name(tier)] = result.reused_by_tier[index_of(tier)];
  }
  return {{"prompt_tokens", report.prompt_tokens},
          {"reused_tokens", result.reused_tokens},
          {"reused", tiers},
          {"source", source_of(result)},
          {"proposed_tokens", result.proposed_tokens},
          {"accepted_tokens", result.accepted_tokens},
          {"first_token_ms", milliseconds(result.first_token)},
          {"total_ms", milliseconds(result.total)},
          {"tokens", result.tokens},
          {"finish", engine::name(result.finish)},
          {"answer", report.answer},
          {"answer_sha256", sha256(report.answer)},
          {"connected", report.connected}};
}

std::string summarise(const RunReport& report) {
  const GenerateResult& result = report.result;
  char text[256];
  std::snprintf(
      text, sizeof text,
      "%zu prompt tokens, %u reused (%s); first token after %.1f ms, %zu tokens after %.1f ms",
      report.prompt_tokens, result.reused_tokens, source_of(result),
      milliseconds(result.first_token), result.tokens.size(), milliseconds(result.total));
  return text;
}

}  // namespace kvtier::engine::cli
