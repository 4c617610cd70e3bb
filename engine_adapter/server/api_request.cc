#include "engine_adapter/server/api_request.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine_adapter/server/limits.h"

namespace kvtier::engine::server {
namespace {

// Fields that change nothing here.
constexpr std::array kIgnored{"metadata",
                              "store",
                              "service_tier",
                              "parallel_tool_calls",
                              "safety_identifier",
                              "prompt_cache_key",
                              "skip_special_tokens",
                              "spaces_between_special_tokens",
                              "request_id"};

// Reads the fields of one object and remembers the first that does not hold, and which were read.
class Fields {
 public:
  explicit Fields(const OrderedJson& object) : object_(object) {}

  const OrderedJson* find(const char* key) {
    seen_.emplace_back(key);
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  void fail(const char* key, const std::string& message) {
    if (!error_) error_ = bad_request(key, std::string(key) + ": " + message);
  }
  std::optional<double> number(const char* key, double low, double high) {
    const OrderedJson* value = find(key);
    if (value == nullptr) return {};
    if (value->is_number() && value->get<double>() >= low && value->get<double>() <= high) {
      return value->get<double>();
    }
    fail(key, value->dump() + " is not a number from " + OrderedJson(low).dump() + " to " +
                  OrderedJson(high).dump());
    return {};
  }
  std::optional<std::int64_t> whole(const char* key, std::int64_t low, std::int64_t high) {
    const OrderedJson* value = find(key);
    if (value == nullptr) return {};
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX) &&
                      value->get<std::int64_t>() >= low && value->get<std::int64_t>() <= high;
    if (fits) return value->get<std::int64_t>();
    fail(key, value->dump() + " is not a whole number from " + std::to_string(low) + " to " +
                  std::to_string(high));
    return {};
  }
  std::optional<std::uint32_t> count(const char* key, std::int64_t low, std::int64_t high) {
    const auto value = whole(key, low, high);
    if (!value) return {};
    return static_cast<std::uint32_t>(*value);
  }
  bool flag(const char* key, bool otherwise) {
    const OrderedJson* value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    fail(key, value->dump() + " is not true or false");
    return otherwise;
  }
  std::string text(const char* key, std::size_t bytes_max) {
    const OrderedJson* value = find(key);
    if (value == nullptr) return {};
    if (value->is_string() && value->get_ref<const std::string&>().size() <= bytes_max) {
      return value->get<std::string>();
    }
    fail(key, "is not a text of at most " + std::to_string(bytes_max) + " bytes");
    return {};
  }
  // Fields that ask for what there is not: fine while they ask for nothing.
  void refuse_unless(const char* key, bool (*nothing)(const OrderedJson&), const char* why) {
    const OrderedJson* value = find(key);
    if (value != nullptr && !nothing(*value)) fail(key, why);
  }
  void refuse_unknown() {
    for (const auto& [key, value] : object_.items()) {
      const std::string& written = key;
      const auto is = [&written](const std::string& other) { return other == written; };
      if (std::any_of(seen_.begin(), seen_.end(), is) ||
          std::any_of(kIgnored.begin(), kIgnored.end(), is)) {
        continue;
      }
      if (!error_) {
        error_ = bad_request(key, "the field '" + key + "' is not supported; leave it out");
      }
    }
  }
  const std::optional<ApiError>& error() const noexcept { return error_; }

 private:
  const OrderedJson& object_;
  std::vector<std::string> seen_;
  std::optional<ApiError> error_;
};

bool is_zero(const OrderedJson& value) {
  return value.is_number() && value.get<double>() == 0;
}
bool is_one(const OrderedJson& value) {
  return value.is_number() && value.get<double>() == 1;
}
bool is_empty(const OrderedJson& value) {
  return value.empty() || value == "";
}

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
      fields.fail(key, id.dump() + " is not a token id");
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
  fields.refuse_unless("presence_penalty", is_zero, "is not supported; supported is 0");
  fields.refuse_unless("frequency_penalty", is_zero, "is not supported; supported is 0");
  fields.refuse_unless("repetition_penalty", is_one, "is not supported; supported is 1");
  fields.refuse_unless("min_p", is_zero, "is not supported; supported is 0");
  fields.refuse_unless("min_tokens", is_zero, "is not supported; supported is 0");
  fields.refuse_unless("logit_bias", is_empty, "is not supported; leave it out");
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
    if (!request.stream) fields.fail("stream_options", "is for stream = true only");
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
}

// A text, a list of token ids, or a list of either.
void read_prompts(Fields& fields, ApiRequest& request) {
  const auto is_ids = [](const OrderedJson& value) {
    return value.is_array() && !value.empty() && value[0].is_number();
  };
  const OrderedJson* prompt = fields.find("prompt");
  const bool one = prompt != nullptr && (prompt->is_string() || is_ids(*prompt));
  const OrderedJson list = one                                       ? OrderedJson::array({*prompt})
                           : prompt != nullptr && prompt->is_array() ? *prompt
                                                                     : OrderedJson::array();
  for (const OrderedJson& each : list) {
    if (each.is_string()) {
      request.prompts.emplace_back(each.get<std::string>());
    } else if (is_ids(each)) {
      request.prompts.emplace_back(read_tokens(each, "prompt", fields));
    } else {
      fields.fail("prompt", "has an element that is neither a text nor a list of token ids");
      return;
    }
  }
  if (list.empty() || list.size() > kPromptsMax) {
    fields.fail("prompt", "is neither a text nor a list of token ids, nor a list of 1 to " +
                              std::to_string(kPromptsMax) + " of these");
  }
}

void read_completion(Fields& fields, ApiRequest& request) {
  request.tokens_max = fields.count("max_tokens", 1, 1 << 24).value_or(16);
  if (const auto logprobs = fields.count("logprobs", 0, kTopLogprobsMax)) {
    request.logprobs = true;
    request.top_logprobs = *logprobs;
  }
  request.echo = fields.flag("echo", false);
  if (request.echo && request.logprobs) {
    fields.fail("echo", "is not supported together with logprobs");
  }
  if (fields.find("add_special_tokens") != nullptr) {
    request.add_special_tokens = fields.flag("add_special_tokens", true);
  }
  fields.refuse_unless("suffix", is_empty, "is not supported; leave it out");
  read_prompts(fields, request);
}

// A content of text parts becomes one text, as templates expect it.
void read_message(const OrderedJson& written, Fields& fields, OrderedJson& messages) {
  if (!written.is_object() || !written.contains("role") || !written.at("role").is_string()) {
    fields.fail("messages", "has a message without a role");
    return;
  }
  OrderedJson message = written;
  if (message.contains("content") && message.at("content").is_array()) {
    std::string text;
    for (const OrderedJson& part : message.at("content")) {
      if (!part.is_object() || part.value("type", OrderedJson()) != "text" ||
          !part.value("text", OrderedJson()).is_string()) {
        fields.fail("messages", "has a content part that is no text; supported is text only");
        return;
      }
      text += (text.empty() ? "" : "\n") + part.at("text").get<std::string>();
    }
    message["content"] = text;
  }
  const OrderedJson content = message.value("content", OrderedJson());
  if (!content.is_string() && !content.is_null()) {
    fields.fail("messages", "has a content that is neither a text nor a list of parts");
    return;
  }
  if (content.is_null() && !message.contains("tool_calls")) {
    fields.fail("messages", "has a message without content");
    return;
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
  fields.refuse_unless("tools", is_empty,
                       "is not supported: tool calls are not read from answers; leave it out");
  fields.refuse_unless("functions", is_empty, "is not supported; leave it out");
  fields.refuse_unless(
      "tool_choice", [](const OrderedJson& value) { return value == "none" || value == "auto"; },
      "is not supported; leave it out");
  fields.refuse_unless(
      "response_format",
      [](const OrderedJson& value) {
        return value.is_object() && value.value("type", OrderedJson()) == "text";
      },
      "is not supported; supported is {\"type\": \"text\"}");
  fields.refuse_unless(
      "echo", [](const OrderedJson& value) { return value == false; },
      "is not supported for chats");
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

ApiResult<OrderedJson> parse_body(std::string_view body) {
  bool too_deep = false;
  const auto watch = [&too_deep](int depth, OrderedJson::parse_event_t, OrderedJson&) {
    too_deep = too_deep || depth > kJsonDepthMax;
    return !too_deep;
  };
  try {
    OrderedJson json = OrderedJson::parse(body, watch);
    if (too_deep) return bad_request("", "the body is nested too deeply");
    if (!json.is_object()) return bad_request("", "the body is not a JSON object");
    return ApiResult<OrderedJson>(boost::system::in_place_value, std::move(json));
  } catch (const OrderedJson::exception& error) {
    return bad_request("", std::string("the body is not JSON: ") + error.what());
  }
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
  fields.refuse_unknown();
  if (fields.error()) return *fields.error();
  return request;
}

}  // namespace kvtier::engine::server
