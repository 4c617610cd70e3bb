#include "engine_adapter/reference/server/service.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>
#include <ctime>
#include <random>

#include "engine_adapter/reference/server/limits.h"
#include "engine_adapter/reference/server/route.h"

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

// Runs `work` on `pool`, and goes on where it was called.
template <class Work>
asio::awaitable<std::invoke_result_t<Work>> done_on(asio::thread_pool& pool, Work work) {
  co_return co_await asio::co_spawn(
      pool,
      [](Work moved) -> asio::awaitable<std::invoke_result_t<Work>> {
        co_return moved();
      }(std::move(work)),
      asio::use_awaitable);
}

std::string make_id(bool chat) {
  char text[40];
  std::snprintf(text, sizeof text, "%s-%016llx", chat ? "chatcmpl" : "cmpl",
                static_cast<unsigned long long>(random_number()));
  return text;
}

}  // namespace

struct Service::Prompt {
  std::vector<Token> tokens;
  std::uint32_t added = 0;  // leading tokens that the text says nothing of
  std::string text;         // of the others, where it is to be repeated
};

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
  std::vector<Prompt> prompts;  // where they are to be repeated
  std::shared_ptr<Exchange> exchange;
  Clock::time_point begun = Clock::now();
  std::vector<Clock::time_point> last_token;
  bool abandoned = false;
  std::optional<ForAnother> for_another{};
};

Service::Service(const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                 Scheduler& scheduler, CacheSpaces& spaces, ServerMetrics& metrics,
                 ServiceOptions options)
    : tokenizer_(tokenizer),
      chat_template_(chat_template),
      scheduler_(scheduler),
      spaces_(spaces),
      metrics_(metrics),
      options_(std::move(options)),
      small_work_(kWorkThreads),
      large_work_(kWorkThreads) {}

Service::~Service() {
  small_work_.join();
  large_work_.join();
}

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
  using To = Route::To;
  Route route = route_of(request.method, request.target, options_.model_name);
  if (!route.error && route.needs_key && !authorised(request.authorization)) {
    route.error = ApiError{.status = 401,
                           .message = "the API key is missing or wrong (Authorization: Bearer KEY)",
                           .code = "invalid_api_key"};
  }
  if (route.error) {
    std::string body = dumped(route.error->body());
    co_await reply.whole(route.error->status, "application/json", std::move(body),
                         std::move(route.allow));
  } else if (route.to == To::completions || route.to == To::chats) {
    co_await generate(std::move(request.body), route.to == To::chats, reply);
  } else if (route.to == To::health) {
    const bool stuck = scheduler_.in_turn() > kStepMax;
    co_await reply.whole(stuck ? 503 : 200, "application/json",
                         stuck ? "{\"status\":\"stuck\"}" : "{\"status\":\"ok\"}");
  } else if (route.to == To::metrics) {
    std::string text = metrics_.prometheus(scheduler_.metrics());
    co_await reply.whole(200, "text/plain; version=0.0.4; charset=utf-8", std::move(text));
  } else {
    const OrderedJson list = models();
    std::string body = dumped(route.to == To::models ? list : list.at("data").at(0));
    co_await reply.whole(200, "application/json", std::move(body));
  }
}

ApiResult<std::string> Service::rendered(const ApiRequest& request) const {
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
  auto text = chat_template_->render(conversation, std::time(nullptr));
  if (!text) return bad_request("messages", "the chat template: " + text.error().message);
  return std::move(*text);
}

ApiResult<Service::Prompt> Service::prompt_of(const ApiRequest& request, std::uint32_t part) const {
  Prompt prompt;
  if (request.chat) {
    auto text = rendered(request);
    if (!text) return text.error();
    prompt.text = std::move(*text);
  } else if (const auto* ids = std::get_if<std::vector<Token>>(&request.prompts[part])) {
    prompt.tokens = *ids;
    if (request.echo) prompt.text = tokenizer_.decode(*ids);
    return prompt;
  } else {
    prompt.text = std::get<std::string>(request.prompts[part]);
  }
  auto tokens = tokenizer_.encode(prompt.text);
  if (!tokens) return bad_request(request.chat ? "messages" : "prompt", tokens.error().message);
  if (!request.chat && request.add_special_tokens.value_or(true)) {
    const auto front = tokenizer_.template_prefix();
    tokens->insert(tokens->begin(), front.begin(), front.end());
    prompt.added = static_cast<std::uint32_t>(front.size());
  }
  prompt.tokens = std::move(*tokens);
  return prompt;
}

ApiResult<Request> Service::engine_request(const ApiRequest& request,
                                           std::vector<Token> prompt) const {
  const auto length = static_cast<std::uint32_t>(prompt.size());
  if (length + (request.tokens_max == 0U ? 0 : 1) > options_.positions_max) {
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
  made.prompt_logprobs = request.echo && request.logprobs;
  made.cache_salt = request.cache_salt;
  made.client = request.user;
  made.priority = request.priority;
  made.cache_deadline = options_.cache_deadline;
  made.handoff_deadline = options_.handoff_deadline;
  return made;
}

asio::awaitable<void> Service::generate(std::string body, bool chat, Reply& reply) {
  const auto executor = co_await asio::this_coro::executor;
  auto& pool = body.size() <= kSmallBodyBytes ? small_work_ : large_work_;
  const auto work = [this, &body, chat, &executor] { return take(body, chat, executor); };
  auto taken = co_await done_on(pool, work);
  if (!taken) {
    co_await send_error(taken.error(), reply);
    co_return;
  }
  body = {};
  Submitted& submitted = **taken;
  reply.watch(submitted.exchange);
  if (submitted.request.stream) {
    co_await answer_stream(submitted, reply);
  } else {
    co_await answer_whole(submitted, reply);
  }
  reply.unwatch();
  cancel_rest(submitted);
}

// Everything that takes time with the size of a body, on a thread for that.
ApiResult<std::unique_ptr<Service::Submitted>> Service::take(
    const std::string& body, bool chat, const asio::any_io_executor& executor) {
  auto parsed = parse_request(body, chat);
  if (!parsed) return parsed.error();
  if (parsed->model != options_.model_name) {
    return ApiError{.status = 404,
                    .message = "the model '" + shown(parsed->model) +
                               "' does not exist; there is '" + options_.model_name + "'",
                    .param = "model",
                    .code = "model_not_found"};
  }
  if (auto mine = take_role(options_.role, *parsed); !mine) return mine.error();
  auto submitted = std::make_unique<Submitted>(std::move(*parsed), tokenizer_, options_.model_name);
  submitted->exchange = std::make_shared<Exchange>(executor);
  if (const auto taken = submit(*submitted); !taken) {
    cancel_rest(*submitted);
    return taken.error();
  }
  return ApiResult<std::unique_ptr<Submitted>>(boost::system::in_place_value, std::move(submitted));
}

ApiResult<void> Service::submit(Submitted& submitted) {
  ApiRequest& request = submitted.request;
  submitted.last_token.resize(request.choices());
  std::vector<Request> made;
  for (std::uint32_t i = 0; i < request.parts(); ++i) {
    auto prompt = prompt_of(request, i);
    if (!prompt) return prompt.error();
    auto one = engine_request(request, prompt->tokens);
    if (!one) return one.error();
    auto handed = begin_handoff(request.handoff, spaces_, *one);
    if (!handed) return handed.error();
    submitted.for_another = std::move(*handed);
    made.push_back(std::move(*one));
    if (request.echo) submitted.prompts.push_back(std::move(*prompt));
  }
  for (std::uint32_t i = 0; i < request.parts(); ++i) {
    const auto id = scheduler_.submit(std::move(made[i]), submitted.exchange->listener(i));
    if (!id) return to_api(id.error());
    submitted.parts.push_back({*id});
  }
  // Read, and as large as the body.
  request.messages = {};
  request.template_variables = {};
  for (auto& prompt : request.prompts) prompt = {};
  return {};
}

// What nobody waits for any more is not computed.
void Service::cancel_rest(Submitted& submitted) {
  for (const Submitted::Part& part : submitted.parts) {
    if (!part.result) scheduler_.cancel(part.id);
  }
}

// The beginnings of the answers to a prompt that is to be repeated. `tokens`: what is told of its
// own.
std::vector<Piece> Service::echoed(Submitted& submitted, std::uint32_t part,
                                   std::vector<ChosenToken> tokens) {
  const Prompt& prompt = submitted.prompts[part];
  std::vector<Piece> pieces;
  if (submitted.request.logprobs) tokens.insert(tokens.begin(), {prompt.tokens.front(), 0, {}});
  for (std::uint32_t i = 0; i < submitted.request.answers; ++i) {
    pieces.push_back({.sample = part * submitted.request.answers + i,
                      .text = prompt.text,
                      .tokens = tokens,
                      .finish_reason = {},
                      .prompt_tokens = tokens.size(),
                      .prompt_added = prompt.added,
                      .prompt_characters = characters_in(prompt.text)});
  }
  return pieces;
}

// What an event adds to the answers. Beams come whole, at the end.
std::vector<Piece> Service::pieces_of(Submitted& submitted, Event event) {
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
  if (event.kind == Kind::prompt) {
    pieces = echoed(submitted, event.part, std::move(event.prompt));
  } else if (event.kind == Kind::token) {
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
    metrics_.request_done(result.total, result.queued,
                          reasons[std::size_t{i} * submitted.request.answers]);
  }
}

asio::awaitable<void> Service::answer_whole(Submitted& submitted, Reply& reply) {
  std::vector<Piece> answers(submitted.request.choices());
  for (std::uint32_t i = 0; i < answers.size(); ++i) answers[i].sample = i;
  const auto add = [&answers](std::vector<Piece> pieces) {
    for (Piece& piece : pieces) {
      Piece& answer = answers[piece.sample];
      append(answer, std::move(piece));
    }
  };
  for (std::uint32_t i = 0; i < submitted.prompts.size(); ++i) {
    if (!submitted.request.logprobs) add(echoed(submitted, i, {}));
  }
  while (!submitted.ended()) {
    Event event = co_await submitted.exchange->next();
    add(pieces_of(submitted, std::move(event)));
  }
  if (submitted.abandoned) co_return;
  if (const Error* error = submitted.error()) {
    co_await send_error(to_api_once_taken(*error), reply);
    co_return;
  }
  std::vector<std::string> reasons;
  reasons.reserve(answers.size());
  for (const Piece& answer : answers) reasons.push_back(answer.finish_reason);
  count_done(submitted, reasons);
  OrderedJson handed_over;
  if (submitted.for_another) {
    const Stored stored = co_await wait_stored(*submitted.for_another, options_.cache_deadline);
    handed_over = stored.params(submitted.for_another->space.id);
    metrics_.prompt_stored(stored.tokens, stored.missing);
  }
  const auto write = [&] {
    OrderedJson whole = submitted.writer.whole(answers, usage_of(submitted));
    if (!handed_over.is_null()) whole["kv_transfer_params"] = std::move(handed_over);
    std::string text = dumped(whole);
    answers = {};
    return text;
  };
  std::string body =
      co_await done_on(submitted.request.logprobs ? large_work_ : small_work_, write);
  co_await reply.whole(200, "application/json", std::move(body));
}

asio::awaitable<void> Service::answer_stream(Submitted& submitted, Reply& reply) {
  bool there = co_await reply.begin_events();
  const std::uint32_t choices = submitted.request.choices();
  for (std::uint32_t i = 0; there && submitted.request.chat && i < choices; ++i) {
    there = co_await reply.event(dumped(submitted.writer.opening(i)));
  }
  for (std::uint32_t i = 0; i < submitted.prompts.size(); ++i) {
    if (submitted.request.logprobs) break;  // it comes with those of its tokens
    for (const Piece& piece : echoed(submitted, i, {})) {
      if (there) there = co_await reply.event(dumped(submitted.writer.chunk(piece)));
    }
  }
  std::vector<std::string> reasons(choices);
  while (there && !submitted.ended()) {
    Event event = co_await submitted.exchange->next();
    const std::vector<Piece> pieces = pieces_of(submitted, std::move(event));
    for (std::size_t i = 0; there && i < pieces.size(); ++i) {
      if (!pieces[i].finish_reason.empty()) reasons[pieces[i].sample] = pieces[i].finish_reason;
      if (pieces[i].finish_reason == "error") continue;  // told by done()
      const auto write = [&] { return dumped(submitted.writer.chunk(pieces[i])); };
      std::string data;
      if (pieces[i].prompt_tokens > 0) {
        data = co_await done_on(large_work_, write);
      } else {
        data = write();
      }
      there = co_await reply.event(std::move(data));
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
