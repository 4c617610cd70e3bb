// What a client says, on its way to Python's logging.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "kvtier/log.h"

namespace kvtier::python {

// The client's threads put lines in and wait for nothing; a thread of Python's takes them out.
class LogLines {
 public:
  // The oldest goes where too many wait.
  void add(LogLevel level, std::string_view line);
  // Nothing comes any more: next() gives what there is, and then none.
  void end();
  // Waits for the next line.
  std::optional<std::tuple<LogLevel, std::string>> next();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::tuple<LogLevel, std::string>> lines_;
  bool ended_ = false;
};

}  // namespace kvtier::python
