// What the server answers with: the API over one model and its scheduler. Any thread; each call is
// one connection's.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine_adapter/reference/scheduler/scheduler.h"
#include "engine_adapter/reference/server/api_error.h"
#include "engine_adapter/reference/server/api_request.h"
#include "engine_adapter/reference/server/api_response.h"
#include "engine_adapter/reference/server/exchange.h"
#include "engine_adapter/reference/server/handoff/handoff.h"
#include "engine_adapter/reference/server/server_metrics.h"
#include "engine_adapter/reference/template/chat_template.h"
#include "engine_adapter/reference/tokenizer/tokenizer.h"

namespace kvtier::engine::server {

struct ServiceOptions {
  Role role = Role::both;
  std::string model_name;
  std::string api_key;              // empty: everybody may ask
  std::string no_chat;              // what chats are told where there is no chat template
  std::uint32_t positions_max = 0;  // prompt and answer
  std::uint32_t pool_tokens = 0;    // that the engine's own pages hold
  std::chrono::milliseconds cache_deadline{1000};
  std::chrono::milliseconds handoff_deadline{30'000};
};

// The way back to a client; false where it has gone.
class Reply {
 public:
  virtual ~Reply() = default;
  // `allow`: the methods that there are, with status 405.
  virtual boost::asio::awaitable<bool> whole(unsigned status, std::string content_type,
                                             std::string body, std::string allow = {}) = 0;
  virtual boost::asio::awaitable<bool> begin_events() = 0;
  virtual boost::asio::awaitable<bool> event(std::string data) = 0;
  virtual boost::asio::awaitable<bool> end_events() = 0;
  // `exchange` is abandoned as soon as the client goes, until unwatch().
  virtual void watch(std::shared_ptr<Exchange> exchange) = 0;
  virtual void unwatch() = 0;
};

struct HttpRequest {
  std::string method;
  std::string target;
  std::string authorization;
  std::string body;
};

class Service {
 public:
  // All outlive the service; `chat_template` may be null.
  Service(const Tokenizer& tokenizer, const ChatTemplate* chat_template, Scheduler& scheduler,
          CacheSpaces& spaces, ServerMetrics& metrics, ServiceOptions options);
  // Waits for what is being read and written.
  ~Service();

  boost::asio::awaitable<void> handle(HttpRequest request, Reply& reply);

 private:
  struct Submitted;
  struct Prompt;

  boost::asio::awaitable<void> generate(std::string body, bool chat, Reply& reply);
  ApiResult<std::unique_ptr<Submitted>> take(const std::string& body, bool chat,
                                             const boost::asio::any_io_executor& executor);
  boost::asio::awaitable<void> answer_whole(Submitted& submitted, Reply& reply);
  boost::asio::awaitable<void> answer_stream(Submitted& submitted, Reply& reply);
  boost::asio::awaitable<bool> send_error(ApiError error, Reply& reply);
  ApiResult<std::string> rendered(const ApiRequest& request) const;
  ApiResult<Prompt> prompt_of(const ApiRequest& request, std::uint32_t part) const;
  // Takes all parts or none.
  ApiResult<void> submit(Submitted& submitted);
  void cancel_rest(Submitted& submitted);
  ApiResult<Request> engine_request(const ApiRequest& request, std::vector<Token> prompt) const;
  std::vector<Piece> echoed(Submitted& submitted, std::uint32_t part,
                            std::vector<ChosenToken> tokens);
  std::vector<Piece> pieces_of(Submitted& submitted, Event event);
  void note_token(Submitted& submitted, std::uint32_t answer);
  OrderedJson usage_of(const Submitted& submitted) const;
  void count_done(const Submitted& submitted, const std::vector<std::string>& reasons);
  bool authorised(const std::string& authorization) const;
  OrderedJson models() const;

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_template_;
  Scheduler& scheduler_;
  CacheSpaces& spaces_;
  ServerMetrics& metrics_;
  const ServiceOptions options_;
  // For bodies and answers that are small, and for others (limits.h).
  boost::asio::thread_pool small_work_;
  boost::asio::thread_pool large_work_;
};

}  // namespace kvtier::engine::server
