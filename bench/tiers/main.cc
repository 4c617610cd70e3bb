// kvtier-bench: how fast the parts of kvtier are, beside what bounds them.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "bench/fleet/fleet_command.h"
#include "bench/support/program.h"
#include "bench/tiers/commands.h"

namespace kvtier::bench {
namespace {

constexpr const char* kExamples = R"(
Examples:
  kvtier-bench disk --dir /var/lib/kvtier
      Reads and writes through the disk tier beside a bare io_uring loop on the same file system.
      Needs 9 GiB there; cleans up after itself.
  kvtier-bench disk --dir /mnt/nvme --size 1MiB --bytes 32GiB --seconds 2
      One record size, over more bytes than a device's own cache holds.
  kvtier-bench age --dir /mnt/nvme --bytes 32GiB --age 7200
      The same of a full tier, before and after it was used by models with records of three sizes.
  kvtier-bench index --blocks 10000 --blocks 10000000 --json
      The index with few and with many blocks; a restart with each.
  kvtier-bench turnover --dir /var/lib/kvtier
      Ten million records of which as many are replaced: the index's writes, and what reads feel of them. Takes 3 GiB.
  kvtier-bench rebuild --dir /var/lib/kvtier
      The index of 100 GiB of segments made anew, beside reading all of them. They are sparse, and take 0.5 GiB.
  kvtier-bench lookup --seconds 10
      match and lease as an engine sees them, idle and while the disk tier writes.
  kvtier-bench clients --clients 1 --clients 128 --json
      One client's lease with one and with 128 of them connected, the others idle or holding leases.
  kvtier-bench remote --url redis+unix:///run/redis.sock --seconds 2
      Records of 1 MiB to and from a Redis through the remote store, beside a bare hiredis loop of the same shape.
      Takes 128 MiB there; cleans up after itself.
  kvtier-bench trace --trace requests.jsonl --blocks 2000 --blocks 20000 --json
      What caches of 2,000 and of 20,000 blocks have of a trace, by policy, and what the best could have. A line of
      it is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [block, ...]}.
  kvtier-bench fleet --trace requests.jsonl --hosts 16 --blocks 1250 --remote-blocks 0 --remote-blocks 50000
      The trace over 16 hosts: what they hit and when first tokens come, by routing, without and with a store that
      all share (docs/fleet.md).
  kvtier-bench fleet --trace requests.jsonl --hosts 1000 --copies 62 --routing session --routing cache --json
      A fleet of 1,000 for 62 times as many users.

A row's limit is what the figure is held against: the bare loop, the smaller index, the idle daemon, the
client alone, the fleet without a shared store or a fixed bound; the ratio is value / limit.

Exit status: 0 measured; 1 it could not be measured; 2 usage.
)";

struct Arguments {
  DiskOptions disk;
  AgeOptions age;
  IndexOptions index;
  TurnoverOptions turnover;
  RebuildOptions rebuild;
  LookupOptions lookup;
  ClientsOptions clients;
  RemoteBenchOptions remote;
  TraceOptions trace;
  FleetRun fleet;
};

// Of what is a number of bytes by then.
const CLI::Validator kRecordSize(
    [](const std::string& text) -> std::string {
      const std::uint64_t size = std::stoull(text);
      if (size % 4096 == 0 && size >= 8192 && size <= 4U << 20) return {};
      return "must be a multiple of 4 KiB from 8KiB to 4MiB";
    },
    "", "record size");

void add_turns(CLI::App& command, TurnOptions& options) {
  command.add_option("--seconds", options.seconds, "Length of a turn")
      ->check(CLI::Range(0.05, 600.0))
      ->capture_default_str();
  command.add_option("--rounds", options.rounds, "Turns of each; the median counts")
      ->check(CLI::Range(1U, 1000U))
      ->capture_default_str();
}

CLI::App* add_disk(CLI::App& app, DiskOptions& options) {
  auto* disk = app.add_subcommand("disk", "The disk tier beside a bare io_uring loop");
  disk->add_option("--dir", options.directory, "An existing directory on the device to measure")
      ->required()
      ->check(CLI::ExistingDirectory);
  add_turns(*disk, options.turns);
  disk->add_option("--bytes", options.bytes, "Records in the tier, and size of the loop's file")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("4GiB");
  disk->add_option("--size", options.sizes, "Record size, from 8KiB to 4MiB; may be given again")
      ->transform(CLI::AsSizeValue(false))
      ->allow_extra_args(false)
      ->check(kRecordSize)
      ->default_str("256KiB 1MiB 2MiB");
  return disk;
}

CLI::App* add_age(CLI::App& app, AgeOptions& options) {
  auto* age = app.add_subcommand("age", "The disk tier when models of all sizes have used it");
  age->add_option("--dir", options.directory, "An existing directory on the device to measure")
      ->required()
      ->check(CLI::ExistingDirectory);
  age->add_option("--age", options.age_seconds, "Seconds for which it is used")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  add_turns(*age, options.turns);
  age->add_option("--bytes", options.bytes, "Of the disk tier; the loop's file has half of it")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("8GiB");
  age->add_option("--size", options.sizes, "Record size of a model; may be given again")
      ->transform(CLI::AsSizeValue(false))
      ->allow_extra_args(false)
      ->check(kRecordSize)
      ->default_str("256KiB 1MiB 2MiB");
  age->add_option("--measured", options.measured, "Of these sizes, the one that is measured")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("1MiB");
  age->add_option("--kvtierd", options.kvtierd, "The daemon to measure")
      ->check(CLI::ExistingFile)
      ->default_str("the one beside this program");
  return age;
}

CLI::App* add_index(CLI::App& app, IndexOptions& options) {
  auto* index = app.add_subcommand("index", "The index, the eviction order and the directory");
  index->add_option("--blocks", options.blocks, "Blocks in the index; may be given again")
      ->allow_extra_args(false)
      ->check(CLI::Range(10'000U, 100'000'000U))
      ->default_str("10000 10000000");
  index->add_option("--dir", options.directory, "Where to keep the restarted store")
      ->check(CLI::ExistingDirectory)
      ->default_str("the directory for temporary files");
  index->add_flag("!--no-restart", options.restart, "Leave the restart out");
  return index;
}

CLI::App* add_turnover(CLI::App& app, TurnoverOptions& options) {
  auto* turnover =
      app.add_subcommand("turnover", "The disk tier's index while records are replaced");
  turnover->add_option("--dir", options.directory, "Where to keep the store")
      ->check(CLI::ExistingDirectory)
      ->default_str("the directory for temporary files");
  turnover->add_option("--blocks", options.blocks, "Records in the index")
      ->check(CLI::Range(1'000'000U, 100'000'000U))
      ->capture_default_str();
  turnover->add_option("--turnovers", options.turnovers, "So many are replaced")
      ->check(CLI::Range(std::uint64_t{1'000}, std::uint64_t{1'000'000'000}))
      ->capture_default_str();
  turnover
      ->add_option("--seconds", options.seconds, "Of reads, idle and while records are replaced")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  turnover->add_option("--rate", options.per_second, "A second, while reads are measured")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  return turnover;
}

CLI::App* add_rebuild(CLI::App& app, RebuildOptions& options) {
  auto* rebuild = app.add_subcommand("rebuild", "The index made anew from the segments");
  rebuild->add_option("--dir", options.directory, "Where to keep the store")
      ->check(CLI::ExistingDirectory)
      ->default_str("the directory for temporary files");
  rebuild->add_option("--bytes", options.bytes, "Of its segments")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("100GiB");
  rebuild->add_option("--size", options.record_bytes, "Record size, from 8KiB to 4MiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(kRecordSize)
      ->default_str("1MiB");
  rebuild->add_option("--rounds", options.rounds, "Turns of each; the median counts")
      ->check(CLI::Range(1U, 100U))
      ->capture_default_str();
  return rebuild;
}

CLI::App* add_lookup(CLI::App& app, LookupOptions& options) {
  auto* lookup = app.add_subcommand("lookup", "match and lease, idle and under writes");
  lookup->add_option("--seconds", options.seconds, "Length of each of the two parts")
      ->check(CLI::Range(0.5, 600.0))
      ->capture_default_str();
  lookup->add_option("--dir", options.directory, "Where to keep the daemon's disk tier")
      ->check(CLI::ExistingDirectory)
      ->default_str("the directory for temporary files");
  lookup->add_option("--kvtierd", options.kvtierd, "The daemon to measure")
      ->check(CLI::ExistingFile)
      ->default_str("the one beside this program");
  return lookup;
}

CLI::App* add_clients(CLI::App& app, ClientsOptions& options) {
  auto* clients = app.add_subcommand("clients", "A lease, by the number of connected clients");
  clients->add_option("--clients", options.clients, "So many are connected; may be given again")
      ->allow_extra_args(false)
      ->check(CLI::Range(1U, 128U))  // as many as kvtierd lets one user have
      ->default_str("1 4 16 64 128");
  clients->add_option("--blocks", options.blocks, "Blocks of a lease")
      ->check(CLI::Range(1U, 16'384U))
      ->capture_default_str();
  clients->add_option("--seconds", options.seconds, "Length of each part, two for each number")
      ->check(CLI::Range(0.05, 600.0))
      ->capture_default_str();
  clients->add_option("--dir", options.directory, "Where to keep the daemon's socket")
      ->check(CLI::ExistingDirectory)
      ->default_str("the directory for temporary files");
  clients->add_option("--kvtierd", options.kvtierd, "The daemon to measure")
      ->check(CLI::ExistingFile)
      ->default_str("the one beside this program");
  return clients;
}

CLI::App* add_remote(CLI::App& app, RemoteBenchOptions& options) {
  auto* remote = app.add_subcommand("remote", "The remote store beside a bare hiredis loop");
  remote->add_option("--url", options.url, "A Redis to measure with, that nothing else uses")
      ->required();
  add_turns(*remote, options.turns);
  remote->add_option("--record-bytes", options.record_bytes, "Record size, from 8KiB to 4MiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(kRecordSize)
      ->default_str("1MiB");
  remote->add_option("--connections", options.connections, "Of the store and of the loop")
      ->check(CLI::Range(1U, 64U))
      ->capture_default_str();
  return remote;
}

CLI::App* add_trace(CLI::App& app, TraceOptions& options) {
  using daemon::Admission;
  auto* trace = app.add_subcommand("trace", "Shares of hits of a trace of requests, by policy");
  trace->add_option("--trace", options.trace, "JSON lines of requests")
      ->required()
      ->check(CLI::ExistingFile);
  trace->add_option("--blocks", options.blocks, "Blocks in host memory; may be given again")
      ->allow_extra_args(false)
      ->check(CLI::Range(1U, 1U << 28))
      ->default_str("1000 2000 5000 10000 20000");
  trace->add_option("--disk-blocks", options.disk_blocks, "Blocks on disk beside them")
      ->check(CLI::Range(0U, 1U << 28))
      ->capture_default_str();
  trace->add_option("--admission", options.admission, "Which blocks are written to disk")
      ->transform(CLI::CheckedTransformer(std::vector<std::pair<std::string, Admission>>{
          {"all", Admission::all},
          {"second_hit", Admission::second_hit},
          {"expected_reuse", Admission::expected_reuse}}))
      ->default_str("all");
  trace
      ->add_option(
          "--write-share", options.write_share,
          "With expected_reuse: what may be written, as a part of what comes; lru beside it "
          "writes all")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  trace->add_option("--block-tokens", options.block_tokens, "Tokens of the trace's blocks")
      ->check(CLI::Range(1U, 1024U))
      ->default_str("as its lengths say");
  trace->add_option("--block-bytes", options.block_bytes, "Bytes of one, for what is written")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("64KiB a token");
  trace->add_flag("!--no-answers", options.answers, "Do not tell the policy how long answers are");
  trace
      ->add_option("--cost-blocks", options.cost_blocks,
                   "Blocks in the index that costs are measured in; 0 for none")
      ->check(CLI::Range(0U, 100'000'000U))
      ->capture_default_str();
  return trace;
}

int run(int argc, char** argv) {
  Arguments arguments;
  for (auto* directory :
       {&arguments.index.directory, &arguments.turnover.directory, &arguments.rebuild.directory,
        &arguments.lookup.directory, &arguments.clients.directory}) {
    *directory = std::filesystem::temp_directory_path();
  }
  arguments.age.kvtierd = arguments.lookup.kvtierd = arguments.clients.kvtierd = kvtierd_beside();
  CLI::App app{"How fast the parts of kvtier are, beside what bounds them.", "kvtier-bench"};
  app.footer(kExamples);
  app.require_subcommand(1);
  auto* disk = add_disk(app, arguments.disk);
  auto* age = add_age(app, arguments.age);
  auto* index = add_index(app, arguments.index);
  auto* turnover = add_turnover(app, arguments.turnover);
  auto* rebuild = add_rebuild(app, arguments.rebuild);
  auto* lookup = add_lookup(app, arguments.lookup);
  auto* clients = add_clients(app, arguments.clients);
  auto* remote = add_remote(app, arguments.remote);
  auto* trace = add_trace(app, arguments.trace);
  auto* fleet = add_fleet(app, arguments.fleet);
  for (auto* command : {disk, age, index, turnover, rebuild, lookup, clients, remote, trace, fleet})
    command->footer(kExamples);
  return run_program(app, argc, argv, [&](Report& report) {
    if (*disk) measure_disk(arguments.disk, report);
    if (*age) measure_ageing(arguments.age, report);
    if (*index) measure_index(arguments.index, report);
    if (*turnover) measure_turnover(arguments.turnover, report);
    if (*rebuild) measure_rebuild(arguments.rebuild, report);
    if (*lookup) measure_lookup(arguments.lookup, report);
    if (*clients) measure_clients(arguments.clients, report);
    if (*remote) measure_remote(arguments.remote, report);
    if (*trace) measure_trace(arguments.trace, report);
    if (*fleet) measure_fleet(arguments.fleet, report);
  });
}

}  // namespace
}  // namespace kvtier::bench

int main(int argc, char** argv) {
  // What the measured parts log goes to stderr, and only if it is worth a look.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("kvtier-bench"));
  spdlog::set_level(spdlog::level::warn);
  return kvtier::bench::run(argc, argv);
}
