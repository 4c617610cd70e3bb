// A process killed at every named point of the disk tier: nothing wrong is served, nothing that was
// said to be there is lost, the next start is clean.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <set>
#include <string>

#include "storage/index/points.h"
#include "tests/storage/support/helpers.h"
#include "tests/storage/support/kill_workload.h"

namespace kvtier::storage {
namespace {

using namespace testing;
using What = KillReport::What;

class KilledProcess {
 public:
  // Whether it died at the point.
  bool run(const std::filesystem::path& directory, const std::string& point, unsigned passing) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const std::string nth = std::to_string(passing);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::close(ends[0]);
      ::close(ends[1]);
      ::execl(KVTIER_KILL_WRITER, KVTIER_KILL_WRITER, directory.c_str(), point.c_str(), nth.c_str(),
              nullptr);
      ::_exit(5);
    }
    ::close(ends[1]);
    KillReport report;
    while (::read(ends[0], &report, sizeof report) == sizeof report) note(report);
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

  const std::set<std::uint32_t>& started() const { return started_; }
  const std::set<std::uint32_t>& there() const { return there_; }
  const std::set<std::uint32_t>& gone() const { return gone_; }

 private:
  void note(const KillReport& report) {
    if (report.what == What::write_started) {
      started_.insert(report.number);
      if (KillWorkload::is_rewrite(report.number)) {
        there_.erase(report.number - KillWorkload::kRecords);
      }
    }
    if (report.what == What::write_done) there_.insert(report.number);
    if (report.what == What::erase_started) there_.erase(report.number);
    if (report.what == What::erased_for_good) gone_.insert(report.number);
  }

  std::set<std::uint32_t> started_, there_;  // there: written, and not being replaced or erased
  std::set<std::uint32_t> gone_;             // erased for good
};

void expect_nothing_lost_and_nothing_wrong(const std::filesystem::path& directory,
                                           const KilledProcess& killed) {
  TestStore store(small_options(directory));
  std::map<Key, DiskEntry> entries;
  for (const DiskEntry& entry : store.recover()) entries[entry.identity.key] = entry;
  for (const std::uint32_t number : killed.started()) {
    const TestRecord record(KillWorkload::kind_of(number), number);
    const auto entry = entries.find(record.identity.key);
    const bool must_be_there = killed.there().contains(number);
    ASSERT_TRUE(entry != entries.end() || !must_be_there) << number;
    if (entry == entries.end()) continue;
    const auto found = store.read(record, entry->second.at);
    ASSERT_TRUE(found || !must_be_there) << found.error().message;
    ASSERT_TRUE(found ? record.equals(*found) : found.error().code == Errc::corrupt) << number;
    entries.erase(entry);
  }
  ASSERT_TRUE(entries.empty()) << "entries of records that nobody wrote";
  ASSERT_TRUE(store.write(TestRecord(0, 7777), {20, 0}));
}

// Of what was erased for good, whatever else is lost.
void expect_nothing_comes_back(const std::filesystem::path& directory,
                               const KilledProcess& killed) {
  std::filesystem::remove_all(directory / "index");
  TestStore store(small_options(directory));
  std::set<Key> there;
  for (const DiskEntry& entry : store.recover()) there.insert(entry.identity.key);
  for (const std::uint32_t number : killed.gone()) {
    const TestRecord record(KillWorkload::kind_of(number), number);
    ASSERT_FALSE(there.contains(record.identity.key)) << number;
  }
}

// With some seeds the point is passed late, or, where there is no such passing, earlier.
void kill_at(const std::string& point, unsigned seed) {
  SCOPED_TRACE(point + ", seed " + std::to_string(seed));
  const bool rebuilds = point.starts_with("storage.rebuild");
  for (unsigned passing = 1 + seed * 7 % 23; passing > 0; passing /= 2) {
    const TestDirectory directory(TestDirectory::Where::memory);
    KilledProcess process;
    if (rebuilds) {
      ASSERT_TRUE(process.run(directory.path(), "storage.write.done", 20 + 4 * seed));
      std::filesystem::remove_all(directory.path() / "index");
    }
    if (!process.run(directory.path(), point, passing)) continue;
    expect_nothing_lost_and_nothing_wrong(directory.path(), process);
    expect_nothing_comes_back(directory.path(), process);
    return;
  }
  FAIL() << "never passed";
}

void kill_at_every_point(unsigned seeds) {
  for (const char* point : kPoints) {
    for (unsigned seed = 0; seed < seeds; ++seed) {
      kill_at(point, seed);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Kill, ProcessKilledAtAnyPointLosesNothingAndServesNothingWrong) {
  kill_at_every_point(2);
}

TEST(KillSlow, ProcessKilledAtAnyPointLosesNothingAndServesNothingWrong) {
  kill_at_every_point(20);
}

}  // namespace
}  // namespace kvtier::storage
