// Load or compute: a prompt whose prefix is on a disk of a given rate, answered with each policy. On
// the CPU the bundled model's KV is small for what it costs to compute, so rates are chosen by how
// long the load takes beside computing (--ratios); at the shape of a large model on a GPU they are
// what a disk has (--rates-gb).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/daemon_child.h"
#include "bench/report.h"
#include "engine_adapter/engine/instance.h"
#include "engine_adapter/scheduler/generator.h"

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;
using engine::LoadPolicy;

struct Options {
  std::string model = KVTIER_BENCH_MODEL;
  std::string shape;  // random weights of it, instead
  std::string device = "cpu";
  std::string directory = "/tmp";
  std::uint32_t prompt = 2048;
  std::uint32_t chunk = 0;
  int rounds = 3;
  std::vector<double> ratios{0.1, 0.34, 0.6, 1.0, 1.7, 2.9, 10};
  std::vector<double> rates_gb;
};

constexpr struct {
  LoadPolicy policy;
  const char* name;
} kPolicies[] = {{LoadPolicy::always_load, "always_load"},
                 {LoadPolicy::always_compute, "always_compute"},
                 {LoadPolicy::always_both, "both"},
                 {LoadPolicy::automatic, "cost_model"}};

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "load-or-compute: %s\n", what.c_str());
  std::exit(1);
}

template <class T>
T need(Result<T> result) {
  if (!result) give_up(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

struct Machine {
  const Options& options;
  std::unique_ptr<engine::LoadedModel> loaded;
  engine::Instance instance;
  engine::GenerateRequest request;
};

double seconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

engine::GenerateResult answer(Machine& machine, engine::Generator& generator) {
  return need(generator.generate(machine.request));
}

// First-token times of each policy with the disk held to `bytes_per_s`, and whether every answer was
// the one without a cache.
void measure(Machine& machine, double bytes_per_s, const std::string& title,
             const std::vector<Token>& expected, std::vector<Row>& rows) {
  ::setenv("KVTIER_DISK_BYTES_PER_S", std::to_string(static_cast<std::uint64_t>(bytes_per_s)).c_str(), 1);
  const auto record = machine.instance.pool->layout().record_bytes;
  const std::uint64_t blocks = machine.options.prompt / engine::kBlockTokens + 8;
  DaemonChild daemon = DaemonChild::with_disk(machine.options.directory, 4 * blocks * record);
  auto client = need(Client::start({.cuda_device = need(engine::parse_device(machine.options.device)).cuda,
                                    .socket = daemon.socket(),
                                    .name = "bench"}));
  need(client->wait_connected(Clock::now() + 30s));
  auto cache = need(client->open(machine.instance.ns));
  const auto id = id_of(machine.instance.ns);
  const auto make = [&](LoadPolicy policy) {
    return std::make_unique<engine::Generator>(*machine.instance.model, *machine.instance.pool, id,
                                               cache.get(), policy);
  };
  answer(machine, *make(LoadPolicy::always_compute));
  need(client->flush(Clock::now() + 600s));

  double times[std::size(kPolicies)] = {};
  for (std::size_t p = 0; p < std::size(kPolicies); ++p) {
    auto generator = make(kPolicies[p].policy);
    std::vector<double> taken;
    // The first round is where the model learns what this disk and this machine are.
    for (int round = 0; round <= machine.options.rounds; ++round) {
      need(daemon.drop_memory());
      const auto result = answer(machine, *generator);
      if (result.tokens != expected) give_up(title + ": another answer with " + kPolicies[p].name);
      if (round > 0) taken.push_back(seconds_of(result.first_token));
    }
    times[p] = median(taken);
    rows.push_back({title + "_" + kPolicies[p].name, 1e3 * times[p], "ms"});
  }
  const double better = std::min(times[0], times[1]);
  rows.push_back({title + "_cost_model_over_better", times[3] / better, "ratio", 1.05});
  rows.push_back({title + "_both_over_better", times[2] / better, "ratio"});
}

}  // namespace
}  // namespace kvtier::bench
