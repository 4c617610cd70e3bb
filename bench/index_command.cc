#include <algorithm>
#include <functional>
#include <map>

#include "bench/commands.h"
#include "bench/index_prefixes.h"

namespace kvtier::bench {
namespace {

constexpr std::uint64_t kOperations = 3'500'000;  // of each kind, at each number of blocks
constexpr std::uint32_t kRuns = 7;                // the median counts
constexpr double kBytesPerBlockMax = 160;
constexpr double kRestartSecondsMax = 15;

using Figures = std::vector<std::pair<std::string, double>>;

double median_of(const std::function<double()>& measure) {
  std::vector<double> values;
  for (std::uint32_t run = 0; run < kRuns; ++run) values.push_back(measure());
  return median(values);
}

Figures operations(IndexPrefixes& prefixes) {
  constexpr std::uint64_t kEach = kOperations / kRuns;
  Figures figures;
  figures.emplace_back("match", median_of([&] { return prefixes.match(kEach); }));
  figures.emplace_back("find", median_of([&] { return prefixes.find(kEach); }));
  figures.emplace_back("touch", median_of([&] { return prefixes.touch(kEach); }));
  std::vector<double> evict, insert;
  for (std::uint32_t run = 0; run < kRuns; ++run) {
    const auto turnover = prefixes.turn_over(kEach);
    evict.push_back(turnover.evict_ns);
    insert.push_back(turnover.insert_ns);
  }
  figures.emplace_back("insert", median(insert));
  figures.emplace_back("evict", median(evict));
  figures.emplace_back("touch_scattered",
                       median_of([&] { return prefixes.touch_scattered(kEach); }));
  return figures;
}

}  // namespace

void measure_index(const IndexOptions& options, Report& report) {
  auto sizes = options.blocks;
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  // The smallest is what the others are held against.
  std::map<std::string, double> smallest;
  for (const std::uint32_t blocks : sizes) {
    const std::string suffix = std::to_string(blocks);
    {
      IndexPrefixes prefixes(blocks);
      for (const auto& [name, ns] : operations(prefixes)) {
        const bool first = smallest.emplace(name, ns).second;
        report.add("index." + name + "_ns." + suffix, ns, "ns",
                   first ? std::nullopt : std::optional(smallest[name]));
      }
      report.add("index.bytes_per_block." + suffix, prefixes.bytes_per_block(), "B",
                 kBytesPerBlockMax);
    }
    if (!options.restart) continue;
    report.add("index.restart_s." + suffix, restart_seconds(blocks, options.directory), "s",
               kRestartSecondsMax);
  }
}

}  // namespace kvtier::bench
