#include <string>

#include "bench/gpu/gpu_engine_setup.h"
#include "bench/support/daemon_child.h"
#include "bench/support/raw_disk.h"
#include "kvtier/client.h"

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr auto kPatience = 60s;

double ms(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

class Reuse {
 public:
  Reuse(const GpuEngineOptions& options, Report& report)
      : options_(options),
        report_(report),
        setup_(options),
        daemon_(options.kvtierd, options.directory,
                {.host_capacity = "24GiB",
                 .host_extent = "1GiB",
                 .disk_capacity = "32GiB",
                 .device_capacity = "16GiB"}),
        client_(need(Client::start({.cuda_device = 0,
                                    .socket = daemon_.socket(),
                                    .name = "kvtier-gpu-engine-bench",
                                    .slots_ahead = 1024,
                                    .write_backs_queued_max = 8192}))) {
    need(client_->wait_connected(steady_clock::now() + kPatience));
    cache_ = need(client_->open(setup_.instance.ns));
    need(client_->flush(steady_clock::now() + kPatience));
  }

  void run() {
    computed_ = measure_cold();
    measure_own_pages();
    measure_warm("device, in place", Tier::device, TierSet{}, 100);
    measure_warm("host", Tier::host, TierSet{}.with(Tier::device), 25);
    const double disk =
        measure_warm("disk", Tier::disk, TierSet{}.with(Tier::device).with(Tier::host), 4);
    const RecordLayout& layout = setup_.pool().layout();
    const std::size_t blocks = blocks_matchable(options_.prompt_tokens, layout.block_tokens);
    const double bytes = static_cast<double>(blocks * layout.record_bytes);
    RawDisk raw(options_.directory / "raw", 4ULL << 30);
    report_.add("from disk, with all that a first token takes", bytes / disk / 1e6, "GB/s",
                raw.run(Direction::read, 1U << 20, 2) / 1e9);
  }

 private:
  engine::GenerateResult answer(Cache* cache, std::uint64_t seed) {
    engine::Generator generator(setup_.model(), setup_.pool(), id_of(setup_.instance.ns), cache,
                                engine::LoadPolicy::always_load);
    return need(generator.generate({.prompt = setup_.prompt(options_.prompt_tokens, seed),
                                    .tokens_max = 1,
                                    .cache_deadline = kPatience}));
  }

  // Milliseconds until the pages of a computed prompt could be used again.
  double cold_ms(Cache* cache, std::uint64_t seed) {
    const auto begin = steady_clock::now();
    answer(cache, seed);
    return ms(steady_clock::now() - begin);
  }

  // The daemon's extents are made as they fill, each in a good part of a second: beforehand.
  void fill_tiers() {
    for (std::uint64_t round = 0; round < 3; ++round) {
      answer(cache_.get(), 9000 + round);
      need(client_->flush(steady_clock::now() + kPatience));
    }
    daemon_.drop({});  // from all tiers
    need(client_->flush(steady_clock::now() + kPatience));
  }

  // By turns, so that the card is as warm for one as for the other. Returns the first token's
  // milliseconds without a cache.
  double measure_cold() {
    answer(nullptr, 1000);  // finds algorithms, makes room
    fill_tiers();
    const ClientStats before = client_->stats();
    std::vector<double> without, with, first;
    for (std::uint32_t round = 0; round < options_.rounds; ++round) {
      without.push_back(cold_ms(nullptr, 1000 + round));
      first.push_back(ms(answer(nullptr, 1000 + round).first_token));
      with.push_back(cold_ms(cache_.get(), kPrompt + round));
      need(client_->flush(steady_clock::now() + kPatience));
    }
    const double plain = median(without);
    const double computed = median(first);
    report_.add("cold prompt, no cache", plain, "ms");
    report_.add("cold prompt, written back", median(with), "ms", 1.02 * plain);
    const ClientStats stats = client_->stats();
    const double blocks = options_.rounds * (options_.prompt_tokens / engine::kBlockTokens);
    report_.add("written back", static_cast<double>(stats.blocks_written - before.blocks_written),
                "blocks", blocks);
    report_.add("dropped", static_cast<double>(stats.blocks_dropped - before.blocks_dropped),
                "blocks");
    report_.add(first_token("computed"), computed, "ms");
    const auto other =
        options_.baseline.find("pytorch prefill " + std::to_string(options_.prompt_tokens));
    if (other == options_.baseline.end()) return computed;
    report_.add(first_token("computed by PyTorch"), other->second, "ms");
    return std::min(computed, other->second);
  }

  // What one request left in the engine's pages for the next.
  void measure_own_pages() {
    engine::Generator generator(setup_.model(), setup_.pool(), id_of(setup_.instance.ns), nullptr,
                                engine::LoadPolicy::always_load, {}, true);
    std::vector<double> first;
    std::uint32_t reused = 0;
    for (std::uint32_t round = 0; round <= options_.rounds; ++round) {
      const auto result = need(generator.generate(
          {.prompt = setup_.prompt(options_.prompt_tokens, kPrompt), .tokens_max = 1}));
      if (round == 0) continue;
      first.push_back(ms(result.first_token));
      reused = result.reused_own;
      if (reused < options_.prompt_tokens / 10 * 9) {
        throw std::runtime_error("only " + std::to_string(reused) + " tokens come from own pages");
      }
    }
    report_.add(first_token("own pages"), median(first), "ms");
    report_.add("of the prompt from own pages", reused, "tokens");
  }

  // Returns the milliseconds.
  double measure_warm(const std::string& from, Tier tier, TierSet dropped, double times_sooner) {
    std::vector<double> first;
    std::uint32_t reused = 0;
    for (std::uint32_t round = 0; round <= options_.rounds; ++round) {
      drop(dropped);
      const auto result = answer(cache_.get(), kPrompt);
      if (round == 0) continue;
      first.push_back(ms(result.first_token));
      reused = result.reused_by_tier[index_of(tier)];
      if (reused < options_.prompt_tokens / 10 * 9) {
        throw std::runtime_error("only " + std::to_string(reused) + " tokens come from " + from);
      }
    }
    const double typical = median(first);
    report_.add(first_token(from), typical, "ms", computed_ / times_sooner);
    measure_load(from, dropped);
    report_.add("sooner than computed, from " + from, computed_ / typical, "times", times_sooner);
    report_.add("of the prompt from " + from, reused, "tokens");
    return typical;
  }

  // Nobody holds anything any more by then: promotions do, for a while.
  void drop(TierSet tiers) {
    if (tiers.empty()) return;
    need(client_->flush(steady_clock::now() + kPatience));
    daemon_.drop(tiers);
  }

  // What of it is the cache's: the lease, with the blocks in memory, then the load without a model.
  void measure_load(const std::string& from, TierSet dropped) {
    const auto prompt = setup_.prompt(options_.prompt_tokens, kPrompt);
    std::vector<double> lease_ms, call_ms, load_ms;
    for (std::uint32_t round = 0; round < options_.rounds; ++round) {
      drop(dropped);
      engine::Sequence sequence(setup_.pool(), id_of(setup_.instance.ns), options_.prompt_tokens);
      need(sequence.reserve(options_.prompt_tokens));
      const auto begin = steady_clock::now();
      Lease lease = need(cache_->lease(prompt, cache_->match(prompt).blocks, begin + kPatience));
      Pages pages;
      pages.records = sequence.records().first(lease.wait_ready(begin + kPatience));
      pages.in_place = dropped.empty();
      const auto leased = steady_clock::now();
      Load load = need(lease.load_into(pages, setup_.model().stream()));
      const auto called = steady_clock::now();
      load.finish();
      load_ms.push_back(ms(steady_clock::now() - leased));
      call_ms.push_back(ms(called - leased));
      lease_ms.push_back(ms(leased - begin));
    }
    report_.add("of it, from " + from + ": lease", median(lease_ms), "ms");
    report_.add("of it, from " + from + ": load_into", median(call_ms), "ms");
    report_.add("of it, from " + from + ": load_into and the load", median(load_ms), "ms");
  }

  std::string first_token(const std::string& from) const {
    return "first token of " + std::to_string(options_.prompt_tokens) + ", " + from;
  }

  static constexpr std::uint64_t kPrompt = 5000;  // the first of those that are written back

  const GpuEngineOptions& options_;
  Report& report_;
  EngineSetup setup_;
  DaemonChild daemon_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Cache> cache_;
  double computed_ = 0;
};

}  // namespace

void measure_engine_reuse(const GpuEngineOptions& options, Report& report) {
  Reuse(options, report).run();
}

}  // namespace kvtier::bench
