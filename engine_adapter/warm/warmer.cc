#include "engine_adapter/warm/warmer.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>

#include "engine_adapter/warm/limits.h"

namespace kvtier::warm {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using engine::Json;

namespace {

constexpr const char* kAnswerName = "the server's answer";

// Said by servers that will take the same request later.
bool is_for_now(unsigned status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}
// What is wrong with every request, not with one document.
bool is_for_all(unsigned status) {
  return status == 401 || status == 403 || status == 404 || status == 405;
}

// What the server said, in one line.
std::string message_of(const HttpAnswer& answer) {
  std::string text = answer.body;
  const auto json = engine::parse_json(answer.body, kAnswerName);
  const Json* error = json ? engine::find(*json, "error") : nullptr;
  const Json* message = error != nullptr ? engine::find(*error, "message") : nullptr;
  if (message != nullptr && message->is_string()) text = message->get<std::string>();
  for (char& c : text) c = static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  return "status " + std::to_string(answer.status) + ": " + text.substr(0, 300);
}

Error error_of(const EndpointOptions& endpoint, const HttpAnswer& answer) {
  std::string mend;
  if (answer.status == 401 || answer.status == 403) mend = " (give --api-key-file)";
  if (answer.status == 404 || answer.status == 405) {
    mend = " (is --endpoint right, and --model one that it serves?)";
  }
  return make_error(Errc::refused, show(endpoint.url) + ": " + message_of(answer) + mend);
}

std::string body_of(const std::string& model, const Document& document, std::string prompt) {
  Json json{{"model", model}, {"prompt", std::move(prompt)}, {"max_tokens", 1}, {"temperature", 0}};
  if (!document.salt.empty()) json["cache_salt"] = document.salt;
  return json.dump();
}

}  // namespace

Result<Usage> parse_usage(const std::string& body) {
  const auto json = engine::parse_json(body, kAnswerName);
  if (!json) return json.error();
  const Json* usage = json->is_object() ? engine::find(*json, "usage") : nullptr;
  if (usage == nullptr || !usage->is_object()) {
    return make_error(Errc::malformed, std::string(kAnswerName) + " has no usage");
  }
  engine::JsonFields fields(*usage, "usage");
  Usage found{.prompt_tokens = fields.count("prompt_tokens"), .cached_tokens = {}};
  if (fields.error()) return *fields.error();
  const Json* details = engine::find(*usage, "prompt_tokens_details");
  if (details == nullptr || engine::find(*details, "cached_tokens") == nullptr) return found;
  engine::JsonFields inner(*details, "usage.prompt_tokens_details");
  found.cached_tokens = inner.count("cached_tokens");
  if (inner.error()) return *inner.error();
  if (*found.cached_tokens > found.prompt_tokens) {
    return make_error(Errc::malformed, "usage: more tokens were cached than the prompt has");
  }
  return found;
}

Warmer::Warmer(const WarmOptions& options, std::vector<Document> documents, ProgressView& view)
    : options_(options),
      documents_(std::move(documents)),
      view_(view),
      model_(options.model),
      began_(std::chrono::steady_clock::now()) {
  for (const Document& document : documents_) bytes_ += document.bytes;
  summary_.documents = documents_.size();
}

Summary Warmer::run() {
  began_ = std::chrono::steady_clock::now();
  signals_.add(SIGINT);
  signals_.add(SIGTERM);
  signals_.async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    summary_.interrupted = true;
    io_.stop();
  });
  asio::co_spawn(io_, begin(), asio::detached);
  asio::co_spawn(io_, draw(), asio::detached);
  io_.run();
  view_.clear();
  summary_.elapsed = progress().elapsed;
  return summary_;
}

asio::awaitable<void> Warmer::begin() {
  if (model_.empty()) {
    Endpoint endpoint(io_, options_.endpoint);
    auto found = co_await find_model(endpoint);
    if (!found) {
      end(found.error());
      co_return;
    }
    model_ = std::move(*found);
  }
  workers_ = std::min<std::size_t>(options_.parallel, documents_.size());
  if (workers_ == 0) finished();
  for (std::size_t i = 0; i < workers_; ++i) asio::co_spawn(io_, work(), asio::detached);
}

asio::awaitable<Result<std::string>> Warmer::find_model(Endpoint& endpoint) {
  const std::string where = show(options_.endpoint.url) + "/models";
  const auto answer = co_await endpoint.ask(http::verb::get, "/models", {});
  if (!answer) co_return answer.error();
  if (answer->status != 200) co_return error_of(options_.endpoint, *answer);
  const auto json = engine::parse_json(answer->body, where);
  const Json* data = json && json->is_object() ? engine::find(*json, "data") : nullptr;
  std::vector<std::string> names;
  if (data != nullptr && data->is_array()) {
    for (const Json& model : *data) {
      const Json* id = model.is_object() ? engine::find(model, "id") : nullptr;
      if (id != nullptr && id->is_string()) names.push_back(id->get<std::string>());
    }
  }
  if (names.size() == 1) co_return names.front();
  std::string choices;
  for (const std::string& one : names) choices += (choices.empty() ? ": " : ", ") + one;
  co_return make_error(Errc::invalid, where + " names " + std::to_string(names.size()) +
                                          " models: give --model, one of those served" + choices);
}

asio::awaitable<void> Warmer::work() {
  Endpoint endpoint(io_, options_.endpoint);
  while (next_ < documents_.size()) {
    const Document& document = documents_[next_++];
    co_await warm(endpoint, document);
  }
  if (--workers_ == 0) finished();
}

asio::awaitable<void> Warmer::warm(Endpoint& endpoint, const Document& document) {
  auto prompt = read_prompt(document);
  if (!prompt) {
    if (!document.named && prompt.error().code == Errc::invalid) {
      ++summary_.left_out;
      bytes_done_ += document.bytes;
      view_.note("left out: " + prompt.error().message);
      co_return;
    }
    failed(document, prompt.error().message);
    co_return;
  }
  const auto answer =
      co_await ask_patiently(endpoint, body_of(model_, document, std::move(*prompt)));
  if (!answer && answer.error().code == Errc::deadline) {
    failed(document, document.path + ": " + answer.error().message + " (give a longer --timeout)");
    co_return;
  }
  if (!answer) {
    end(answer.error());
    co_return;
  }
  if (is_for_all(answer->status)) {
    end(error_of(options_.endpoint, *answer));
    co_return;
  }
  if (answer->status != 200) {
    failed(document, document.path + ": " + message_of(*answer));
    co_return;
  }
  const auto usage = parse_usage(answer->body);
  if (usage) {
    took(document, *usage);
  } else {
    failed(document, document.path + ": " + usage.error().message);
  }
}

asio::awaitable<Result<HttpAnswer>> Warmer::ask_patiently(Endpoint& endpoint, std::string body) {
  asio::steady_timer timer(io_);
  std::chrono::milliseconds wait = kFirstWait;
  for (unsigned attempt = 1;; ++attempt) {
    auto answer = co_await endpoint.ask(http::verb::post, "/completions", body);
    const bool again =
        answer ? is_for_now(answer->status) : answer.error().code == Errc::unavailable;
    if (!again || attempt == kAttemptsMax) co_return answer;
    timer.expires_after(wait);
    wait *= 2;
    co_await timer.async_wait(asio::use_awaitable);
  }
}

void Warmer::took(const Document& document, const Usage& usage) {
  const std::uint32_t cached = usage.cached_tokens.value_or(0);
  const bool short_one = usage.too_short(options_.block_tokens);
  const bool whole = usage.was_cached(options_.block_tokens);
  ++(short_one ? summary_.too_short : whole ? summary_.cached : summary_.warmed);
  summary_.cached_unknown |= !usage.cached_tokens;
  summary_.prompt_tokens += usage.prompt_tokens;
  summary_.cached_tokens += cached;
  bytes_done_ += document.bytes;
  view_.note(std::to_string(progress().documents_done) + "/" + std::to_string(documents_.size()) +
             " " + document.path + ": " +
             (short_one ? std::to_string(usage.prompt_tokens) +
                              " tokens, less than a block: nothing to cache"
              : whole ? "was cached"
                      : std::to_string(usage.prompt_tokens - cached) + " of " +
                            std::to_string(usage.prompt_tokens) + " tokens computed"));
}

void Warmer::failed(const Document& document, const std::string& why) {
  summary_.failures.push_back({document.path, why});
  bytes_done_ += document.bytes;
  view_.say("kvtier-warm: " + why);
}

void Warmer::end(Error error) {
  if (!summary_.ended) summary_.ended = std::move(error);
  io_.stop();
}

void Warmer::finished() {
  done_ = true;
  signals_.cancel();
  redraw_.cancel();
}

asio::awaitable<void> Warmer::draw() {
  boost::system::error_code cancelled;
  while (!done_) {
    view_.show(progress());
    redraw_.expires_after(kProgressEvery);
    co_await redraw_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  }
}

Progress Warmer::progress() const {
  const auto now = std::chrono::steady_clock::now();
  return {.documents = documents_.size(),
          .documents_done = documents_.size() - summary_.remaining(),
          .bytes = bytes_,
          .bytes_done = bytes_done_,
          .prompt_tokens = summary_.prompt_tokens,
          .elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(now - began_)};
}

}  // namespace kvtier::warm
