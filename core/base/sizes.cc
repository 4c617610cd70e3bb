#include "core/base/sizes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <string>

namespace kvtier {
namespace {

constexpr std::uint64_t kSizeMax = std::uint64_t{1} << 62;
constexpr std::uint64_t kPage = 4096;

std::optional<std::uint64_t> bytes_of_unit(std::string unit) {
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  if (unit.empty() || unit == "b") return 1;
  const std::size_t power = std::string_view("kmgt").find(unit.front());
  const std::string rest = unit.substr(1);
  if (power == std::string_view::npos || (!rest.empty() && rest != "b" && rest != "ib")) {
    return std::nullopt;
  }
  const std::uint64_t base = rest == "b" ? 1000 : 1024;
  std::uint64_t bytes = base;
  for (std::size_t i = 0; i < power; ++i) bytes *= base;
  return bytes;
}

// `digits` behind the point, of `unit` bytes.
std::uint64_t fraction_of(std::string_view digits, std::uint64_t unit) {
  std::uint64_t part = 0, scale = 1;
  for (const char digit : digits.substr(0, 6)) {
    part = part * 10 + static_cast<std::uint64_t>(digit - '0');
    scale *= 10;
  }
  return unit / scale * part + unit % scale * part / scale;
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  const auto refused = [&] {
    return make_error(Errc::invalid,
                      "'" + std::string(text) + "' is not a size: give " + kSizeForms);
  };
  std::uint64_t whole = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, whole);
  if (parsed.ec != std::errc{}) return refused();
  std::string_view rest(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  std::string_view digits;
  if (rest.starts_with('.')) {
    const std::size_t after = std::min(rest.find_first_not_of("0123456789", 1), rest.size());
    digits = rest.substr(1, after - 1);
    rest = rest.substr(after);
    if (digits.empty()) return refused();
  }
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const auto unit = bytes_of_unit(std::string(rest));
  if (!unit || whole > kSizeMax / *unit || (*unit == 1 && !digits.empty())) return refused();
  const std::uint64_t bytes = whole * *unit + fraction_of(digits, *unit);
  if (bytes > kSizeMax) return refused();
  return *unit != 1 && bytes > kPage ? bytes / kPage * kPage : bytes;
}

}  // namespace kvtier
