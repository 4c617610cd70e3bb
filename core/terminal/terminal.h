// The terminal: whether there is one, its colours, and a screen that is given back as it was
// however the program ends.
#pragma once

#include <termios.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/base/fd.h"

namespace kvtier::ctl {

inline constexpr const char* kPlain = "\x1b[0m";
inline constexpr const char* kBold = "\x1b[1m";
inline constexpr const char* kRed = "\x1b[31m";
inline constexpr const char* kGreen = "\x1b[32m";
inline constexpr const char* kYellow = "\x1b[33m";

bool is_terminal(int fd);
// On a terminal, unless NO_COLOR is set to anything but nothing (no-color.org).
bool use_colours(int fd);

// Owns the terminal of standard input and output from its making to its end: another screen, no
// cursor, keys as they are pressed. Signals that end or stop the program first give it back.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  struct Size {
    unsigned columns = 80, rows = 24;
  };
  Size size() const;
  // Replaces what is shown; what does not fit is cut off.
  void draw(const std::vector<std::string>& lines);

  enum class Event { time, resized, quit };
  // Waits for a key, a signal or the time. Ended by a signal, signal() says by which.
  Event wait(std::chrono::milliseconds time);
  int signal() const noexcept { return signal_; }

 private:
  void enter();
  void leave();
  Event take_signal();

  termios before_{};
  UniqueFd signals_;
  int signal_ = 0;
};

// The first `columns` columns of a line in UTF-8; colours take none.
std::string cut(const std::string& line, unsigned columns);

}  // namespace kvtier::ctl
