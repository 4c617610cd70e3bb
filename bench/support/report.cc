#include "bench/support/report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/check.h"

namespace kvtier::bench {

void Report::add(std::string name, double value, std::string unit, std::optional<double> limit) {
  rows_.push_back({std::move(name), value, std::move(unit), limit});
}

void Report::print(bool json) const {
  if (json) {
    auto list = nlohmann::ordered_json::array();
    for (const Row& row : rows_) {
      nlohmann::ordered_json item{{"name", row.name}, {"value", row.value}, {"unit", row.unit}};
      item["limit"] = row.limit ? nlohmann::ordered_json(*row.limit) : nullptr;
      item["ratio"] = row.limit ? nlohmann::ordered_json(row.value / *row.limit) : nullptr;
      list.push_back(std::move(item));
    }
    std::printf("%s\n", list.dump(2).c_str());
    return;
  }
  if (!shown_.empty()) {
    std::printf("%s", shown_.c_str());
    return;
  }
  std::size_t width = 4;
  for (const Row& row : rows_) width = std::max(width, row.name.size());
  const int name_width = static_cast<int>(width);
  std::printf("%-*s %12s  %-6s %12s %7s\n", name_width, "name", "value", "unit", "limit", "ratio");
  for (const Row& row : rows_) {
    std::printf("%-*s %12.3f  %-6s", name_width, row.name.c_str(), row.value, row.unit.c_str());
    if (row.limit) std::printf(" %12.3f %7.3f", *row.limit, row.value / *row.limit);
    std::printf("\n");
  }
}

double percentile(std::vector<double>& values, double share) {
  KVTIER_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  return values[std::min(at, values.size() - 1)];
}

}  // namespace kvtier::bench
