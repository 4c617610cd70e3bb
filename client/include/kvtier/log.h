// What a client has to say while it runs, for whoever wants to read it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace kvtier {

enum class LogLevel : std::uint8_t { error, warning, info, debug };

constexpr const char* name(LogLevel level) noexcept {
  constexpr const char* kNames[]{"error", "warning", "info", "debug"};
  return kNames[static_cast<std::uint8_t>(level)];
}

// Called with one line, without its end, on the client's own threads and on those that call it, by
// several at a time. It must not throw, wait, or call into the client. Of each kind of line at most
// one a second comes; with the next it says how many were left out.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;

}  // namespace kvtier
