// What a measurement prints: rows with a name, a figure and, where there is one, what it is held
// against.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kvtier::bench {

struct Row {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> limit;  // the ratio is value / limit
};

class Report {
 public:
  void add(std::string name, double value, std::string unit,
           std::optional<double> limit = std::nullopt);
  // What a terminal shows in place of the rows, where these are too many to be read.
  void show_instead(std::string text) { shown_ = std::move(text); }
  // An aligned table, or a JSON list of {name, value, unit, limit, ratio}.
  void print(bool json) const;

 private:
  std::vector<Row> rows_;
  std::string shown_;
};

// The value below which `share` (0 to 1) of `values` lie. Sorts them; there must be at least one.
double percentile(std::vector<double>& values, double share);
inline double median(std::vector<double>& values) {
  return percentile(values, 0.5);
}

}  // namespace kvtier::bench
