// A daemon with two disks that kills itself at a named point under load, and what its successor
// serves.
#include <sys/wait.h>

#include <array>
#include <cstdlib>
#include <random>
#include <set>

#include "storage/memory/slot_table.h"
#include "tests/daemon/support/damage.h"
#include "tests/daemon/support/server_fixture.h"

namespace kvtier::daemon::testing {
namespace {

struct Point {
  const char* name;
  unsigned passings;  // killed at one of the first so many
};
constexpr Point kPoints[] = {
    {"daemon.commit.sealed", 100},      {"daemon.write.queued", 100},
    {"daemon.write.submitted", 100},    {"daemon.write.settled", 100},
    {"daemon.disk.evicted", 20},        {"daemon.memory.evicted", 40},
    {"daemon.disk.forgotten", 3},       {"daemon.disk.erased", 3},
    {"daemon.load.started", 30},        {"daemon.load.landed", 30},
    {"daemon.segment.emptied", 2},      {"daemon.stamps.sent", 1},
    {"daemon.flush.sent", 12},          {"daemon.flush.done", 12},
    {"daemon.namespace.remembered", 2}, {"daemon.scrub.started", 40},
    {"daemon.disk.retired", 3},         {"daemon.disk.tested", 3},
};
// Passed by a daemon whose memory is kept.
constexpr Point kKeptPoints[] = {
    {"daemon.slots.stored", 4},         {"daemon.extent.stored", 4},
    {"daemon.extent.removed", 1},       {"daemon.commit.sealed", 100},
    {"daemon.memory.evicted", 40},      {"daemon.write.settled", 100},
    {"daemon.disk.evicted", 20},        {"daemon.load.started", 30},
    {"daemon.load.landed", 30},         {"daemon.disk.retired", 3},
    {"daemon.namespace.remembered", 2},
};
// And by one that finds such memory, while it starts.
constexpr Point kAdoptionPoints[] = {
    {"daemon.extents.taken", 1},
    {"daemon.adopted", 1},
    {"daemon.state.stored", 1},
    {"daemon.recovered", 1},
};
constexpr std::size_t kPrefixBlocks = 10;

class KillRun {
 public:
  // `pressure`: more blocks than the disks hold, so that nothing can be said of what must be there.
  // `kept`: a manager keeps what is in memory.
  KillRun(unsigned seed, bool pressure, bool kept = false) : random_(seed), pressure_(pressure) {
    if (kept) manager_ = std::make_unique<ServiceManager>();
  }

  // Whether the daemon was killed at the point (and not merely stopped at the end).
  bool until_killed(const Point& point) {
    const std::string at =
        std::string(point.name) + ":" + std::to_string(1 + random_() % point.passings);
    ::setenv("KVTIER_KILL_AT", at.c_str(), 1);
    Kvtierd daemon(scratch_, config(), "", manager_.get());
    ::unsetenv("KVTIER_KILL_AT");
    {
      WireClient client = WireClient::greeted(socket());
      work(client, daemon);
    }
    if (daemon.running()) daemon.signal(SIGTERM);
    const int status = daemon.wait();
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

  // Works for a while, is killed from outside, and its successor at the point.
  bool until_successor_killed(const Point& point) {
    {
      Kvtierd daemon(scratch_, config(), "", manager_.get());
      WireClient client = WireClient::greeted(socket());
      work(client, daemon);
      daemon.signal(SIGKILL);
      daemon.wait();
      manager_->settle();
    }
    ::setenv("KVTIER_KILL_AT", (std::string(point.name) + ":1").c_str(), 1);
    Kvtierd daemon(scratch_, config(), "", manager_.get());
    ::unsetenv("KVTIER_KILL_AT");
    const int status = daemon.wait();
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

  void check_successor() {
    if (manager_) manager_->settle();
    Kvtierd daemon(scratch_, config(), "", manager_.get());
    WireClient client = WireClient::greeted(socket());
    ASSERT_TRUE(open(client));
    check_usage(client);
    std::size_t found = 0;
    for (const auto& [wide, prefix] : prefixes_) {
      const auto seen = look(client, wide, prefix);
      for (std::size_t i = 0; i < prefix.size(); ++i) {
        const bool there = i < seen.size() && seen[i] == WireClient::Seen::right;
        ASSERT_TRUE(i >= seen.size() || seen[i] != WireClient::Seen::wrong) << "wrong bytes";
        found += there ? 1 : 0;
        ASSERT_TRUE(pressure_ || there || !durable_.contains(prefix[i].key()))
            << "block " << i << " is lost";
      }
    }
    EXPECT_TRUE(found > 0 || durable_.size() <= kPrefixBlocks);
    daemon.signal(SIGTERM);
    const int status = daemon.wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << daemon.output();
  }

 private:
  std::string socket() const { return (scratch_ / "s").string(); }
  std::string config() const {
    return "socket = '" + socket() + "'\nlog_level = 'warn'\n[index]\nblocks_max = 4096\n" +
           "[host]\ncapacity = '1MiB'\nextent_size = '256KiB'\nhuge_pages = false\n" +
           "[disk]\ndirectories = ['" + (scratch_ / "a").string() + "', '" +
           (scratch_ / "b").string() +
           "']\ncapacity = '34MiB'\nsegment_size = '64KiB'\nscrub_mib_per_s = 0\n";
  }
  bool open(WireClient& client) {
    const auto small = client.try_open(narrow_);
    const auto large = client.try_open(wide_);
    if (small && large) handles_ = {*small, *large};
    return small && large;
  }
  std::vector<WireClient::Seen> look(WireClient& client, bool wide,
                                     std::span<const TestBlock> prefix) {
    return client.look(handles_[wide], wide ? wide_ : narrow_, prefix);
  }

  // Until the daemon dies or there is no more to do. What it serves meanwhile is compared too.
  void work(WireClient& client, Kvtierd& daemon) {
    if (!open(client)) return;
    const unsigned prompts = pressure_ ? 48 : 20;
    for (unsigned n = 0; n < prompts && daemon.running(); ++n) {
      // Larger records come when the disks are full of small ones.
      const bool wide = n >= 38 && n % 2 == 0;
      const Namespace& of = wide ? wide_ : narrow_;
      prefixes_.emplace_back(wide, prefix_of(id_of(of), kPrefixBlocks, 1 + 1000 * n));
      const auto& prefix = prefixes_.back().second;
      bool all = true;
      for (const auto& block : prefix) all = client.put(handles_[wide], of, block) && all;
      if (client.flush() && all) {
        for (const auto& block : prefix) durable_.insert(block.key());
      }
      const auto& [other_wide, other] = prefixes_[random_() % prefixes_.size()];
      for (const auto seen : look(client, other_wide, other))
        ASSERT_NE(seen, WireClient::Seen::wrong);
      if (n % 5 == 4) forget_one(client);
      if (pressure_ && n % 7 == 5) damage_a_segment();
      if (n % 7 == 6) client.request([](WireClient::Builder m) { m.initScrub().setStart(true); });
    }
  }

  // A byte of the payload of each of its records.
  void damage_a_segment() {
    for (const auto& file : std::filesystem::directory_iterator(scratch_ / "a" / "segments")) {
      if (file.path().extension() != ".seg" || random_() % 4 != 0) continue;
      for (std::uint64_t slot = 0; slot < 7; ++slot)
        damage(file.path(), 4096 + slot * kRecordBytes + 4096 + 10, std::string_view("!"));
      return;
    }
  }

  // As a client does that found a block not to hold in memory, and an administrator who wants it
  // nowhere.
  void forget_one(WireClient& client) {
    const auto& [wide, prefix] = prefixes_[random_() % prefixes_.size()];
    durable_.erase(prefix.back().key());
    client.report_bad(handles_[wide], prefix, true);
    // The damage is the client's own: the daemon has heard of it before it is killed from outside.
    client.request([](WireClient::Builder m) { m.setStatus(); });
    const Key& key = prefix.back().key();
    client.request([&](WireClient::Builder m) {
      m.initDrop().initSelection().setKey({reinterpret_cast<const kj::byte*>(&key), sizeof key});
    });
  }

  void check_usage(WireClient& client) {
    // What an earlier daemon owed the disks has a slot there before it is a block there.
    ASSERT_TRUE(client.request([](WireClient::Builder m) { m.setFlush(); }));
    ASSERT_TRUE(client.request([](WireClient::Builder m) { m.setStatus(); },
                               [this](WireClient::Reader m) {
                                 std::uint64_t used = 0, blocks = 0;
                                 for (const auto disk : m.getStatusReply().getDisks()) {
                                   EXPECT_TRUE(disk.getOnline());
                                   EXPECT_LE(disk.getTakenBytes(), disk.getCapBytes());
                                   used += disk.getUsedBytes();
                                   blocks += disk.getBlocks();
                                 }
                                 const auto tier = m.getStatusReply().getTiers()[2];
                                 EXPECT_EQ(tier.getUsedBytes(), used);
                                 EXPECT_EQ(tier.getBlocks(), blocks);
                                 const auto host = m.getStatusReply().getTiers()[1];
                                 EXPECT_LE(host.getTakenBytes(), host.getCapBytes());
                                 in_host_ = host.getBlocks();
                               }));
    // The slot tables say the same. Nobody has used the new daemon yet.
    if (manager_) {
      EXPECT_EQ(sealed_slots(), in_host_);
    }
  }

  std::uint64_t sealed_slots() {
    manager_->settle();
    std::uint64_t sealed = 0;
    for (const std::string& name : manager_->names("slots-")) {
      const auto table = storage::SlotTable::adopt(UniqueFd(::dup(manager_->fd(name))));
      EXPECT_TRUE(table) << name;
      for (std::uint32_t slot = 0; table && slot < table->header().slots; ++slot)
        sealed += table->entry(slot).state == storage::SlotState::sealed ? 1 : 0;
    }
    return sealed;
  }

  std::mt19937 random_;
  const bool pressure_;
  std::unique_ptr<ServiceManager> manager_;
  std::uint64_t in_host_ = 0;
  Scratch scratch_;
  const Namespace narrow_ = small_namespace("m"), wide_ = small_namespace("w", true);
  std::array<std::uint32_t, 2> handles_{};
  std::vector<std::pair<bool, std::vector<TestBlock>>> prefixes_;
  std::set<Key> durable_;  // acknowledged by a flush
};

void sweep(unsigned seeds) {
  for (const Point& point : kPoints) {
    unsigned killed = 0;
    for (unsigned seed = 0; seed < seeds && !::testing::Test::HasFatalFailure(); ++seed) {
      SCOPED_TRACE(std::string(point.name) + ", seed " + std::to_string(seed));
      KillRun run(seed, seed % 2 == 0);
      killed += run.until_killed(point) ? 1 : 0;
      run.check_successor();
    }
    EXPECT_GT(killed, 0U) << point.name << " was not passed";
  }
}

TEST(KillTest, a_daemon_killed_at_any_point_leaves_only_right_blocks_and_every_durable_one) {
  sweep(2);
}

void sweep_kept(unsigned seeds) {
  for (const Point& point : kKeptPoints) {
    unsigned killed = 0;
    for (unsigned seed = 0; seed < seeds && !::testing::Test::HasFatalFailure(); ++seed) {
      SCOPED_TRACE(std::string(point.name) + ", seed " + std::to_string(seed));
      KillRun run(seed, true, true);
      killed += run.until_killed(point) ? 1 : 0;
      run.check_successor();
    }
    EXPECT_GT(killed, 0U) << point.name << " was not passed";
  }
  for (const Point& point : kAdoptionPoints) {
    for (unsigned seed = 0; seed < seeds && !::testing::Test::HasFatalFailure(); ++seed) {
      SCOPED_TRACE(std::string(point.name) + ", seed " + std::to_string(seed));
      KillRun run(seed, false, true);
      EXPECT_TRUE(run.until_successor_killed(point));
      run.check_successor();
    }
  }
}

TEST(KillTest, a_daemon_whose_memory_is_kept_leaves_only_right_blocks_wherever_it_is_killed) {
  sweep_kept(1);
}

// By hand: KVTIER_KILL_SEEDS=20.
TEST(KillTest, sweep_of_as_many_seeds_as_asked_for) {
  const char* seeds = std::getenv("KVTIER_KILL_SEEDS");
  if (seeds == nullptr) GTEST_SKIP() << "KVTIER_KILL_SEEDS is not set";
  sweep(static_cast<unsigned>(std::atoi(seeds)));
  sweep_kept(static_cast<unsigned>(std::atoi(seeds)));
}

}  // namespace
}  // namespace kvtier::daemon::testing
