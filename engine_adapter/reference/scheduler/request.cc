#include "engine_adapter/reference/scheduler/request.h"

#include <algorithm>

namespace kvtier::engine {

bool ends_answer(const Request& request, std::span<const Token> model_ends, Token token) noexcept {
  if (std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end()) return true;
  return !request.ignore_end && std::ranges::find(model_ends, token) != model_ends.end();
}

const char* name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::end_token:
      return "end_token";
    case FinishReason::tokens_max:
      return "tokens_max";
    case FinishReason::context_full:
      return "context_full";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::failed:
      return "failed";
  }
  return "?";
}

const char* name(LoadMode mode) noexcept {
  switch (mode) {
    case LoadMode::none:
      return "none";
    case LoadMode::load:
      return "load";
    case LoadMode::compute:
      return "compute";
    case LoadMode::both:
      return "both";
  }
  return "?";
}

const char* name(LoadReason reason) noexcept {
  switch (reason) {
    case LoadReason::nothing_cached:
      return "nothing_cached";
    case LoadReason::load_is_faster:
      return "load_is_faster";
    case LoadReason::compute_is_faster:
      return "compute_is_faster";
    case LoadReason::both_is_faster:
      return "both_is_faster";
    case LoadReason::tier_not_measured:
      return "tier_not_measured";
    case LoadReason::compute_not_measured:
      return "compute_not_measured";
    case LoadReason::forced:
      return "forced";
    case LoadReason::awaited:
      return "awaited";
  }
  return "?";
}

}  // namespace kvtier::engine
