// The live view. What it shows is made of two looks at the daemon; drawing is apart from looking.
#pragma once

#include <string>
#include <vector>

#include "ctl/commands.h"

namespace kvtier::ctl {

// One look, each part as its command prints it; null where the daemon refused that part.
struct Look {
  Json status, namespaces, sessions;
  std::chrono::steady_clock::time_point at;
};
// Errors: as fetch_status().
Result<Look> look(const Target& target);

// What `top --json` prints: rates over the time between two looks, and totals.
Json compare(const Look& before, const Look& now);

// Lines of at most `columns` columns.
std::vector<std::string> render_top(const Json& view, unsigned columns, bool colours);

struct TopOptions {
  std::chrono::milliseconds interval{2000};
  bool once = false;
  bool json = false;
};
// Until q or a signal; without a terminal, until a signal. Returns the exit status.
int run_top(const Target& target, const TopOptions& options);

}  // namespace kvtier::ctl
