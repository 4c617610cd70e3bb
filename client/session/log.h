// Lines for the engine's log sink (kvtier/log.h): of each topic at most one a second. Any thread.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/fork_mark.h"
#include "kvtier/deadline.h"
#include "kvtier/log.h"

namespace kvtier::session {

enum class Topic : std::uint8_t { connection, name_space, lease, fault, drop, refused };

class Log {
 public:
  Log(LogSink sink, LogLevel level) : sink_(std::move(sink)), level_(level) {}

  // Whether a line of this level goes anywhere, so that nobody makes one in vain.
  bool wants(LogLevel level) const noexcept { return sink_ && level <= level_ && !born_.forked(); }

  void line(Topic topic, LogLevel level, std::string text) {
    if (!wants(level)) return;
    if (const std::uint64_t left_out = take_turn(topic, Clock::now(), text); left_out == kNotNow) {
      return;
    } else if (left_out > 0) {
      text += " (" + std::to_string(left_out) + " lines like it were left out)";
    }
    sink_(level, text);
  }

 private:
  static constexpr std::uint64_t kNotNow = ~std::uint64_t{0};
  static constexpr std::chrono::seconds kEvery{1};

  struct Last {
    Clock::time_point at{};
    std::uint64_t left_out = 0;
  };

  // How many lines were left out before this one; kNotNow: it is one of them. What ends or begins
  // a connection always differs from what was said before, and is said.
  std::uint64_t take_turn(Topic topic, Clock::time_point now, const std::string& text) {
    const std::lock_guard lock(mutex_);
    Last& last = last_[static_cast<std::size_t>(topic)];
    const bool news = topic == Topic::connection && text != connection_said_;
    if (!news && last.at != Clock::time_point{} && now - last.at < kEvery) {
      ++last.left_out;
      return kNotNow;
    }
    if (topic == Topic::connection) connection_said_ = text;
    last.at = now;
    return std::exchange(last.left_out, 0);
  }

  const LogSink sink_;
  const LogLevel level_;
  const ForkMark born_{};
  std::mutex mutex_;
  std::array<Last, 6> last_;
  std::string connection_said_;
};

}  // namespace kvtier::session
