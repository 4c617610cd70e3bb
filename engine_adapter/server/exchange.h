// One request between the engine's thread, which tells what happens to it, and the connection that
// waits for that.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "engine_adapter/scheduler/request.h"

namespace kvtier::engine::server {

struct Event {
  enum class Kind : unsigned char { token, finished, done, abandoned } kind;
  std::uint32_t sample = 0;
  ChosenToken chosen{};
  FinishReason reason{};
  std::optional<RequestResult> result{};
};

class Exchange : public RequestListener, public std::enable_shared_from_this<Exchange> {
 public:
  // `executor` runs one thing at a time: the connection's strand.
  explicit Exchange(boost::asio::any_io_executor executor);

  // The engine's thread.
  void token(std::uint32_t sample, const ChosenToken& chosen) override;
  void finished(std::uint32_t sample, FinishReason reason) override;
  void done(RequestResult result) override;

  // The connection's strand. The client has gone: next() says so before anything else.
  void abandon();
  boost::asio::awaitable<Event> next();

 private:
  void push(Event event);

  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer changed_;  // the strand's
  std::mutex mutex_;
  std::deque<Event> events_;
  bool abandoned_ = false;  // the strand's
};

}  // namespace kvtier::engine::server
