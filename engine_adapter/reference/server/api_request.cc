#include "engine_adapter/reference/server/api_request.h"

#include <algorithm>
#include <array>

#include "engine_adapter/reference/server/api_fields.h"
#include "engine_adapter/reference/server/limits.h"

namespace kvtier::engine::server {
namespace {

// Fields that change nothing here.
constexpr std::array kIgnored{"metadata",
                              "store",
                              "service_tier",
                              "parallel_tool_calls",
                              "safety_identifier",
                              "prompt_cache_key",
                              "prompt_cache_retention",
                              "skip_special_tokens",
                              "spaces_between_special_tokens",
                              "request_id"};

bool is_zero(const OrderedJson& value) {
  return value.is_number() && value.get<double>() == 0;
}
bool is_one(const OrderedJson& value) {
  return value.is_number() && value.get<double>() == 1;
}
bool is_empty(const OrderedJson& value) {
  return value.empty() || value == "";
}
bool is_false(const OrderedJson& value) {
  return value == false;
}
bool is_never(const OrderedJson&) {
  return false;
}
bool is_medium(const OrderedJson& value) {
  return value == "medium" || value == "none";
}
bool is_no_choice(const OrderedJson& value) {
  return value == "none" || value == "auto";
}

// Fields of the API, and of vLLM, that ask for what there is not. Clients send them with null or
// with their defaults, which ask for nothing.
struct Unsupported {
  const char* key;
  Fields::AsksNothing nothing;
  const char* why;
};
constexpr const char* kLeaveOut = "is not supported; leave it out";
constexpr const char* kOnlyFalse = "is not supported; supported is false";
constexpr const char* kOnlyZero = "is not supported; supported is 0";
constexpr Unsupported kUnsupported[] = {
    {"presence_penalty", is_zero, kOnlyZero},
    {"frequency_penalty", is_zero, kOnlyZero},
    {"repetition_penalty", is_one, "is not supported; supported is 1"},
    {"min_p", is_zero, kOnlyZero},
    {"min_tokens", is_zero, kOnlyZero},
    {"logit_bias", is_empty, kLeaveOut},
    {"suffix", is_empty, kLeaveOut},
    {"tools", is_empty, "is not supported: tool calls are not read from answers; leave it out"},
    {"tool_choice", is_no_choice, kLeaveOut},
    {"functions", is_empty, kLeaveOut},
    {"function_call", is_no_choice, kLeaveOut},
    {"response_format",
     [](const OrderedJson& value) {
       return value.is_object() && value.value("type", OrderedJson()) == "text";
     },
     "is not supported; supported is {\"type\": \"text\"}"},
    {"modalities", [](const OrderedJson& value) { return value == OrderedJson::array({"text"}); },
     "is not supported; supported is [\"text\"]"},
    {"audio", is_never, kLeaveOut},
    {"prediction", is_never, kLeaveOut},
    {"web_search_options", is_never, kLeaveOut},
    {"reasoning_effort", is_medium, "is not supported; leave it out, or use \"none\""},
    {"verbosity", is_medium, "is not supported; supported is \"medium\""},
    {"echo", is_false, "is not supported for chats"},
    {"top_logprobs", is_zero, "is for chats; completions have logprobs"},
    {"max_completion_tokens", is_never, "is for chats; completions have max_tokens"},
    {"documents", is_empty, kLeaveOut},
    {"chat_template", is_never, kLeaveOut},
    {"mm_processor_kwargs", is_empty, kLeaveOut},
    {"include_stop_str_in_output", is_false, kOnlyFalse},
    {"return_tokens_as_token_ids", is_false, kOnlyFalse},
    {"return_token_ids", is_false, kOnlyFalse},
    {"prompt_logprobs", is_never, "is not supported; completions have echo and logprobs"},
    {"truncate_prompt_tokens", is_never, kLeaveOut},
    {"allowed_token_ids", is_empty, kLeaveOut},
    {"bad_words", is_empty, kLeaveOut},
    {"logits_processors", is_empty, kLeaveOut},
    {"structured_outputs", is_never, kLeaveOut},
    {"guided_json", is_never, kLeaveOut},
    {"guided_regex", is_never, kLeaveOut},
    {"guided_choice", is_never, kLeaveOut},
    {"guided_grammar", is_never, kLeaveOut},
    {"guided_decoding_backend", is_never, kLeaveOut},
    {"vllm_xargs", is_empty, kLeaveOut},
};

std::vector<std::string> read_stops(Fields& fields) {
  const OrderedJson* value = fields.find("stop");
  if (value == nullptr) return {};
  std::vector<std::string> stops;
  const OrderedJson list = value->is_string() ? OrderedJson::array({*value}) : *value;
  for (const OrderedJson& one : list.is_array() ? list : OrderedJson::array({nullptr})) {
    if (!one.is_string() || one == "" || one.get_ref<const std::string&>().size() > kStopBytesMax ||
        stops.size() == kStopsMax) {
      fields.fail("stop", "is neither a text nor a list of at most " + std::to_string(kStopsMax) +
                              " texts, none empty or longer than " + std::to_string(kStopBytesMax) +
                              " bytes");
      return {};
    }
    stops.push_back(one.get<std::string>());
  }
  return stops;
}

std::vector<Token> read_tokens(const OrderedJson& list, const char* key, Fields& fields) {
  std::vector<Token> tokens;
  for (const OrderedJson& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > UINT32_MAX) {
      fields.fail(key, shown(id) + " is not a token id");
      return {};
    }
    tokens.push_back(id.get<Token>());
  }
  return tokens;
}

void read_sampling(Fields& fields, ApiRequest& request) {
  request.sampling.temperature = fields.number("temperature", 0, 100).value_or(1);
  request.sampling.top_p = fields.number("top_p", 0, 1).value_or(1);
  if (request.sampling.top_p <= 0) fields.fail("top_p", "must be above 0");
  const auto top_k = fields.whole("top_k", -1, 1 << 24).value_or(0);
  request.sampling.top_k = static_cast<std::uint32_t>(std::max<std::int64_t>(top_k, 0));
  if (const auto seed = fields.whole("seed", INT64_MIN, INT64_MAX)) {
    request.sampling.seed = static_cast<std::uint64_t>(*seed);
    request.seeded = true;
  }
}

void read_beam(Fields& fields, ApiRequest& request) {
  const auto best_of = fields.count("best_of", 1, kAnswersMax);
  const double length_penalty = fields.number("length_penalty", -10, 10).value_or(1);
  const bool early = fields.flag("early_stopping", false);
  if (!fields.flag("use_beam_search", false)) {
    if (best_of && *best_of != request.answers) {
      fields.fail("best_of", "other than n is supported with use_beam_search only");
    }
    return;
  }
  request.beam = {.width = best_of.value_or(std::max(request.answers, 2U)),
                  .length_penalty = length_penalty,
                  .early_stopping = early};
  if (request.beam.width < request.answers) fields.fail("best_of", "must be at least n");
  if (request.sampling.temperature != 0) {
    fields.fail("temperature", "must be 0 with use_beam_search");
  }
}

// What vLLM's connectors tell each other there, and ours need not know.
constexpr std::array kOfOtherConnectors{
    "remote_engine_id",  "remote_block_ids", "remote_host", "remote_port",
    "remote_request_id", "tp_size",          "transfer_id", "remote_prefill_cached_tokens"};

void read_handoff(Fields& fields, Handoff& handoff) {
  const OrderedJson* params = fields.find("kv_transfer_params");
  if (params == nullptr) return;
  if (!params->is_object()) return fields.fail("kv_transfer_params", "is not an object");
  Fields inner(*params);
  handoff.computes_prompt = inner.flag("do_remote_decode", false);
  handoff.awaits_prompt = inner.flag("do_remote_prefill", false);
  handoff.tokens = inner.count("kvtier_tokens", 0, UINT32_MAX);
  handoff.ns = inner.text("kvtier_namespace", 64);
  inner.pass_over("kvtier_missing_tokens");
  for (const char* key : kOfOtherConnectors) inner.pass_over(key);
  inner.refuse_unknown();
  if (inner.error()) return fields.fail("kv_transfer_params", inner.error()->message);
  if (handoff.computes_prompt && handoff.awaits_prompt) {
    fields.fail("kv_transfer_params", "has both do_remote_decode and do_remote_prefill");
  }
}

void read_common(Fields& fields, ApiRequest& request) {
  request.model = fields.text("model", 1024);
  if (request.model.empty()) fields.fail("model", "is missing");
  request.answers = fields.count("n", 1, kAnswersMax).value_or(1);
  request.stream = fields.flag("stream", false);
  if (const OrderedJson* options = fields.find("stream_options")) {
    if (!options->is_object()) {
      fields.fail("stream_options", "is not an object");
    } else {
      Fields inner(*options);
      request.include_usage = inner.flag("include_usage", false);
      inner.flag("include_obfuscation", false);
      inner.refuse_unknown();
      if (inner.error()) fields.fail("stream_options", inner.error()->message);
    }
    if (!request.stream && request.include_usage) {
      fields.fail("stream_options", "is for stream = true only");
    }
  }
  request.stops = read_stops(fields);
  if (const OrderedJson* ids = fields.find("stop_token_ids")) {
    if (!ids->is_array() || ids->size() > kStopsMax) {
      fields.fail("stop_token_ids", "is not a list of at most " + std::to_string(kStopsMax));
    } else {
      request.stop_tokens = read_tokens(*ids, "stop_token_ids", fields);
    }
  }
  request.ignore_end = fields.flag("ignore_eos", false);
  read_sampling(fields, request);
  read_beam(fields, request);
  request.cache_salt = fields.text("cache_salt", kSaltBytesMax);
  request.user = fields.text("user", 1024);
  request.priority =
      static_cast<std::int32_t>(fields.whole("priority", INT32_MIN, INT32_MAX).value_or(0));
  read_handoff(fields, request.handoff);
}

// A text, a list of token ids, or a list of either.
void read_prompts(Fields& fields, ApiRequest& request) {
  const auto is_ids = [](const OrderedJson& value) {
    return value.is_array() && !value.empty() && value[0].is_number();
  };
  const auto read = [&](const OrderedJson& each) {
    if (each.is_string()) {
      request.prompts.emplace_back(each.get<std::string>());
    } else if (is_ids(each)) {
      request.prompts.emplace_back(read_tokens(each, "prompt", fields));
    } else {
      fields.fail("prompt", "has an element that is neither a text nor a list of token ids");
    }
  };
  const OrderedJson* prompt = fields.find("prompt");
  if (prompt != nullptr && (prompt->is_string() || is_ids(*prompt))) return read(*prompt);
  if (prompt == nullptr || !prompt->is_array() || prompt->empty() || prompt->size() > kPromptsMax) {
    return fields.fail("prompt", "is neither a text nor a list of token ids, nor a list of 1 to " +
                                     std::to_string(kPromptsMax) + " of these");
  }
  for (const OrderedJson& each : *prompt) read(each);
}

void read_completion(Fields& fields, ApiRequest& request) {
  request.tokens_max = fields.count("max_tokens", 0, 1 << 24).value_or(16);
  if (const auto logprobs = fields.count("logprobs", 0, kTopLogprobsMax)) {
    request.logprobs = true;
    request.top_logprobs = *logprobs;
  }
  request.echo = fields.flag("echo", false);
  if (fields.find("add_special_tokens") != nullptr) {
    request.add_special_tokens = fields.flag("add_special_tokens", true);
  }
  read_prompts(fields, request);
}

// A content of text parts becomes one text, as templates expect it. None: it has another part.
std::optional<std::string> joined_parts(const OrderedJson& parts) {
  std::string text;
  for (const OrderedJson& part : parts) {
    if (!part.is_object() || part.value("type", OrderedJson()) != "text" ||
        !part.value("text", OrderedJson()).is_string()) {
      return {};
    }
    if (!text.empty()) text += '\n';
    text += part.at("text").get_ref<const std::string&>();
  }
  return text;
}

// Members that are null, or an empty list of tool calls, are not there: clients send back whole
// messages as they got them, and templates ask whether a member is there.
void read_message(const OrderedJson& written, Fields& fields, OrderedJson& messages) {
  if (!written.is_object() || !written.contains("role") || !written.at("role").is_string()) {
    return fields.fail("messages", "has a message without a role");
  }
  OrderedJson message = OrderedJson::object();
  for (const auto& [key, value] : written.items()) {
    if (key == "content" && value.is_array()) {
      auto text = joined_parts(value);
      if (!text) {
        return fields.fail("messages",
                           "has a content part that is no text; supported is text only");
      }
      message[key] = std::move(*text);
    } else if (!value.is_null() && !(key == "tool_calls" && value.empty())) {
      message[key] = value;
    }
  }
  if (!message.contains("content")) {
    if (!message.contains("tool_calls") && !message.contains("function_call")) {
      return fields.fail("messages", "has a message without content");
    }
    message["content"] = "";
  }
  if (!message.at("content").is_string()) {
    return fields.fail("messages", "has a content that is neither a text nor a list of parts");
  }
  messages.push_back(std::move(message));
}

void read_chat(Fields& fields, ApiRequest& request) {
  const auto older = fields.count("max_tokens", 1, 1 << 24);
  const auto newer = fields.count("max_completion_tokens", 1, 1 << 24);
  request.tokens_max = newer ? newer : older;
  request.logprobs = fields.flag("logprobs", false);
  request.top_logprobs = fields.count("top_logprobs", 0, kTopLogprobsMax).value_or(0);
  if (request.top_logprobs > 0 && !request.logprobs) {
    fields.fail("top_logprobs", "is for logprobs = true only");
  }
  request.add_generation_prompt = fields.flag("add_generation_prompt", true);
  request.continue_final_message = fields.flag("continue_final_message", false);
  if (const OrderedJson* more = fields.find("chat_template_kwargs")) {
    if (!more->is_object()) fields.fail("chat_template_kwargs", "is not an object");
    request.template_variables = *more;
  }
  const OrderedJson* messages = fields.find("messages");
  request.messages = OrderedJson::array();
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    fields.fail("messages", "is not a list of messages, or an empty one");
    return;
  }
  for (const OrderedJson& message : *messages) read_message(message, fields, request.messages);
}

}  // namespace

ApiResult<ApiRequest> parse_request(std::string_view body, bool chat) {
  const auto json = parse_body(body);
  if (!json) return json.error();
  Fields fields(*json);
  ApiRequest request;
  request.chat = chat;
  read_common(fields, request);
  if (chat) {
    read_chat(fields, request);
  } else {
    read_completion(fields, request);
  }
  for (const char* key : kIgnored) fields.pass_over(key);
  for (const Unsupported& field : kUnsupported) {
    fields.refuse_unless(field.key, field.nothing, field.why);
  }
  fields.refuse_unknown();
  if (fields.error()) return *fields.error();
  return request;
}

}  // namespace kvtier::engine::server
