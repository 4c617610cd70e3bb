#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "bench/tiers/commands.h"
#include "bench/tiers/connected.h"
#include "core/base/thread_priority.h"

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr std::uint32_t kPiece = 32;  // blocks of a write-back

// An engine that is connected and has the namespace open.
class Engine {
 public:
  explicit Engine(const DaemonChild& daemon) {
    client_ = connected(daemon, "engine");
    cache_ = need(client_->open(namespace_of_records(kSmallestRecord)));
    need(client_->flush(steady_clock::now() + 30s));
  }

  // Of `blocks` leading blocks, all of them in memory.
  Lease lease(const std::vector<Token>& tokens, std::uint32_t blocks) const {
    auto lease = need(cache_->lease(tokens, blocks, steady_clock::now() + 10s));
    const std::uint32_t ready = lease.wait_ready(steady_clock::now() + 10s);
    if (ready == blocks) return lease;
    throw std::runtime_error("only " + std::to_string(ready) + " of " + std::to_string(blocks) +
                             " blocks are leased");
  }

  // In pieces, again and again, until every block has found a slot.
  void write(const std::vector<Token>& tokens, std::uint32_t blocks) const {
    std::vector<std::byte> record(kSmallestRecord, std::byte{3});
    const auto give_up = steady_clock::now() + 60s;
    while (cache_->match(tokens).blocks < blocks) {
      if (steady_clock::now() > give_up) throw std::runtime_error("the prefix cannot be written");
      for (std::uint32_t first = 0; first < blocks; first += kPiece) {
        const std::vector<std::byte*> records(std::min(kPiece, blocks - first), record.data());
        cache_->write_back(tokens, first, {.records = records, .k_pages = {}, .v_pages = {}})
            .wait();
      }
      need(client_->flush(steady_clock::now() + 30s));
    }
  }

 private:
  std::shared_ptr<Client> client_;
  std::shared_ptr<Cache> cache_;
};

class Clients {
 public:
  Clients(const ClientsOptions& options, Report& report)
      : options_(options),
        report_(report),
        scratch_(options.directory),
        daemon_(options.kvtierd, scratch_.path(), {"1GiB", "256MiB", ""}),
        tokens_(prompt(1, std::size_t{options.blocks} * kBlockTokens + 1)),
        measured_(daemon_) {
    measured_.write(tokens_, options.blocks);
  }

  void run() {
    auto counts = options_.clients;
    counts.push_back(1);  // what the others are held against
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    // An engine's thread has a core to itself; here it at least need not wait for long turns.
    ask_for_short_turns();
    (void)measure();  // warms up
    for (const std::uint32_t count : counts) {
      while (others_.size() + 1 < count) others_.push_back(std::make_unique<Engine>(daemon_));
      add("idle", count, measure());
      std::vector<Lease> held;
      for (const auto& other : others_) held.push_back(other->lease(tokens_, options_.blocks));
      add("holding", count, measure());
      if (std::any_of(held.begin(), held.end(), [](const Lease& lease) { return !lease.held(); })) {
        throw std::runtime_error("a lease was lost meanwhile");
      }
    }
  }

 private:
  // Microseconds of each lease, from the call to its release.
  std::vector<double> measure() const {
    std::vector<double> figures;
    const auto begin = steady_clock::now();
    while (seconds_since(begin) < options_.seconds) {
      const auto called = steady_clock::now();
      measured_.lease(tokens_, options_.blocks).release();
      figures.push_back(1e6 * seconds_since(called));
    }
    return figures;
  }

  void add(const std::string& others, std::uint32_t count, std::vector<double> figures) {
    for (const auto& [suffix, share] : {std::pair{".p50_us", 0.5}, std::pair{".p99_us", 0.99}}) {
      const std::string name =
          "clients.lease_" + std::to_string(options_.blocks) + suffix + "." + others + ".";
      const double figure = percentile(figures, share);
      if (count == 1) alone_[name] = figure;
      report_.add(name + std::to_string(count), figure, "us",
                  count == 1 ? std::nullopt : std::optional(alone_[name]));
    }
  }

  const ClientsOptions& options_;
  Report& report_;
  const ScratchDirectory scratch_;
  const DaemonChild daemon_;
  const std::vector<Token> tokens_;
  const Engine measured_;
  std::vector<std::unique_ptr<Engine>> others_;
  std::map<std::string, double> alone_;
};

}  // namespace

void measure_clients(const ClientsOptions& options, Report& report) {
  Clients(options, report).run();
}

}  // namespace kvtier::bench
