#include "client/ctl/units.h"

#include <cstdio>

namespace kvtier::ctl {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

}  // namespace

std::string human_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return format("%.2f %s", value, kUnits[unit]);
}

std::string human_duration(std::uint64_t ms) {
  const unsigned long long seconds = ms / 1000;
  const auto days = seconds / 86400;
  const auto clock =
      format("%02llu:%02llu:%02llu", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
  return days == 0 ? clock : std::to_string(days) + "d " + clock;
}

std::string percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  return format("%.1f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace kvtier::ctl
