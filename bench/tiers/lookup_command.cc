#include <atomic>
#include <stdexcept>
#include <thread>

#include "bench/tiers/commands.h"
#include "bench/tiers/connected.h"
#include "core/base/thread_priority.h"
#include "core/base/units.h"

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr std::uint64_t kWrittenRecord = 1_MiB;
constexpr std::uint64_t kSharedPrompt = 1;  // all others are never in the cache
constexpr std::uint64_t kFirstMissPrompt = 1000;
constexpr std::uint64_t kFirstWrittenPrompt = 1'000'000;
constexpr std::size_t kMissPrompts = 256;

// Writes whole prompts of new blocks back, one after the other, for as long as it lives, and waits
// a little where there was no room: the disk is kept busy, the processors are not.
class Writer {
 public:
  explicit Writer(const DaemonChild& daemon)
      : client_(connected(daemon, "writer")),
        cache_(need(client_->open(namespace_of_records(kWrittenRecord)))),
        record_(kWrittenRecord, std::byte{7}),
        thread_([this] { run(); }) {}
  ~Writer() {
    stop_ = true;
    thread_.join();
  }

 private:
  void run() {
    constexpr std::size_t kBlocks = 32;
    const std::vector<std::byte*> records(kBlocks, record_.data());
    for (std::uint64_t number = kFirstWrittenPrompt; !stop_; ++number) {
      const auto tokens = prompt(number, kBlocks * kBlockTokens);
      auto write =
          cache_->write_back(tokens, 0, {.records = records, .k_pages = {}, .v_pages = {}});
      write.wait();
      if (write.accepted() < kBlocks) std::this_thread::sleep_for(1ms);
    }
  }

  std::shared_ptr<Client> client_;
  std::shared_ptr<Cache> cache_;
  std::vector<std::byte> record_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class Reader {
 public:
  Reader(const DaemonChild& daemon, std::uint32_t blocks)
      : blocks_(blocks),
        client_(connected(daemon, "reader")),
        cache_(need(client_->open(namespace_of_records(kSmallestRecord)))),
        tokens_(prompt(kSharedPrompt, std::size_t{blocks} * kBlockTokens + 1)) {
    for (std::size_t i = 0; i < kMissPrompts; ++i) {
      misses_.push_back(prompt(kFirstMissPrompt + i, tokens_.size()));
    }
    write_prefix();
  }

  struct Figures {
    std::vector<double> match_us, lease_us, miss_ns;
  };
  Figures measure(double seconds) {
    // An engine's thread has a core to itself; here it at least need not wait for long turns.
    ask_for_short_turns();
    Figures figures;
    const auto begin = steady_clock::now();
    while (seconds_since(begin) < seconds) {
      figures.match_us.push_back(1e6 * timed([&] { check(cache_->match(tokens_).blocks); }));
      figures.lease_us.push_back(1e6 * timed([&] {
                                   auto lease = need(
                                       cache_->lease(tokens_, blocks_, steady_clock::now() + 5s));
                                   check(lease.wait_ready(steady_clock::now()));
                                   lease.release();
                                 }));
      for (std::size_t i = 0; i < 16; ++i) {
        const auto& tokens = misses_[figures.miss_ns.size() % misses_.size()];
        std::uint32_t found = 0;
        figures.miss_ns.push_back(1e9 * timed([&] { found = cache_->match(tokens).blocks; }));
        if (found != 0) throw std::runtime_error("a prompt that was never written matched");
      }
    }
    return figures;
  }

 private:
  template <class Work>
  static double timed(Work&& work) {
    const auto begin = steady_clock::now();
    work();
    return seconds_since(begin);
  }

  void check(std::uint32_t blocks) const {
    if (blocks == blocks_) return;
    throw std::runtime_error("only " + std::to_string(blocks) + " of " + std::to_string(blocks_) +
                             " blocks are in memory");
  }

  // In pieces, again and again, until every block has found a slot.
  void write_prefix() {
    std::vector<std::byte> record(kSmallestRecord, std::byte{3});
    constexpr std::uint32_t kPiece = 32;
    const std::vector<std::byte*> records(kPiece, record.data());
    const auto give_up = steady_clock::now() + 30s;
    while (cache_->match(tokens_).blocks < blocks_) {
      if (steady_clock::now() > give_up) throw std::runtime_error("the prefix cannot be written");
      for (std::uint32_t first = 0; first < blocks_; first += kPiece) {
        cache_->write_back(tokens_, first, {.records = records, .k_pages = {}, .v_pages = {}})
            .wait();
      }
      need(client_->flush(steady_clock::now() + 30s));
    }
  }

  std::uint32_t blocks_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Cache> cache_;
  std::vector<Token> tokens_;
  std::vector<std::vector<Token>> misses_;
};

void add(Report& report, Reader::Figures& idle, Reader::Figures& busy, std::uint32_t blocks) {
  const auto rows = [&](const std::string& name, std::vector<double>& quiet,
                        std::vector<double>& loud, const std::string& unit) {
    for (const auto& [suffix, share] : {std::pair{".p50_", 0.5}, std::pair{".p99_", 0.99}}) {
      const double limit = percentile(quiet, share);
      report.add("lookup." + name + suffix + unit, limit, unit);
      report.add("lookup." + name + suffix + unit + ".under_writes", percentile(loud, share), unit,
                 limit);
    }
  };
  rows("match_" + std::to_string(blocks), idle.match_us, busy.match_us, "us");
  rows("lease_" + std::to_string(blocks), idle.lease_us, busy.lease_us, "us");
  rows("miss", idle.miss_ns, busy.miss_ns, "ns");
}

}  // namespace

void measure_lookup(const LookupOptions& options, Report& report) {
  const ScratchDirectory scratch(options.directory);
  const DaemonChild daemon(options.kvtierd, scratch.path(), {"1GiB", "256MiB", "8GiB"});
  Reader reader(daemon, options.blocks);
  auto idle = reader.measure(options.seconds);
  double written = 0;
  Reader::Figures busy;
  {
    const Writer writer(daemon);
    std::this_thread::sleep_for(500ms);  // until the queues are full
    const auto begin = steady_clock::now();
    const std::uint64_t at_start = daemon.disk_insertions();
    busy = reader.measure(options.seconds);
    written = static_cast<double>((daemon.disk_insertions() - at_start) * kWrittenRecord) /
              seconds_since(begin);
  }
  if (written == 0) throw std::runtime_error("the disk tier wrote nothing");
  add(report, idle, busy, options.blocks);
  report.add("lookup.written.under_writes", written / 1e9, "GB/s");
}

}  // namespace kvtier::bench
