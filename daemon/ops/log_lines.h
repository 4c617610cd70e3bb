// What a log line is before it reaches a terminal or a journal: one line, nothing in it but visible
// characters, whatever the names and messages of peers that it quotes have in them.
#pragma once

#include <spdlog/formatter.h>

#include <memory>

namespace kvtier::daemon::ops {

// Formats as `inner` does, with the message escaped (core/base/shown.h).
std::unique_ptr<spdlog::formatter> escaping(std::unique_ptr<spdlog::formatter> inner);

}  // namespace kvtier::daemon::ops
