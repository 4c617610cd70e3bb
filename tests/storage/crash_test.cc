// A process that writes and is killed: what it was told is there must be there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <random>
#include <string>

#include "tests/storage/support/crash_workload.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage {
namespace {

using namespace testing;

// Starts the writer, kills it after some reports, and returns all that it said.
std::vector<Report> reports_until_killed(const RecordStoreOptions& options, Workload workload,
                                         std::size_t kill_after) {
  const char* const directory = options.directory.c_str();
  const std::string slots = std::to_string(workload.slots);
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    ::execl(KVTIER_CRASH_WRITER, KVTIER_CRASH_WRITER, directory, slots.c_str(), nullptr);
    ::_exit(5);
  }
  ::close(ends[1]);
  std::vector<Report> reports;
  Report report;
  while (::read(ends[0], &report, sizeof report) == sizeof report) {
    reports.push_back(report);
    if (reports.size() == kill_after) ::kill(child, SIGKILL);
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "exit status " << WEXITSTATUS(status);
  return reports;
}

TEST(Crash, EveryRecordReportedWrittenByAKilledProcessIsThereAndNoneIsWrong) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const TestDirectory directory;
    const auto options = small_options(directory.path());
    const Workload workload{seed % 2 == 0 ? 2000U : 24U};
    const auto reports = reports_until_killed(options, workload, 20 + random() % 400);

    std::map<std::uint32_t, Report> last_of_slot;
    for (const Report& report : reports) {
      Report& last = last_of_slot[report.number % workload.slots];
      if (report.number >= last.number) last = report;
    }
    TestStore store(options);
    std::map<Key, DiskEntry> entries;
    for (const DiskEntry& entry : store.recover()) entries[entry.identity.key] = entry;
    std::size_t present = 0;
    for (const auto& [slot, last] : last_of_slot) {
      const TestRecord record(0, last.number);
      const auto entry = entries.find(record.identity.key);
      ASSERT_TRUE(!last.done || entry != entries.end()) << last.number;
      if (entry == entries.end()) continue;
      ++present;
      ASSERT_EQ(entry->second.at, workload.at(last.number));
      const auto found = store.read(record, entry->second.at);
      ASSERT_TRUE(found) << found.error().message;
      ASSERT_TRUE(record.equals(*found));
    }
    // A record may outlast the start of the write over it, never that write's landing.
    for (const auto& [key, entry] : entries) {
      const std::uint32_t slot = entry.at.segment * 100 + entry.at.slot;
      const TestRecord newest(0, last_of_slot[slot].number);
      ASSERT_TRUE(key == newest.identity.key || !last_of_slot[slot].done);
    }
    ASSERT_GT(present, 0u);
  }
}

}  // namespace
}  // namespace kvtier::storage
