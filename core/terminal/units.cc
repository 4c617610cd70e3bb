#include "core/terminal/units.h"

#include <charconv>
#include <cstdio>
#include <map>
#include <optional>

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

std::string human_rate(double per_second) {
  if (per_second <= 0) return "0";
  if (per_second < 1000) return format("%.1f", per_second);
  return per_second < 1e6 ? format("%.1f k", per_second / 1e3) : format("%.1f M", per_second / 1e6);
}

namespace {

// The number that `text` begins with, and what follows it without spaces.
std::pair<std::optional<std::uint64_t>, std::string> number_and_unit(const std::string& text) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc{}) return {std::nullopt, {}};
  std::string unit(parsed.ptr, end);
  std::erase(unit, ' ');
  return {number, unit};
}

}  // namespace

Result<std::chrono::seconds> parse_duration(const std::string& text) {
  static const std::map<std::string, std::uint64_t> kSeconds{
      {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86'400}};
  const auto [number, unit] = number_and_unit(text);
  const auto seconds = kSeconds.find(unit);
  constexpr std::uint64_t kMax = 30ULL * 86'400;
  if (!number || seconds == kSeconds.end() || *number == 0 || *number > kMax / seconds->second) {
    return make_error(Errc::invalid,
                      "'" + text + "' is not a time from 1s to 30d: give 90s, 15m, 2h or 7d");
  }
  return std::chrono::seconds(*number * seconds->second);
}

}  // namespace kvtier::ctl
