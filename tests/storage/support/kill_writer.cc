// Kills itself at the n-th passing of a point: `storage_kill_writer DIRECTORY POINT N`. Ends with 0
// if it never gets there.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "core/base/points.h"
#include "tests/storage/faults/faulty_device.h"
#include "tests/storage/support/helpers.h"
#include "tests/storage/support/kill_workload.h"

namespace kvtier::storage {
namespace {

using namespace testing;
using What = KillReport::What;

const char* deadly_point = nullptr;
std::atomic<long> passings_left = 0;

void die_at_the_point(const char* name) noexcept {
  if (std::strcmp(name, deadly_point) != 0 || --passings_left != 0) return;
  (void)::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

void report(What what, std::uint32_t number) {
  const KillReport report{what, number};
  if (::write(STDOUT_FILENO, &report, sizeof report) != sizeof report) ::_exit(4);
}

RecordStoreOptions quick_options(const char* directory) {
  RecordStoreOptions options = small_options(directory);
  options.probe_first = std::chrono::milliseconds(1);
  return options;
}

class Writer {
 public:
  explicit Writer(const char* directory)
      : store_(quick_options(directory),
               make_faulty_device(make_block_device({.depth = 80, .files = 64, .buffers = 4}),
                                  faults_)) {
    store_->on_health(
        [this](DiskState state, const std::string&) { online_ = state == DiskState::online; });
  }

  void run() {
    for (std::uint32_t round = 0; round < KillWorkload::kRounds; ++round) {
      if (round >= KillWorkload::kSegments) erase_round(round - KillWorkload::kSegments);
      write(round, 0, KillWorkload::kRecords);
      write(round, KillWorkload::kRecords, KillWorkload::kRewritten);
      scrub(KillWorkload::number(round, KillWorkload::kRewritten));
      if (round % 2 == 0) {
        if (!store_.flush()) ::_exit(2);
        report(What::flush_done, round);
      }
      if (round == 4) fail_and_return(round);
    }
  }

 private:
  void write(std::uint32_t round, std::uint32_t first, std::uint32_t count) {
    std::uint32_t done = 0;
    for (std::uint32_t i = first; i < first + count; ++i) {
      const std::uint32_t number = KillWorkload::number(round, i);
      auto write = store_.write_of(record(number), KillWorkload::at(number), i - first);
      if (KillWorkload::is_rewrite(number)) {
        write.replaces = record(number - KillWorkload::kRecords).identity.key;
      }
      report(What::write_started, number);
      const auto sent = store_->write(write, [&done, number](Result<void> result) {
        if (!result) ::_exit(2);
        report(What::write_done, number);
        ++done;
      });
      if (!sent) ::_exit(3);
    }
    store_.control().run_until([&] { return done == count; });
  }

  void erase_round(std::uint32_t round) {
    std::vector<Key> keys;
    std::vector<Erasure> for_good;
    for (std::uint32_t i = 0; i < KillWorkload::kRecords + KillWorkload::kRewritten; ++i) {
      const std::uint32_t number = KillWorkload::number(round, i);
      report(What::erase_started, number);
      const TestRecord gone = record(number);
      keys.push_back(gone.identity.key);
      for_good.push_back({Erasure::Of::key, gone.identity.ns, gone.identity.key});
    }
    if (round % 2 == 0) for_good.clear();
    const auto erased_for_good = static_cast<std::uint32_t>(for_good.size());
    store_->erase_for_good(std::move(for_good));
    if (!store_.erase(std::move(keys))) ::_exit(2);
    for (std::uint32_t i = 0; i < erased_for_good; ++i)
      report(What::erased_for_good, KillWorkload::number(round, i));
  }

  void scrub(std::uint32_t number) {
    const TestRecord found = record(number);
    const auto bytes = found.bytes.size();
    const auto intact = store_.wait_for([&](auto done) {
      return store_->scrub(
          {found.identity.ns, found.identity.key, KillWorkload::at(number), bytes, bytes},
          std::move(done));
    });
    if (!intact) ::_exit(6);
  }

  void fail_and_return(std::uint32_t round) {
    const std::uint32_t number = KillWorkload::number(round, 0);
    faults_.break_down(ENODEV);
    (void)store_.read(record(number), KillWorkload::at(number));
    store_.control().run_until([&] { return !online_; });
    faults_.mend();
    store_.control().run_until([&] { return online_; });
  }

  static TestRecord record(std::uint32_t number) {
    return TestRecord(KillWorkload::kind_of(number), number);
  }

  Faults faults_;
  bool online_ = true;
  TestStore store_;
};

}  // namespace
}  // namespace kvtier::storage

int main(int argc, char** argv) {
  if (argc != 4) return 1;
  spdlog::set_level(spdlog::level::off);
  kvtier::storage::deadly_point = argv[2];
  kvtier::storage::passings_left = std::strtol(argv[3], nullptr, 10);
  kvtier::point_hook = kvtier::storage::die_at_the_point;
  kvtier::storage::Writer(argv[1]).run();
  return 0;
}
