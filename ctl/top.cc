#include "ctl/top.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "core/base/shown.h"
#include "core/terminal/terminal.h"
#include "ctl/exit_codes.h"

namespace kvtier::ctl {
namespace {

int say(const Error& error, const Target& target) {
  std::fprintf(stderr, "kvtierctl: %s (socket %s)\n", shown(error.message).c_str(),
               shown(target.socket).c_str());
  return exit_of(error.code);
}

void print(const Json& view, bool json) {
  if (json) {
    std::puts(view.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    for (const auto& line : render_top(view, 120, use_colours(STDOUT_FILENO)))
      std::puts(line.c_str());
    std::puts("");
  }
  std::fflush(stdout);
}

int run_plain(const Target& target, const TopOptions& options) {
  auto before = look(target);
  if (!before) return say(before.error(), target);
  do {
    std::this_thread::sleep_for(options.interval);
    auto now = look(target);
    if (!now) return say(now.error(), target);
    print(compare(*before, *now), options.json);
    before = std::move(now);
  } while (!options.once);
  return kDone;
}

// The screen is given back before the signal that ended it does what it does.
int run_on_screen(const Target& target, const TopOptions& options) {
  int signal = 0;
  {
    auto before = look(target);
    if (!before) return say(before.error(), target);
    Json view = compare(*before, *before);
    Screen screen;
    std::string trouble;
    for (;;) {
      auto lines = render_top(view, screen.size().columns, use_colours(STDOUT_FILENO));
      if (!trouble.empty()) lines.insert(lines.begin(), trouble);
      screen.draw(lines);
      const auto event = screen.wait(options.interval);
      if (event == Screen::Event::quit) break;
      if (event == Screen::Event::resized) continue;
      auto now = look(target);
      trouble = now ? "" : "no answer: " + now.error().message;
      if (!now) continue;
      // A daemon that was started anew counts from 0.
      const bool same = now->status["boot_id"] == before->status["boot_id"];
      view = compare(same ? *before : *now, *now);
      before = std::move(now);
    }
    signal = screen.signal();
  }
  if (signal != 0) {
    std::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  return kDone;
}

}  // namespace

Result<Look> look(const Target& target) {
  Look found;
  auto status = fetch_status(target);
  if (!status) return status.error();
  found.status = std::move(*status);
  found.at = std::chrono::steady_clock::now();
  if (auto list = fetch_list(target, {})) found.namespaces = std::move((*list)["namespaces"]);
  if (auto sessions = fetch_sessions(target)) found.sessions = std::move((*sessions)["sessions"]);
  return found;
}

int run_top(const Target& target, const TopOptions& options) {
  const bool screen = is_terminal(STDIN_FILENO) && is_terminal(STDOUT_FILENO);
  return screen && !options.once && !options.json ? run_on_screen(target, options)
                                                  : run_plain(target, options);
}

}  // namespace kvtier::ctl
