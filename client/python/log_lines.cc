#include "client/python/log_lines.h"

namespace kvtier::python {
namespace {

constexpr std::size_t kLinesMax = 1024;

}  // namespace

void LogLines::add(LogLevel level, std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (lines_.size() == kLinesMax) lines_.pop_front();
  lines_.emplace_back(level, line);
  changed_.notify_one();
}

void LogLines::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

std::optional<std::tuple<LogLevel, std::string>> LogLines::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || !lines_.empty(); });
  if (lines_.empty()) return std::nullopt;
  auto line = std::move(lines_.front());
  lines_.pop_front();
  return line;
}

}  // namespace kvtier::python
