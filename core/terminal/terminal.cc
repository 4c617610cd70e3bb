#include "core/terminal/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace kvtier::ctl {
namespace {

// To the alternate screen without a cursor, and back.
constexpr const char* kEnter = "\x1b[?1049h\x1b[?25l";
constexpr const char* kLeave = "\x1b[?25h\x1b[?1049l";

sigset_t watched() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT})
    ::sigaddset(&set, signal);
  return set;
}

void print(const std::string& text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    written += static_cast<std::size_t>(n);
  }
}

}  // namespace

bool is_terminal(int fd) {
  return ::isatty(fd) == 1;
}

bool use_colours(int fd) {
  const char* off = std::getenv("NO_COLOR");
  return is_terminal(fd) && (off == nullptr || *off == '\0');
}

Screen::Screen() {
  const sigset_t set = watched();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  ::tcgetattr(STDIN_FILENO, &before_);
  enter();
}

Screen::~Screen() {
  leave();
  const sigset_t set = watched();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void Screen::enter() {
  termios raw = before_;
  raw.c_lflag &= static_cast<tcflag_t>(~(ICANON | ECHO));
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  print(kEnter);
}

void Screen::leave() {
  print(kLeave);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

Screen::Size Screen::size() const {
  winsize found{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &found) != 0 || found.ws_col == 0 || found.ws_row == 0)
    return {};
  return {found.ws_col, found.ws_row};
}

void Screen::draw(const std::vector<std::string>& lines) {
  const Size area = size();
  std::string out = "\x1b[H";
  for (std::size_t i = 0; i < lines.size() && i < area.rows; ++i) {
    out += (i == 0 ? "" : "\r\n") + cut(lines[i], area.columns) + kPlain + "\x1b[K";
  }
  print(out + "\x1b[J");
}

Screen::Event Screen::take_signal() {
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof info) != sizeof info) return Event::resized;
  switch (static_cast<int>(info.ssi_signo)) {
    case SIGWINCH:
    case SIGCONT:
      return Event::resized;
    case SIGTSTP:
      leave();
      ::raise(SIGSTOP);
      enter();
      return Event::resized;
    default:
      signal_ = static_cast<int>(info.ssi_signo);
      return Event::quit;
  }
}

Screen::Event Screen::wait(std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return Event::time;
    pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (::poll(fds, 2, static_cast<int>(left.count())) < 0 && errno != EINTR) return Event::quit;
    if (fds[1].revents != 0) return take_signal();
    if (fds[0].revents == 0) continue;
    char key = 0;
    // Nothing to read from a terminal that says there is: it is gone.
    if (::read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q') return Event::quit;
  }
}

std::string cut(const std::string& line, unsigned columns) {
  std::string out;
  unsigned used = 0;
  for (std::size_t i = 0; i < line.size();) {
    std::size_t length = 1;
    if (line[i] == '\x1b') {
      const std::size_t end = line.find('m', i);
      length = end == std::string::npos ? line.size() - i : end - i + 1;
    } else {
      if (used++ == columns) break;
      while (i + length < line.size() &&
             (static_cast<unsigned char>(line[i + length]) & 0xC0) == 0x80)
        ++length;
    }
    out.append(line, i, length);
    i += length;
  }
  return out;
}

}  // namespace kvtier::ctl
