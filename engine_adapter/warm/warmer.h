// Sends each document as a prompt to an OpenAI-compatible server, so that its engine computes the
// KV and puts it into the cache. What is cached already the engine takes from there and says so
// (usage.prompt_tokens_details.cached_tokens): a run that was ended at any point is resumed by
// running it again, and nothing but the cache itself has to be remembered.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/warm/documents.h"
#include "engine_adapter/warm/endpoint.h"
#include "engine_adapter/warm/progress.h"

namespace kvtier::warm {

struct WarmOptions {
  EndpointOptions endpoint;
  std::string model;  // empty: the only one that the server has
  std::uint32_t parallel = 4;
  std::uint32_t block_tokens = 16;  // of the engine's cache
};

// One answered prompt.
struct Usage {
  std::uint32_t prompt_tokens = 0;
  std::optional<std::uint32_t> cached_tokens;  // none: the server does not say
  // Whether blocks were found, and none had to be computed but the one with the last token, which
  // always is.
  bool was_cached(std::uint32_t block_tokens) const noexcept {
    return cached_tokens && *cached_tokens != 0 && prompt_tokens - *cached_tokens <= block_tokens;
  }
  // It has no whole block: nothing of it is ever cached.
  bool too_short(std::uint32_t block_tokens) const noexcept { return prompt_tokens < block_tokens; }
};
// Of a completion's body. Errors: malformed.
Result<Usage> parse_usage(const std::string& body);

struct Failure {
  std::string path, why;
};

struct Summary {
  std::size_t documents = 0;
  std::size_t warmed = 0;     // computed, at least in part
  std::size_t cached = 0;     // found whole
  std::size_t too_short = 0;  // for a single block, so that nothing of it is cached
  std::size_t left_out = 0;   // in a directory and no text
  std::vector<Failure> failures;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0;
  bool cached_unknown = false;  // the server does not say what it had
  std::chrono::milliseconds elapsed{0};
  bool interrupted = false;    // by SIGINT or SIGTERM
  std::optional<Error> ended;  // why it ended before the last document
  std::size_t remaining() const noexcept {
    return documents - warmed - cached - too_short - left_out - failures.size();
  }
};

class Warmer {
 public:
  Warmer(const WarmOptions& options, std::vector<Document> documents, ProgressView& view);
  // To the end, or SIGINT or SIGTERM, which end it at once: the server drops the requests that are
  // under way and keeps the blocks it has finished.
  Summary run();

 private:
  boost::asio::awaitable<void> begin();
  boost::asio::awaitable<void> work();
  boost::asio::awaitable<void> warm(Endpoint& endpoint, const Document& document);
  boost::asio::awaitable<Result<HttpAnswer>> ask_patiently(Endpoint& endpoint, std::string body);
  boost::asio::awaitable<void> draw();
  boost::asio::awaitable<Result<std::string>> find_model(Endpoint& endpoint);
  void took(const Document& document, const Usage& usage);
  void failed(const Document& document, const std::string& why);
  void end(Error error);
  void finished();
  Progress progress() const;

  const WarmOptions& options_;
  const std::vector<Document> documents_;
  ProgressView& view_;
  boost::asio::io_context io_{1};
  boost::asio::signal_set signals_{io_};
  boost::asio::steady_timer redraw_{io_};
  std::string model_;
  std::size_t next_ = 0;
  std::size_t workers_ = 0;
  bool done_ = false;
  std::uint64_t bytes_ = 0, bytes_done_ = 0;
  std::chrono::steady_clock::time_point began_;
  Summary summary_;
};

}  // namespace kvtier::warm
