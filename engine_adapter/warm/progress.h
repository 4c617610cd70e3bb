// How far it is: on a terminal a bar with the rate and the time left, elsewhere a line a document.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace kvtier::warm {

struct Progress {
  std::uint64_t documents = 0, documents_done = 0;
  std::uint64_t bytes = 0, bytes_done = 0;  // of text
  std::uint64_t prompt_tokens = 0;          // of what is done
  std::chrono::milliseconds elapsed{0};
};

// "[#####---------------]  25 %  50/200  3.1 docs/s  12.3 k tokens/s  00:00:48 left", no wider than
// `columns`. The time left is by bytes, so that one long document among short ones does not
// mislead.
std::string progress_bar(const Progress& progress, unsigned columns);

// Writes to standard error.
class ProgressView {
 public:
  explicit ProgressView(bool terminal) : terminal_(terminal) {}
  ~ProgressView() { clear(); }
  ProgressView(const ProgressView&) = delete;
  ProgressView& operator=(const ProgressView&) = delete;

  // Redraws the bar; elsewhere than on a terminal nothing.
  void show(const Progress& progress);
  // A line of its own, above the bar.
  void say(const std::string& line);
  // `line` where there is no bar.
  void note(const std::string& line) {
    if (!terminal_) say(line);
  }
  void clear();

 private:
  const bool terminal_;
  bool drawn_ = false;
};

}  // namespace kvtier::warm
