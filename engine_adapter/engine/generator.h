// Answers one request at a time: takes what the cache has of the prompt, computes the rest in
// chunks, then one token after another. One thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine_adapter/engine/model.h"
#include "engine_adapter/engine/prefix_reuse.h"
#include "engine_adapter/engine/sampler.h"

namespace kvtier::engine {

struct GenerateRequest {
  std::vector<Token> prompt;
  std::uint32_t tokens_max = 0;  // at least 1
  SamplerOptions sampling{};
  std::chrono::milliseconds cache_deadline{
      1000};  // for everything the request waits for the daemon
};

enum class FinishReason : std::uint8_t { end_token, tokens_max, context_full };
const char* name(FinishReason reason) noexcept;

struct GenerateResult {
  std::vector<Token> tokens;  // without the end token
  FinishReason finish = FinishReason::tokens_max;
  std::uint32_t reused_tokens = 0;
  std::array<std::uint32_t, kTiers> reused_by_tier{};  // tokens
  std::chrono::nanoseconds first_token{};  // from the start of generate() to the first token chosen
  std::chrono::nanoseconds total{};
};

class Generator {
 public:
  // All outlive the generator; `cache` may be null. A chunk has as many rows as a step of `model`
  // may have.
  Generator(Model& model, PagePool& pool, const NamespaceId& ns, Cache* cache)
      : model_(model), pool_(pool), ns_(ns), cache_(cache) {}

  // `on_token` sees each token as soon as it is chosen. Errors: invalid (prompt, sampling),
  // no_space (the request does not fit into the free pages).
  Result<GenerateResult> generate(const GenerateRequest& request,
                                  const std::function<void(Token)>& on_token = {});

 private:
  struct Answer;

  Result<std::uint32_t> check(const GenerateRequest& request) const;
  Result<Token> next_token(Answer& answer);
  Result<Token> feed(Answer& answer, double unit);
  void settle_load(Answer& answer);
  void note_reused(Answer& answer, std::uint32_t blocks) const;
  bool is_end(Token token) const noexcept;

  Model& model_;
  PagePool& pool_;
  NamespaceId ns_;
  Cache* cache_;
};

}  // namespace kvtier::engine
