#include "daemon/config/config_values.h"

#include <sstream>

#include "core/base/sizes.h"

namespace kvtier::daemon::config_values {

std::string place(const std::string& file, const toml::source_region& at) {
  return file + ":" + std::to_string(at.begin.line) + ":" + std::to_string(at.begin.column) + ": ";
}

Error expected(const std::string& what) {
  return make_error(Errc::invalid, "expected " + what);
}

std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

std::string show_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? std::to_string(bytes) : quoted(std::to_string(bytes) + kUnits[unit]);
}

Result<std::uint64_t> bytes_from(const toml::node& node) {
  if (const auto number = node.value_exact<std::int64_t>(); number && *number >= 0)
    return static_cast<std::uint64_t>(*number);
  if (const auto text = node.value_exact<std::string>()) {
    if (const auto bytes = parse_size(*text)) return bytes;
  }
  return expected(std::string("a size: ") + kSizeForms);
}

}  // namespace kvtier::daemon::config_values
