// The screen takes a terminal and gives it back, however it ends.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "core/terminal/terminal.h"

namespace kvtier::ctl {
namespace {

// A child on a pseudo-terminal of its own that shows a screen until it is told to end.
class Pty {
 public:
  Pty() {
    winsize size{6, 30, 0, 0};
    pid_ = ::forkpty(&master_, nullptr, nullptr, &size);
    if (pid_ == 0) ::_exit(child());
    ::tcgetattr(master_, &before_);
    read_until("second line");
  }
  ~Pty() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    ::close(master_);
  }
  void read_until(const std::string& text) {
    while (seen_.find(text) == std::string::npos && read_some()) {
    }
    EXPECT_NE(seen_.find(text), std::string::npos) << seen_;
  }
  int end() {
    while (read_some()) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  void type(const std::string& keys) {
    EXPECT_EQ(::write(master_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  void signal(int number) { ::kill(pid_, number); }
  bool echoes() const {
    termios now{};
    ::tcgetattr(master_, &now);
    return (now.c_lflag & ECHO) != 0;
  }
  const std::string& seen() const { return seen_; }
  void forget() { seen_.clear(); }
  void resize(unsigned short columns) {
    winsize size{6, columns, 0, 0};
    ::ioctl(master_, TIOCSWINSZ, &size);
  }

 private:
  static int child() {
    int signal = 0;
    {
      Screen screen;
      for (int drawn = 0;; ++drawn) {
        screen.draw({"width " + std::to_string(screen.size().columns), "second line",
                     std::string(100, 'x')});
        if (screen.wait(std::chrono::hours(1)) == Screen::Event::quit) break;
      }
      signal = screen.signal();
    }
    return signal;
  }
  bool read_some() {
    pollfd fd{master_, POLLIN, 0};
    if (::poll(&fd, 1, 20'000) <= 0) return false;
    char bytes[4096];
    const ssize_t n = ::read(master_, bytes, sizeof bytes);
    if (n <= 0) return false;
    seen_.append(bytes, static_cast<std::size_t>(n));
    return true;
  }
  int master_ = -1;
  pid_t pid_ = -1;
  termios before_{};
  std::string seen_;
};

void expect_given_back(const Pty& pty) {
  EXPECT_NE(pty.seen().rfind("\x1b[?25h"), std::string::npos);
  EXPECT_NE(pty.seen().rfind("\x1b[?1049l"), std::string::npos);
}

TEST(ScreenTest, it_is_taken_without_echo_and_drawn_within_its_size) {
  Pty pty;
  EXPECT_FALSE(pty.echoes());
  EXPECT_NE(pty.seen().find("\x1b[?1049h"), std::string::npos);
  EXPECT_NE(pty.seen().find("width 30"), std::string::npos);
  pty.forget();
  pty.resize(50);
  pty.read_until("width 50");
  pty.type("q");
  const int status = pty.end();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(pty.seen().find(std::string(51, 'x')), std::string::npos);
  expect_given_back(pty);
}

TEST(ScreenTest, signals_that_end_the_program_give_it_back_first) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Pty pty;
    pty.signal(signal);
    const int status = pty.end();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == signal);
    expect_given_back(pty);
  }
}

TEST(ScreenTest, other_keys_do_nothing) {
  Pty pty;
  pty.forget();
  pty.type("xyz");
  pty.resize(40);
  pty.read_until("width 40");
  EXPECT_EQ(pty.seen().find("\x1b[?1049l"), std::string::npos);
  pty.type("q");
  pty.end();
  expect_given_back(pty);
}

}  // namespace
}  // namespace kvtier::ctl
