#include "engine_adapter/warm/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "core/base/shown.h"
#include "core/terminal/units.h"

namespace kvtier::warm {
namespace {

constexpr unsigned kBarColumns = 20;
constexpr const char* kClearLine = "\r\x1b[K";

unsigned terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

std::string progress_bar(const Progress& p, unsigned columns) {
  const double share =
      p.bytes == 0 ? 1 : static_cast<double>(p.bytes_done) / static_cast<double>(p.bytes);
  const auto filled = static_cast<unsigned>(share * kBarColumns);
  std::string text = "[" + std::string(filled, '#') + std::string(kBarColumns - filled, '-') + "] ";
  text += std::to_string(static_cast<unsigned>(share * 100)) + " %  " +
          std::to_string(p.documents_done) + "/" + std::to_string(p.documents);
  const double seconds = static_cast<double>(p.elapsed.count()) / 1000;
  if (seconds > 0 && p.documents_done > 0) {
    text += "  " + ctl::human_rate(static_cast<double>(p.documents_done) / seconds) + " docs/s  " +
            ctl::human_rate(static_cast<double>(p.prompt_tokens) / seconds) + " tokens/s";
    if (share > 0) {
      const double left = static_cast<double>(p.elapsed.count()) * (1 - share) / share;
      text += "  " + ctl::human_duration(static_cast<std::uint64_t>(left)) + " left";
    }
  }
  return text.substr(0, columns);
}

void ProgressView::show(const Progress& progress) {
  if (!terminal_) return;
  const std::string bar = progress_bar(progress, terminal_columns() - 1);
  std::fprintf(stderr, "%s%s", kClearLine, bar.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressView::say(const std::string& line) {
  clear();
  std::fprintf(stderr, "%s\n", shown(line).c_str());
}

void ProgressView::clear() {
  if (!drawn_) return;
  std::fputs(kClearLine, stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace kvtier::warm
