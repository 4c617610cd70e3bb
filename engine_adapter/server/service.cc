#include "engine_adapter/server/service.h"

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <ctime>
#include <random>

#include "engine_adapter/server/limits.h"

namespace kvtier::engine::server {

namespace asio = boost::asio;

namespace {

using Clock = std::chrono::steady_clock;
using Kind = Event::Kind;

// Whatever a tokenizer calls a text, JSON must be UTF-8.
std::string dumped(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::uint64_t random_number() {
  thread_local std::mt19937_64 source(std::random_device{}());
  return source();
}

std::string make_id(bool chat) {
  char text[40];
  std::snprintf(text, sizeof text, "%s-%016llx", chat ? "chatcmpl" : "cmpl",
                static_cast<unsigned long long>(random_number()));
  return text;
}

}  // namespace

struct Service::Submitted {
  Submitted(ApiRequest taken, const Tokenizer& tokenizer, const std::string& model_name)
      : request(std::move(taken)),
        answers(request, tokenizer),
        writer(request, tokenizer, make_id(request.chat), model_name, std::time(nullptr)) {}

  // One prompt's.
  struct Part {
    RequestId id;
    bool cancelled = false;
    std::optional<RequestResult> result{};
  };

  // One that failed is the end of all.
  const Error* error() const noexcept {
    for (const Part& part : parts) {
      if (part.result && part.result->error) return &*part.result->error;
    }
    return nullptr;
  }
  bool ended() const noexcept {
    return abandoned || error() != nullptr ||
           std::ranges::all_of(parts, [](const Part& part) { return part.result.has_value(); });
  }

  ApiRequest request;
  Answers answers;
  ResponseWriter writer;
  std::vector<Part> parts;
  std::vector<std::string> echoed;  // the prompts' texts, where they are to be repeated
  std::shared_ptr<Exchange> exchange;
  Clock::time_point begun = Clock::now();
  std::vector<Clock::time_point> last_token;
  bool abandoned = false;
};

Service::Service(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                 Scheduler& scheduler, ServerMetrics& metrics, ServiceOptions options)
    : tokenizer_(tokenizer),
      chat_template_(chat_template),
      scheduler_(scheduler),
      metrics_(metrics),
      options_(std::move(options)) {}

// In time that does not tell how much of the key was right.
bool Service::authorised(const std::string& authorization) const {
  if (options_.api_key.empty()) return true;
  const std::string expected = "Bearer " + options_.api_key;
  unsigned difference = authorization.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < authorization.size(); ++i) {
    difference |= static_cast<unsigned char>(authorization[i]) ^
                  static_cast<unsigned char>(expected[i % expected.size()]);
  }
  return difference == 0;
}

OrderedJson Service::models() const {
  return {{"object", "list"},
          {"data",
           {{{"id", options_.model_name},
             {"object", "model"},
             {"created", 0},
             {"owned_by", "kvtier"},
             {"max_model_len", options_.positions_max}}}}};
}

asio::awaitable<bool> Service::send_error(ApiError error, Reply& reply) {
  std::string body = dumped(error.body());
  co_return co_await reply.whole(error.status, "application/json", std::move(body));
}

asio::awaitable<void> Service::handle(HttpRequest request, Reply& reply) {
  const std::string path = request.target.substr(0, request.target.find('?'));
  const bool chat = path == "/v1/chat/completions";
  const bool post = chat || path == "/v1/completions";
  const bool get = path == "/v1/models" || path == "/v1/models/" + options_.model_name ||
                   path == "/health" || path == "/metrics";
  ApiError error{.status = 0, .message = {}};
  if (!post && !get) {
    error = {.status = 404,
             .message = path.starts_with("/v1/models/")
                            ? "the model '" + path.substr(11) + "' does not exist"
                            : "there is no " + path +
                                  "; there are /v1/completions, /v1/chat/completions, /v1/models, "
                                  "/health and /metrics",
             .code = path.starts_with("/v1/models/") ? "model_not_found" : "not_found"};
  } else if (request.method != (post ? "POST" : "GET")) {
    error = {.status = 405,
             .message = path + " wants " + (post ? "POST" : "GET") + ", not " + request.method,
             .code = "method_not_allowed"};
  } else if (path.starts_with("/v1/") && !authorised(request.authorization)) {
    error = {.status = 401,
             .message = "the API key is missing or wrong (Authorization: Bearer KEY)",
             .code = "invalid_api_key"};
  }
  if (error.status != 0) {
    co_await send_error(std::move(error), reply);
  } else if (post) {
    co_await generate(std::move(request.body), chat, reply);
  } else if (path == "/health") {
    const bool stuck = scheduler_.in_turn() > kStepMax;
    co_await reply.whole(stuck ? 503 : 200, "application/json",
                         stuck ? "{\"status\":\"stuck\"}" : "{\"status\":\"ok\"}");
  } else if (path == "/metrics") {
    std::string text = metrics_.prometheus(scheduler_.metrics());
    co_await reply.whole(200, "text/plain; version=0.0.4; charset=utf-8", std::move(text));
  } else {
    const OrderedJson list = models();
    std::string body = dumped(path == "/v1/models" ? list : list.at("data").at(0));
    co_await reply.whole(200, "application/json", std::move(body));
  }
}

ApiResult<std::vector<Token>> Service::prompt_of(const ApiRequest& request,
                                                 std::uint32_t part) const {
  std::string text;
  if (request.chat) {
    if (chat_template_ == nullptr) {
      const std::string why =
          options_.no_chat.empty() ? "the model has no chat template" : options_.no_chat;
      return bad_request("messages", why +
                                         "; use /v1/completions, or start the server with "
                                         "--chat-template FILE");
    }
    ChatTemplate::Conversation conversation;
    conversation.messages = request.messages;
    conversation.add_generation_prompt = request.add_generation_prompt;
    conversation.continue_final_message = request.continue_final_message;
    conversation.more = request.template_variables;
    auto rendered = chat_template_->render(conversation, std::time(nullptr));
    if (!rendered) {
      return bad_request("messages", "the chat template: " + rendered.error().message);
    }
    text = std::move(*rendered);
  } else if (const auto* ids = std::get_if<std::vector<Token>>(&request.prompts[part])) {
    return *ids;
  } else {
    text = std::get<std::string>(request.prompts[part]);
  }
  auto tokens = tokenizer_.encode(text);
  if (!tokens) return bad_request(request.chat ? "messages" : "prompt", tokens.error().message);
  if (!request.chat && request.add_special_tokens.value_or(true)) {
    const auto front = tokenizer_.template_prefix();
    tokens->insert(tokens->begin(), front.begin(), front.end());
  }
  return std::move(*tokens);
}

ApiResult<Request> Service::engine_request(const ApiRequest& request,
                                           std::vector<Token> prompt) const {
  const auto length = static_cast<std::uint32_t>(prompt.size());
  if (length >= options_.positions_max) {
    return ApiError{.status = 400,
                    .message = "the prompt has " + std::to_string(length) +
                               " tokens, which leaves no room for an answer: the model takes " +
                               std::to_string(options_.positions_max) + " of both",
                    .param = request.chat ? "messages" : "prompt",
                    .code = "context_length_exceeded"};
  }
  Request made;
  const std::uint32_t answers = std::max(request.answers, request.beam.width);
  const std::uint32_t room = std::min(options_.positions_max, options_.pool_tokens);
  const std::uint32_t open = room > length ? (room - length) / answers : 1;
  made.tokens_max = request.tokens_max.value_or(std::max(open, 1U));
  made.prompt = std::move(prompt);
  made.sampling = request.sampling;
  if (!request.seeded) made.sampling.seed = random_number();
  made.samples = request.answers;
  made.beam = request.beam;
  made.stop_tokens = request.stop_tokens;
  made.ignore_end = request.ignore_end;
  made.logprobs = request.logprobs;
  made.top_logprobs = request.top_logprobs;
  made.cache_salt = request.cache_salt;
  made.client = request.user;
  made.priority = request.priority;
  made.cache_deadline = options_.cache_deadline;
  return made;
}

asio::awaitable<void> Service::generate(std::string body, bool chat, Reply& reply) {
  auto parsed = parse_request(body, chat);
  if (!parsed) {
    co_await send_error(parsed.error(), reply);
    co_return;
  }
  if (parsed->model != options_.model_name) {
    ApiError missing{.status = 404,
                     .message = "the model '" + parsed->model + "' does not exist; there is '" +
                                options_.model_name + "'",
                     .param = "model",
                     .code = "model_not_found"};
    co_await send_error(std::move(missing), reply);
    co_return;
  }
  Submitted submitted(std::move(*parsed), tokenizer_, options_.model_name);
  const auto executor = co_await asio::this_coro::executor;
  submitted.exchange = std::make_shared<Exchange>(executor);
  if (const auto taken = submit(submitted); !taken) {
    cancel_rest(submitted);
    co_await send_error(taken.error(), reply);
    co_return;
  }
  reply.watch(submitted.exchange);
  if (submitted.request.stream) {
    co_await answer_stream(submitted, reply);
  } else {
    co_await answer_whole(submitted, reply);
  }
  reply.unwatch();
  cancel_rest(submitted);
}

ApiResult<void> Service::submit(Submitted& submitted) {
  const ApiRequest& request = submitted.request;
  submitted.last_token.resize(request.choices());
  std::vector<Request> made;
  for (std::uint32_t i = 0; i < request.parts(); ++i) {
    auto prompt = prompt_of(request, i);
    if (!prompt) return prompt.error();
    std::string echoed = request.echo ? tokenizer_.decode(*prompt) : std::string{};
    auto one = engine_request(request, std::move(*prompt));
    if (!one) return one.error();
    made.push_back(std::move(*one));
    submitted.echoed.push_back(std::move(echoed));
  }
  for (std::uint32_t i = 0; i < request.parts(); ++i) {
    const auto id = scheduler_.submit(std::move(made[i]), submitted.exchange->listener(i));
    if (!id) return to_api(id.error());
    submitted.parts.push_back({*id});
  }
  return {};
}

// What nobody waits for any more is not computed.
void Service::cancel_rest(Submitted& submitted) {
  for (const Submitted::Part& part : submitted.parts) {
    if (!part.result) scheduler_.cancel(part.id);
  }
}

// What an event adds to the answers. Beams come whole, at the end.
std::vector<Piece> Service::pieces_of(Submitted& submitted, const Event& event) {
  std::vector<Piece> pieces;
  const auto add = [&pieces](std::optional<Piece> piece) {
    if (piece) pieces.push_back(std::move(*piece));
  };
  const bool beam = submitted.request.beam.width != 0;
  if (event.kind == Kind::abandoned) {
    submitted.abandoned = true;
    return pieces;
  }
  Submitted::Part& part = submitted.parts[event.part];
  const std::uint32_t answers = submitted.request.answers;
  const std::uint32_t first = event.part * answers;
  if (event.kind == Kind::token) {
    note_token(submitted, first + event.sample);
    add(submitted.answers.token(first + event.sample, event.chosen));
  } else if (event.kind == Kind::finished && !beam) {
    add(submitted.answers.finished(first + event.sample, event.reason));
  } else if (event.kind == Kind::done) {
    part.result = event.result;
    for (std::uint32_t i = 0; beam && i < event.result->answers.size(); ++i) {
      const Answer& answer = event.result->answers[i];
      for (const ChosenToken& chosen : answer.tokens) {
        add(submitted.answers.token(first + i, chosen));
      }
      add(submitted.answers.finished(first + i, answer.finish));
    }
  }
  // Everything that is left would be cut off.
  if (!part.cancelled && !part.result && submitted.answers.all_ended(first, answers)) {
    part.cancelled = true;
    scheduler_.cancel(part.id);
  }
  return pieces;
}

void Service::note_token(Submitted& submitted, std::uint32_t answer) {
  const auto now = Clock::now();
  Clock::time_point& last = submitted.last_token[answer];
  if (last == Clock::time_point{}) {
    metrics_.first_token(now - submitted.begun);
  } else {
    metrics_.next_token(now - last);
  }
  last = now;
}

OrderedJson Service::usage_of(const Submitted& submitted) const {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached = 0;
  for (const Submitted::Part& part : submitted.parts) {
    prompt_tokens += part.result->usage.prompt_tokens;
    cached += part.result->usage.cached();
  }
  return ResponseWriter::usage(prompt_tokens, cached, submitted.answers.completion_tokens());
}

// `reasons`: of the answers.
void Service::count_done(const Submitted& submitted, const std::vector<std::string>& reasons) {
  for (std::uint32_t i = 0; i < submitted.parts.size(); ++i) {
    const RequestResult& result = *submitted.parts[i].result;
    metrics_.request_done(result.total, result.queued, reasons[i * submitted.request.answers]);
  }
}

asio::awaitable<void> Service::answer_whole(Submitted& submitted, Reply& reply) {
  std::vector<Piece> answers(submitted.request.choices());
  for (std::uint32_t i = 0; i < answers.size(); ++i) {
    answers[i].sample = i;
    answers[i].text = submitted.echoed[i / submitted.request.answers];
  }
  while (!submitted.ended()) {
    const Event event = co_await submitted.exchange->next();
    for (Piece& piece : pieces_of(submitted, event)) {
      Piece& answer = answers[piece.sample];
      answer.text += piece.text;
      answer.tokens.insert(answer.tokens.end(), piece.tokens.begin(), piece.tokens.end());
      if (!piece.finish_reason.empty()) answer.finish_reason = piece.finish_reason;
    }
  }
  if (submitted.abandoned) co_return;
  if (const Error* error = submitted.error()) {
    co_await send_error(to_api_once_taken(*error), reply);
    co_return;
  }
  std::vector<std::string> reasons;
  for (const Piece& answer : answers) reasons.push_back(answer.finish_reason);
  count_done(submitted, reasons);
  std::string body = dumped(submitted.writer.whole(answers, usage_of(submitted)));
  co_await reply.whole(200, "application/json", std::move(body));
}

asio::awaitable<void> Service::answer_stream(Submitted& submitted, Reply& reply) {
  bool there = co_await reply.begin_events();
  const std::uint32_t choices = submitted.request.choices();
  for (std::uint32_t i = 0; there && i < choices; ++i) {
    if (submitted.request.chat) {
      there = co_await reply.event(dumped(submitted.writer.opening(i)));
    } else if (submitted.request.echo) {
      Piece echoed{.sample = i,
                   .text = submitted.echoed[i / submitted.request.answers],
                   .tokens = {},
                   .finish_reason = {}};
      there = co_await reply.event(dumped(submitted.writer.chunk(echoed)));
    }
  }
  std::vector<std::string> reasons(choices);
  while (there && !submitted.ended()) {
    const Event event = co_await submitted.exchange->next();
    std::vector<Piece> pieces = pieces_of(submitted, event);
    for (std::size_t i = 0; there && i < pieces.size(); ++i) {
      if (!pieces[i].finish_reason.empty()) reasons[pieces[i].sample] = pieces[i].finish_reason;
      if (pieces[i].finish_reason == "error") continue;  // told by done()
      there = co_await reply.event(dumped(submitted.writer.chunk(pieces[i])));
    }
  }
  if (!there || submitted.abandoned) co_return;
  if (const Error* error = submitted.error()) {
    co_await reply.event(dumped(to_api_once_taken(*error).body()));
  } else {
    count_done(submitted, reasons);
    if (submitted.request.include_usage) {
      co_await reply.event(dumped(submitted.writer.usage_chunk(usage_of(submitted))));
    }
    co_await reply.event("[DONE]");
  }
  co_await reply.end_events();
}

}  // namespace kvtier::engine::server
