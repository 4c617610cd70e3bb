// The requests that one connection waits for, between it and the engine's thread, which tells what
// happens to them.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "engine_adapter/reference/scheduler/request.h"

namespace kvtier::engine::server {

struct Event {
  enum class Kind : unsigned char { prompt, token, finished, done, abandoned } kind;
  std::uint32_t part = 0;    // of the requests
  std::uint32_t sample = 0;  // of its answers
  std::vector<ChosenToken> prompt{};
  ChosenToken chosen{};
  FinishReason reason{};
  std::optional<RequestResult> result{};
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  // `executor` runs one thing at a time: the connection's strand.
  explicit Exchange(const boost::asio::any_io_executor& executor);

  // To be told about request `part`, on the engine's thread.
  std::shared_ptr<RequestListener> listener(std::uint32_t part);

  // The connection's strand. The client has gone: next() says so before anything else.
  void abandon();
  boost::asio::awaitable<Event> next();

 private:
  class Listener;
  void push(Event event);

  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer changed_;  // the strand's
  std::mutex mutex_;
  std::deque<Event> events_;
  bool abandoned_ = false;  // the strand's
};

}  // namespace kvtier::engine::server
