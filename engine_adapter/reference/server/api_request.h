// The bodies of /v1/completions and /v1/chat/completions, read and checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine_adapter/reference/model/sampler.h"
#include "engine_adapter/reference/scheduler/request.h"
#include "engine_adapter/reference/server/api_error.h"
#include "engine_adapter/reference/server/body_json.h"

namespace kvtier::engine::server {

// `kv_transfer_params`: one engine computes a prompt, another answers. vLLM's names, and our own.
struct Handoff {
  bool computes_prompt = false;  // do_remote_decode: this engine does, and another answers
  bool awaits_prompt = false;    // do_remote_prefill: another engine does, and this one answers
  // As the engine that computed it said: how much it stored, and in which namespace. None: all of
  // it, in this engine's.
  std::optional<std::uint32_t> tokens{};  // kvtier_tokens
  std::string ns{};                       // kvtier_namespace
};

struct ApiRequest {
  bool chat = false;
  std::string model;
  // What both have.
  std::optional<std::uint32_t> tokens_max;
  std::uint32_t answers = 1;  // n
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
  std::uint32_t top_logprobs = 0;
  std::vector<std::string> stops;
  std::vector<Token> stop_tokens;
  bool ignore_end = false;
  bool seeded = false;
  SamplerOptions sampling{.temperature = 1};
  BeamOptions beam{};
  std::string cache_salt;
  std::string user;
  std::int32_t priority = 0;
  Handoff handoff{};
  // /v1/completions
  std::vector<std::variant<std::string, std::vector<Token>>> prompts;
  bool echo = false;
  std::optional<bool> add_special_tokens;
  // /v1/chat/completions
  OrderedJson messages;
  OrderedJson template_variables;
  bool add_generation_prompt = true;
  bool continue_final_message = false;

  // Requests of the engine, each with `answers` answers: those of the second follow those of the
  // first.
  std::uint32_t parts() const noexcept {
    return chat ? 1 : static_cast<std::uint32_t>(prompts.size());
  }
  std::uint32_t choices() const noexcept { return parts() * answers; }
};

// Errors: 400, naming the field, the value and what is supported.
ApiResult<ApiRequest> parse_request(std::string_view body, bool chat);

}  // namespace kvtier::engine::server
