#include "engine_adapter/reference/server/exchange.h"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace kvtier::engine::server {

namespace asio = boost::asio;

Exchange::Exchange(const asio::any_io_executor& executor)
    : executor_(executor), changed_(executor, asio::steady_timer::time_point::max()) {}

class Exchange::Listener final : public RequestListener {
 public:
  Listener(std::shared_ptr<Exchange> exchange, std::uint32_t part)
      : exchange_(std::move(exchange)), part_(part) {}

  void prompt(std::vector<ChosenToken> tokens) override {
    exchange_->push({.kind = Event::Kind::prompt, .part = part_, .prompt = std::move(tokens)});
  }
  void token(std::uint32_t sample, const ChosenToken& chosen) override {
    exchange_->push(
        {.kind = Event::Kind::token, .part = part_, .sample = sample, .chosen = chosen});
  }
  void finished(std::uint32_t sample, FinishReason reason) override {
    exchange_->push(
        {.kind = Event::Kind::finished, .part = part_, .sample = sample, .reason = reason});
  }
  void done(RequestResult result) override {
    exchange_->push({.kind = Event::Kind::done, .part = part_, .result = std::move(result)});
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
  const std::uint32_t part_;
};

std::shared_ptr<RequestListener> Exchange::listener(std::uint32_t part) {
  return std::make_shared<Listener>(shared_from_this(), part);
}

void Exchange::push(Event event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  asio::post(executor_, [self = shared_from_this()] { self->changed_.cancel(); });
}

void Exchange::abandon() {
  abandoned_ = true;
  changed_.cancel();
}

asio::awaitable<Event> Exchange::next() {
  for (;;) {
    if (abandoned_) co_return Event{.kind = Event::Kind::abandoned};
    {
      const std::lock_guard lock(mutex_);
      if (!events_.empty()) {
        Event event = std::move(events_.front());
        events_.pop_front();
        co_return event;
      }
    }
    // cancel() cannot come between the look above and this wait: both are the strand's.
    boost::system::error_code ignored;
    co_await changed_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

}  // namespace kvtier::engine::server
