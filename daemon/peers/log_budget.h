// Lines of the log that peers can cause, so many a second at most: whoever reads the log or keeps
// it is not to be hurt by one of them. Owned by the control thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace kvtier::daemon {

class LogBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;
  explicit LogBudget(std::uint32_t lines_per_second) : lines_per_second_(lines_per_second) {}

  // None: this line is not to be written. Otherwise how many were not since the last that was.
  std::optional<std::uint64_t> take(Time now) noexcept {
    if (now - second_began_ >= std::chrono::seconds(1)) {
      second_began_ = now;
      lines_ = 0;
    }
    if (lines_ == lines_per_second_) {
      ++left_out_;
      return std::nullopt;
    }
    ++lines_;
    return std::exchange(left_out_, 0);
  }

 private:
  std::uint32_t lines_per_second_;
  std::uint32_t lines_ = 0;
  std::uint64_t left_out_ = 0;
  Time second_began_{};
};

// What a line says of those before it that were not written; nothing of none.
inline std::string lines_left_out(std::uint64_t lines) {
  return lines == 0 ? "" : " (and " + std::to_string(lines) + " lines like it left out)";
}

}  // namespace kvtier::daemon
