#include "tests/protocol/director.h"

#include <grp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>

#include "core/base/check.h"
#include "daemon/limits.h"
#include "tests/daemon/support/forked.h"
#include "tests/daemon/support/kvtierd_process.h"
#include "tests/daemon/support/wire_client.h"
#include "tests/protocol/bystanders.h"
#include "tests/protocol/daemon_under_test.h"
#include "tests/protocol/figures.h"
#include "tests/protocol/hostile/actor.h"

namespace kvtier::protocol {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// A process of another user that ends with this one.
pid_t spawn(uid_t user, int nice, const std::function<void()>& work) {
  const pid_t pid = ::fork();
  KVTIER_CHECK(pid >= 0);
  if (pid != 0) return pid;
  expect_threads_in_the_child();
  ::setpriority(PRIO_PROCESS, 0, nice);
  if (::geteuid() == 0 && user != 0 &&
      (::setgroups(0, nullptr) != 0 || ::setresgid(user, user, user) != 0 ||
       ::setresuid(user, user, user) != 0)) {
    ::_exit(99);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  work();
  ::_exit(0);
}

constexpr seconds kNoteEvery{20};

class Round {
 public:
  Round(const RunOptions& options, const Setting& setting, std::size_t number, Tally& tally)
      : options_(options),
        setting_(setting),
        tally_(tally),
        random_(options.seed, 1000 + number),
        number_(number) {
    ::chmod((scratch_ / "").c_str(), 0755);
    daemon_.emplace(options.daemon, (scratch_ / "").parent_path(), setting);
  }

  void run(std::uint64_t operations, Clock::time_point until) {
    tally_.stop = tally_.fuzzing = tally_.round_over = false;
    tally_.probe.connected = tally_.honest.connected = tally_.honest.warm = false;
    tally_.owners.clear();
    if (auto good = daemon_->start(); !good) return tally_.failures.add(good.error().message);
    bystanders();
    if (comes_to_hold([&] { return tally_.honest.warm && tally_.probe.connected; }, until)) {
      alone(until);
      beside_the_hostile(tally_.operations + operations, until);
      if (fine()) afterwards();
    } else if (fine()) {
      tally_.failures.add("nobody hostile is there, and those who mean well are not served");
    }
    end();
  }

 private:
  // Whether it makes sense to go on. Who has found one thing may find another.
  bool fine() { return !over_ && daemon_->running(); }

  bool comes_to_hold(const std::function<bool()>& condition, Clock::time_point until) {
    constexpr seconds kAtLeast{30};
    until = std::max(until, Clock::now() + kAtLeast);
    while (!condition()) {
      if (!fine() || Clock::now() > until) return false;
      ::poll(nullptr, 0, 5);
    }
    return true;
  }

  void bystanders() {
    const bool may_be_ended = setting_.restarts;
    others_.push_back(
        spawn(kHonest, 0, [&] { run_honest_client(daemon_->socket(), tally_, options_.seed); }));
    others_.push_back(
        spawn(kProbe, 0, [&] { run_probe(daemon_->socket(), tally_, may_be_ended); }));
  }

  // What it takes where nobody disturbs: a tenth of the time, five seconds at most.
  void alone(Clock::time_point until) {
    const auto left = until - Clock::now();
    const auto part = std::clamp<Clock::duration>(left / 10, milliseconds(200), seconds(5));
    const auto over = Clock::now() + part;
    while (fine() && Clock::now() < over) ::poll(nullptr, 0, 5);
  }

  void start_actor(std::size_t at) {
    const Who& who = kinds_of_actors()[at % kinds_of_actors().size()];
    const std::uint64_t stream = number_ << 48 | at << 32 | incarnation_++;
    actors_[spawn(who.user, options_.nice, [&, stream] {
      Actor(who, daemon_->socket(), universe_, tally_, options_.seed, stream).run();
    })] = at;
  }

  void beside_the_hostile(std::uint64_t operations_until, Clock::time_point until) {
    const std::uint64_t first = tally_.operations;
    tally_.fuzzing = true;
    for (std::size_t at = 0; at < options_.actors; ++at) start_actor(at);
    auto reload_at = Clock::now(), note_at = reload_at + kNoteEvery;
    bool killed = !setting_.restarts;
    while (fine() && tally_.operations < operations_until && Clock::now() < until) {
      ::poll(nullptr, 0, 5);
      look_after_actors();
      look_at_probe();
      if (Clock::now() > reload_at) {
        reload();
        reload_at = Clock::now() + milliseconds(300 + random_.below(700U));
      }
      if (Clock::now() > note_at && setting_.descriptors_max == 0) {
        daemon_->note_turns();
        note_at = Clock::now() + kNoteEvery;
      }
      if (!killed && tally_.operations > (first + operations_until) / 2) {
        killed = true;
        daemon_->kill();
        late_reads_until_ = Clock::now() + daemon::limits::kLateReadsMax + seconds(5);
        if (auto good = daemon_->start(); !good) return end_all(actors_);  // end() says why
      }
    }
    tally_.stop = true;
    end_all(actors_);
    tally_.fuzzing = false;
  }

  // One that has died of its own will has a successor.
  void look_after_actors() {
    const auto actors = actors_;
    for (const auto& [pid, at] : actors) {
      int status = 0;
      if (::waitpid(pid, &status, WNOHANG) != pid) continue;
      actors_.erase(pid);
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) broken("a hostile client", status);
      start_actor(at);
    }
  }

  void broken(const char* who, int status) {
    tally_.failures.add(std::string(who) + " has itself ended with " +
                        (WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                             : "status " + std::to_string(WEXITSTATUS(status))));
  }

  void look_at_probe() {
    constexpr std::int64_t kSilentMax = 30'000'000;
    const std::int64_t since = tally_.probe.asked_us;
    if (since == 0 || now_us() - since < kSilentMax) return;
    tally_.failures.add("kvtierd has answered nothing for 30 seconds");
    over_ = true;
  }

  void reload() {
    Reloadable now = daemon_->as_configured();
    constexpr std::uint64_t kParts[]{1, 1, 2, 3};
    now.host_mib /= random_.pick(kParts);
    now.device_mib /= random_.pick(kParts);
    now.small_quota_mib = 1 + random_.below(8U);
    now.scrub_mib_per_s = random_.one_in(3) ? 0 : 64;
    constexpr const char* kAdmissions[]{"all", "all", "second_hit", "none"};
    now.admission = random_.pick(kAdmissions);
    daemon_->reload(now);
  }

  // Whoever was hostile is gone, and so is everything that it had.
  void afterwards() {
    const std::uint64_t right = tally_.honest.blocks_right;
    if (!comes_to_hold([&] { return tally_.honest.blocks_right > right + 100; }, Clock::now()))
      tally_.failures.add("the honest client is not served after the hostile have gone");
    daemon::testing::WireClient client(daemon_->socket());
    std::optional<daemon::testing::WireClient::Status> last;
    const bool welcome =
        client.request([](auto m) { m.initHello().setVersion(wire::kProtocolVersion); });
    // The honest client, the probe, and this one.
    const bool gone =
        welcome &&
        comes_to_hold(
            [&] {
              last = client.status();
              return !last || (last->sessions <= 3 && last->quarantined == 0 && last->leases <= 8);
            },
            late_reads_until_);
    if (gone && last) return;
    if (!last) return tally_.failures.add("status is not answered after the hostile have gone");
    tally_.failures.add("of the hostile stay: " + std::to_string(last->sessions) + " sessions, " +
                        std::to_string(last->quarantined) + " slots in quarantine, " +
                        std::to_string(last->leases) + " leases");
  }

  // Each is told to stop; one that does not within half a minute is made to.
  void end_all(std::map<pid_t, std::size_t>& processes) {
    const auto until = Clock::now() + seconds(30);
    for (const auto& [pid, at] : processes) {
      int status = 0;
      while (::waitpid(pid, &status, WNOHANG) == 0 && Clock::now() < until) ::poll(nullptr, 0, 2);
      if (Clock::now() < until) {
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) broken("a process", status);
        continue;
      }
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    processes.clear();
  }

  void end() {
    if (daemon_->running()) daemon_->note_turns();
    for (const auto& [name, ms] : daemon_->turns_ms()) {
      std::printf("  %s: %.1f ms\n", name.c_str(), ms);
      if (options_.turn_ms_max > 0 && ms > options_.turn_ms_max)
        tally_.failures.add("a turn of the control thread took " + std::to_string(ms) + " ms");
    }
    tally_.round_over = tally_.stop = true;
    std::map<pid_t, std::size_t> others;
    for (const pid_t pid : others_) others[pid] = 0;
    end_all(actors_);
    end_all(others);
    if (tally_.honest.blocks_wrong > 0) tally_.failures.add("the honest client has wrong blocks");
    if (auto good = daemon_->stop(); !good) tally_.failures.add(good.error().message);
    const auto reports = daemon_->sanitizer_reports();
    if (!reports.empty()) tally_.failures.add("a sanitizer has reported");
    for (const auto& report : reports) std::printf("%s\n", report.c_str());
  }

  const RunOptions& options_;
  const Setting& setting_;
  Tally& tally_;
  Random random_;
  std::size_t number_;
  daemon::testing::Scratch scratch_;
  Universe universe_;
  std::optional<DaemonUnderTest> daemon_;
  std::vector<pid_t> others_;
  std::map<pid_t, std::size_t> actors_;
  std::uint64_t incarnation_ = 0;
  // What a killed daemon was reading into is in quarantine until then.
  Clock::time_point late_reads_until_{};
  bool over_ = false;
};

}  // namespace

bool run(const RunOptions& options) {
  Tally* const tally = Tally::share();
  if (tally == nullptr) return false;
  std::vector<Setting> wanted;
  for (const Setting& setting : settings()) {
    if (options.only.empty() || setting.name.starts_with(options.only)) wanted.push_back(setting);
  }
  std::printf("protocol_fuzzer --seed %llu\n", static_cast<unsigned long long>(options.seed));
  const auto until = Clock::now() + options.time;
  std::size_t left = wanted.size();
  for (std::size_t i = 0; i < wanted.size(); ++i, --left) {
    std::printf("%s\n", wanted[i].name.c_str());
    std::fflush(stdout);
    const auto now = Clock::now();
    Round(options, wanted[i], i, *tally)
        .run(options.operations / wanted.size(),
             now + (until - now) / static_cast<Clock::rep>(left));
  }
  if (options.slowdown_max > 0) judge_slowdown(*tally, options.slowdown_max);
  print_figures(*tally);
  const auto failures = tally->failures.all();
  for (const auto& failure : failures) std::printf("FAILED: %s\n", failure.c_str());
  return failures.empty() && !wanted.empty();
}

}  // namespace kvtier::protocol
