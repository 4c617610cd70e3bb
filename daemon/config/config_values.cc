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

Result<std::vector<std::string>> list_from(const toml::node& node, std::size_t most,
                                           const std::string& mend,
                                           Result<std::string> (*item)(const toml::node&)) {
  const toml::array* list = node.as_array();
  if (list == nullptr || list->size() > most) return expected(mend);
  std::vector<std::string> names;
  for (const toml::node& one : *list) {
    auto name = item(one);
    if (!name || name->empty()) return expected(mend);
    names.push_back(std::move(*name));
  }
  return names;
}

std::string show_list(const std::vector<std::string>& names,
                      std::string (*show)(const std::string&)) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + show(name);
  return "[" + text + "]";
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
