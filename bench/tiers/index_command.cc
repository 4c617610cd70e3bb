#include <algorithm>
#include <map>
#include <memory>

#include "bench/tiers/commands.h"
#include "bench/tiers/index_prefixes.h"

namespace kvtier::bench {
namespace {

constexpr std::uint64_t kOperations = 3'500'000;  // of each kind, at each number of blocks
constexpr std::uint32_t kRuns = 7;                // the median counts
constexpr double kBytesPerBlockMax = 160;
constexpr double kRestartSecondsMax = 15;

// Figures of each operation by the number of blocks. The sizes take turns, so that what else the
// machine does falls on all of them.
class Operations {
 public:
  explicit Operations(const std::vector<std::uint32_t>& sizes) {
    for (const std::uint32_t blocks : sizes) {
      indexes_.emplace_back(blocks, std::make_unique<IndexPrefixes>(blocks));
    }
  }

  void measure() {
    constexpr std::uint64_t kEach = kOperations / kRuns;
    turns([&](IndexPrefixes& index, Figures& figures) {
      figures["match"].push_back(index.match(kEach));
      figures["find"].push_back(index.find(kEach));
      figures["touch"].push_back(index.touch(kEach));
    });
    turns([&](IndexPrefixes& index, Figures& figures) {
      const auto turnover = index.turn_over(kEach);
      figures["insert"].push_back(turnover.insert_ns);
      figures["evict"].push_back(turnover.evict_ns);
    });
    // Last, for it leaves prefixes torn apart in the eviction order.
    turns([&](IndexPrefixes& index, Figures& figures) {
      figures["touch_scattered"].push_back(index.touch_scattered(kEach));
    });
  }

  // The smallest index is what the others are held against.
  void report(Report& report) {
    std::map<std::string, double> smallest;
    for (const auto& [blocks, index] : indexes_) {
      const std::string suffix = std::to_string(blocks);
      for (auto& [name, values] : figures_[blocks]) {
        const double ns = median(values);
        const bool first = smallest.emplace(name, ns).second;
        report.add("index." + name + "_ns." + suffix, ns, "ns",
                   first ? std::nullopt : std::optional(smallest[name]));
      }
      report.add("index.bytes_per_block." + suffix, index->bytes_per_block(), "B",
                 kBytesPerBlockMax);
    }
  }

 private:
  using Figures = std::map<std::string, std::vector<double>>;

  template <class Turn>
  void turns(Turn&& turn) {
    for (std::uint32_t run = 0; run < kRuns; ++run) {
      for (const auto& [blocks, index] : indexes_) turn(*index, figures_[blocks]);
    }
  }

  std::vector<std::pair<std::uint32_t, std::unique_ptr<IndexPrefixes>>> indexes_;
  std::map<std::uint32_t, Figures> figures_;
};

}  // namespace

void measure_index(const IndexOptions& options, Report& report) {
  auto sizes = options.blocks;
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  {
    Operations operations(sizes);
    operations.measure();
    operations.report(report);
  }
  if (!options.restart) return;
  for (const std::uint32_t blocks : sizes) {
    report.add("index.restart_s." + std::to_string(blocks),
               restart_seconds(blocks, options.directory), "s", kRestartSecondsMax);
  }
}

}  // namespace kvtier::bench
