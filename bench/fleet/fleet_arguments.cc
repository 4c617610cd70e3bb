#include <map>

#include "bench/fleet/fleet_command.h"
#include "bench/support/policy_names.h"

namespace kvtier::bench {
namespace {

using daemon::Admission;

template <class T>
using NamesOf = std::vector<std::pair<std::string, T>>;

NamesOf<Routing> routing_names() {
  NamesOf<Routing> names;
  for (const Routing routing : kRoutings) names.emplace_back(name(routing), routing);
  return names;
}

const CLI::Range kBlockCounts(0.0, double{1U << 28});

// Bytes a second, in powers of ten, as ports and disks are sold.
CLI::Validator as_byte_rate() {
  return CLI::AsNumberWithUnit(std::map<std::string, double>{{"b", 1},
                                                             {"kb", 1e3},
                                                             {"mb", 1e6},
                                                             {"gb", 1e9},
                                                             {"tb", 1e12},
                                                             {"k", 1e3},
                                                             {"m", 1e6},
                                                             {"g", 1e9},
                                                             {"t", 1e12}},
                               CLI::AsNumberWithUnit::CASE_INSENSITIVE, "RATE");
}

void add_byte_rate(CLI::App& command, const std::string& option, double& to,
                   const std::string& what, const std::string& shown) {
  command.add_option(option, to, what)
      ->transform(as_byte_rate())
      ->check(CLI::Range(1e6, 1e15))
      ->default_str(shown);
}

void add_hosts(CLI::App& command, FleetOptions& fleet) {
  command.add_option("--hosts", fleet.hosts, "Hosts")
      ->check(CLI::Range(1U, FleetOptions::kHostsMax))
      ->capture_default_str();
  command.add_option("--blocks", fleet.host_blocks, "Blocks in the memory of each host")
      ->check(CLI::Range(1U, 1U << 28))
      ->capture_default_str();
  command.add_option("--disk-blocks", fleet.disk_blocks, "Blocks on the disk of each host")
      ->check(kBlockCounts)
      ->capture_default_str();
  command.add_option("--admission", fleet.disk_admission, "Which blocks are written to disk")
      ->transform(CLI::CheckedTransformer(
          NamesOf<Admission>{{"all", Admission::all}, {"second_hit", Admission::second_hit}}))
      ->default_str("all");
  command.add_flag("!--no-answers", fleet.answers, "Do not tell the policy how long answers are");
}

void add_requests(CLI::App& command, FleetRun& run) {
  command.add_option("--trace", run.trace, "JSON lines of requests")
      ->required()
      ->check(CLI::ExistingFile);
  command.add_option("--block-tokens", run.block_tokens, "Tokens of the trace's blocks")
      ->check(CLI::Range(1U, 1024U))
      ->default_str("as its lengths say");
  command.add_option("--block-bytes", run.fleet.block_bytes, "Bytes of one")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(1.0, 1e12))
      ->default_str("64KiB a token");
  command
      .add_option("--copies", run.fleet.copies,
                  "Copies of the trace that run beside one another, with no block in common")
      ->check(CLI::Range(1U, 100'000U))
      ->capture_default_str();
  command.add_option("--spread", run.fleet.spread_seconds, "Seconds over which the copies begin")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command.add_option("--speed", run.fleet.speed, "Requests come so many times as fast")
      ->check(CLI::Range(0.001, 1e4))
      ->capture_default_str();
}

void add_routing(CLI::App& command, FleetRun& run) {
  command
      .add_option("--policy", run.policies, "Which block goes first at a host; may be given again")
      ->allow_extra_args(false)
      ->transform(CLI::CheckedTransformer(kPolicyNames))
      ->default_str("lru hit_density");
  command
      .add_option("--routing", run.routings,
                  "Which host a request goes to: any, one after the other, by its first blocks, or "
                  "by who has most of it cached; may be given again")
      ->allow_extra_args(false)
      ->transform(CLI::CheckedTransformer(routing_names()))
      ->default_str("random round_robin session cache");
  command
      .add_option("--session-blocks", run.fleet.session_blocks,
                  "With session: the first blocks that tell the host")
      ->check(CLI::Range(1U, 1'000'000U))
      ->capture_default_str();
  command
      .add_option("--load-weight", run.fleet.load_weight,
                  "With cache: blocks of prefix that a computed block of load is worth")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command.add_option("--load-seconds", run.fleet.load_seconds, "With cache: a load fades in them")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command.add_option("--seed", run.fleet.seed, "Of what is random")->capture_default_str();
}

void add_remote(CLI::App& command, FleetRun& run) {
  command
      .add_option("--remote-blocks", run.remote_blocks,
                  "Blocks in the store that all share; 0 for none; may be given again")
      ->allow_extra_args(false)
      ->check(kBlockCounts)
      ->default_str("0 50000");
  command
      .add_option("--network-rate", run.network_bytes_per_s,
                  "Bytes a second of a host's port, each way; may be given again")
      ->allow_extra_args(false)
      ->transform(as_byte_rate())
      ->check(CLI::Range(1e6, 1e15))
      ->default_str("3GB");
  command
      .add_option("--network-latency-ms", run.fleet.rates.network_latency_ms,
                  "Of a question to the store and its answer")
      ->check(CLI::Range(0.0, 1e5))
      ->capture_default_str();
  add_byte_rate(command, "--remote-rate", run.fleet.rates.remote_bytes_per_s,
                "Bytes a second of the store, each way", "as much as the ports take");
  command.add_option("--remote-admission", run.fleet.remote_admission, "Which blocks go there")
      ->transform(CLI::CheckedTransformer(NamesOf<RemoteAdmission>{
          {"all", RemoteAdmission::all}, {"second_use", RemoteAdmission::second_use}}))
      ->default_str("all");
}

void add_host_rates(CLI::App& command, Rates& rates) {
  command
      .add_option("--compute-rate", rates.compute_tokens_per_s,
                  "Tokens a second that a host computes of a prompt, with none before them")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  command.add_option("--half-rate-tokens", rates.half_rate_tokens, "Behind so many, half as many")
      ->check(CLI::Range(1.0, 1e12))
      ->capture_default_str();
  command.add_option("--fixed-ms", rates.fixed_ms, "That each first token takes beside")
      ->check(CLI::Range(0.0, 1e5))
      ->capture_default_str();
  add_byte_rate(command, "--link-rate", rates.link_bytes_per_s,
                "Bytes a second from host memory to the GPU", "52GB");
  add_byte_rate(command, "--disk-rate", rates.disk_bytes_per_s, "Bytes a second from disk",
                "1.9GB");
  command.add_flag("--always-load", rates.always_load,
                   "Load all that is found, even where computing takes less time");
}

}  // namespace

CLI::App* add_fleet(CLI::App& app, FleetRun& run) {
  auto* fleet = app.add_subcommand(
      "fleet",
      "A trace over a fleet: hits and first tokens by routing, and what a shared store adds");
  add_requests(*fleet, run);
  add_hosts(*fleet, run.fleet);
  add_routing(*fleet, run);
  add_remote(*fleet, run);
  add_host_rates(*fleet, run.fleet.rates);
  fleet->add_option("--threads", run.threads, "That simulate, one fleet each; memory grows by them")
      ->check(CLI::Range(1U, 1024U))
      ->default_str("as many as processors");
  return fleet;
}

}  // namespace kvtier::bench
