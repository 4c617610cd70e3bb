// A disk whose thread stands still, under a daemon with a million slots: nobody who needs no disk
// notices.
#include <sys/resource.h>

#include <algorithm>
#include <fstream>

#include "core/base/units.h"
#include "storage/memory/extent.h"
#include "tests/daemon/support/kept_fixture.h"
#include "tests/ops/http_client.h"

namespace kvtier::daemon::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kExtentBytes = 64_MiB;
constexpr std::uint32_t kSlots = kExtentBytes / kRecordBytes;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint32_t kExtents = 16;  // a million is taken over for longer than a client waits
constexpr double kTurnCpuMax = 0.4;     // seconds
#else
constexpr std::uint32_t kExtents = 128;
static_assert(kExtents * kSlots >= 1'000'000);
constexpr double kTurnCpuMax = 0.05;
#endif

class Standstill : public ::testing::Test {
 protected:
  Standstill() {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    for (std::uint32_t id = 1; id <= kExtents; ++id) leave_extent(id);
    std::ofstream(stands) << "";
    ::setenv("KVTIER_DISK_STANDS", stands.c_str(), 1);
    ::setenv("WATCHDOG_USEC", "3000000", 1);
    daemon.emplace(scratch, config("8GiB"), "", &manager);
    ::unsetenv("KVTIER_DISK_STANDS");
    ::unsetenv("WATCHDOG_USEC");
    status(WireClient::greeted(socket()));
    const std::string output = daemon->output(), before = "listening on 127.0.0.1:";
    port =
        static_cast<std::uint16_t>(std::stoi(output.substr(output.find(before) + before.size())));
  }

  // As an earlier daemon left it, full: of its records nobody but the clients reads a byte.
  void leave_extent(std::uint32_t id) {
    const storage::Extent::Shape shape{kExtentBytes, kRecordBytes, 0};
    const storage::ExtentId extent(id);
    auto memory = make_memfd("kvtier-extent", kExtentBytes);
    auto table = storage::SlotTable::create(storage::slot_table_header(extent, Tier::host, shape));
    ASSERT_TRUE(memory && table);
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      storage::SlotEntry entry{};
      entry.ns = id_of(small_namespace("earlier"));
      const std::uint64_t number = std::uint64_t{id} * kSlots + slot;
      entry.key = chain_key(entry.ns, {}, std::vector<Token>(kBlockTokens, Token(number)));
      entry.last_access = number;
      table->set_reserved(slot, {});
      table->set_sealed(slot, entry);
    }
    manager.put("slots-" + std::to_string(id), UniqueFd(::dup(table->fd())));
    manager.put("extent-" + std::to_string(id), std::move(*memory));
  }
  std::string socket() const { return (scratch / "s").string(); }
  std::string config(const std::string& capacity) const {
    return "socket = '" + socket() + "'\n[index]\nblocks_max = 1200000\n[host]\ncapacity = '" +
           capacity + "'\nextent_size = '64MiB'\nhuge_pages = false\n[disk]\ndirectory = '" +
           (scratch / "disk").string() +
           "'\ncapacity = '64MiB'\nsegment_size = '1MiB'\n[http]\nlisten = '127.0.0.1:0'\n";
  }
  void lower_to(const std::string& capacity) {
    std::ofstream(daemon->config_file()) << config(capacity);
    daemon->signal(SIGHUP);
  }
  static MemoryStatus status(WireClient&& client) { return memory_status(client); }
  Metrics metrics() const { return parse_metrics(http_get(port, "/metrics").body); }

  // For a time, with the disk standing still: capacities are lowered, sizes of records change,
  // clients come and go.
  void work_for(std::chrono::seconds time) {
    const std::vector<std::string> capacities{"6GiB", "4GiB", "2GiB", "256MiB"};
    const auto began = Clock::now();
    std::size_t lowered = 0;
    for (Token n = 0; Clock::now() - began < time; ++n) {
      if (lowered < capacities.size() && Clock::now() - began >= (lowered + 1) * time / 6)
        lower_to(capacities[lowered++]);
      come_and_go(n);
      if (n % 64 == 0) look_at_turns();
    }
    look_at_turns();
    EXPECT_EQ(lowered, capacities.size());
  }
  void come_and_go(Token n) {
    const bool wide = n % 3 == 2;
    const Namespace ns = small_namespace(wide ? "wide" : "narrow", wide);
    std::optional<WireClient> client;
    std::uint32_t handle = 0;
    timed([&] { client.emplace(WireClient::greeted(socket())); });
    let_go(*client);
    timed([&] { handle = client->open(ns); });
    const auto blocks = prefix_of(id_of(ns), 2, 10 * n);
    for (const TestBlock& block : blocks)
      timed([&] { stored += client->put(handle, ns, block) ? 1 : 0; });
    timed([&] { client->lease(handle, blocks); });
    timed([&] { client->reserve(handle, 4); });  // and leaves with them
  }
  // Of what the clients before left with.
  static void let_go(WireClient& client) {
    EXPECT_TRUE(client.send([](WireClient::Builder m) { m.setLetGo(); }));
  }
  void timed(const std::function<void()>& what) {
    const auto began = Clock::now();
    what();
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - began).count());
  }
  void look_at_turns() {
    const Metrics now = metrics();
    turn_max = std::max(turn_max, now.at("kvtier_control_turn_max_seconds"));
    cpu_max = std::max(cpu_max, now.at("kvtier_control_turn_cpu_max_seconds"));
  }
  double percentile(double part) {
    std::ranges::sort(ms);
    return ms[static_cast<std::size_t>(static_cast<double>(ms.size() - 1) * part)];
  }
  void expect_that_all_is_given_back_once_the_disk_goes_on() {
    const auto taken = [&] {
      WireClient client = WireClient::greeted(socket());
      let_go(client);
      return memory_status(client).taken_bytes[index_of(Tier::host)];
    };
    EXPECT_GT(taken(), 256_MiB) << "its thread has not said that it has let go of anything";
    std::filesystem::remove(stands);
    EXPECT_TRUE(comes_to_hold([&] { return taken() <= 256_MiB; })) << taken();
  }

  Scratch scratch;
  ServiceManager manager;
  const std::string stands = (scratch / "stands").string();
  std::optional<Kvtierd> daemon;
  std::uint16_t port = 0;
  std::vector<double> ms;  // of each answer
  double turn_max = 0, cpu_max = 0;
  std::uint64_t stored = 0;
};

// Each extent that was to go was asked of the disk's thread, and waited for.
TEST_F(Standstill, of_a_disk_is_noticed_by_nobody_who_needs_no_disk) {
  ASSERT_EQ(status(WireClient::greeted(socket())).blocks[index_of(Tier::host)], kExtents * kSlots);
  constexpr std::chrono::seconds kTime{5};
  work_for(kTime);
  EXPECT_GT(stored, 10U);
  // Others may keep this machine busy, so what counts is the thread's own time, and that it, and
  // who asked it, have waited for nothing that stands still: it does so to the end.
  EXPECT_LT(cpu_max, kTurnCpuMax);
  EXPECT_LT(turn_max, std::chrono::duration<double>(kTime).count() / 6);
  EXPECT_LT(percentile(1), 1000.0 * static_cast<double>(kTime.count()) / 2);
  expect_that_all_is_given_back_once_the_disk_goes_on();
}

TEST_F(Standstill, slow_of_a_minute_is_noticed_by_nobody_who_needs_no_disk) {
  work_for(std::chrono::seconds(60));
  EXPECT_LT(percentile(0.99), 10);
  EXPECT_LT(turn_max, 0.05);
  const auto [told, longest] = manager.alive();
  EXPECT_GE(told, 50U);
  EXPECT_LT(longest, std::chrono::milliseconds(1500));
  std::printf(
      "answers: p50 %.3f, p99 %.3f, longest %.3f ms; turns: longest %.3f ms, of it %.3f ms "
      "of processor time; %zu answers, %llu blocks stored\n",
      percentile(0.5), percentile(0.99), percentile(1), 1000 * turn_max, 1000 * cpu_max, ms.size(),
      static_cast<unsigned long long>(stored));
  expect_that_all_is_given_back_once_the_disk_goes_on();
}

}  // namespace
}  // namespace kvtier::daemon::testing
