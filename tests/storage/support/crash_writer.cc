// Writes records into a store until it is killed: `storage_crash_writer DIRECTORY SLOTS`.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "tests/storage/support/crash_workload.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

class Writer {
 public:
  Writer(const RecordStoreOptions& options, Workload workload)
      : store_(options), workload_(workload) {}

  [[noreturn]] void run() {
    for (std::uint32_t number = 0;; ++number) {
      // A slot is written again only after the write before it has ended.
      store_.control().run_until(
          [&] { return in_flight_ < kInFlight && !unfinished_.contains(previous(number)); });
      start(number);
    }
  }

 private:
  static constexpr std::uint32_t kInFlight = 8;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  // The record that lies in `number`'s slot until then.
  std::uint32_t previous(std::uint32_t number) const noexcept {
    return number < workload_.slots ? kNone : number - workload_.slots;
  }

  void start(std::uint32_t number) {
    const TestRecord record(0, number);
    std::uint32_t extent_slot = 0;
    while (busy_[extent_slot]) ++extent_slot;
    auto write = store_.write_of(record, workload_.at(number), extent_slot);
    if (previous(number) != kNone) write.replaces = TestRecord(0, previous(number)).identity.key;
    busy_[extent_slot] = true;
    unfinished_.insert(number);
    ++in_flight_;
    report({false, number});
    const auto started = store_->write(write, [this, number, extent_slot](Result<void> result) {
      if (!result) ::_exit(2);
      busy_[extent_slot] = false;
      unfinished_.erase(number);
      --in_flight_;
      report({true, number});
    });
    if (!started) ::_exit(3);
  }

  void report(Report report) {
    if (::write(STDOUT_FILENO, &report, sizeof report) != sizeof report) ::_exit(4);
  }

  TestStore store_;
  Workload workload_;
  std::set<std::uint32_t> unfinished_;
  std::uint32_t in_flight_ = 0;
  bool busy_[kInFlight] = {};
};

}  // namespace
}  // namespace kvtier::storage

int main(int argc, char** argv) {
  if (argc != 3) return 1;
  spdlog::set_level(spdlog::level::off);
  const auto slots = static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10));
  kvtier::storage::Writer(kvtier::storage::testing::small_options(argv[1]), {slots}).run();
}
