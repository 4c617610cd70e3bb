#include "tests/protocol/figures.h"

#include <capnp/schema.h>

#include <cstdio>
#include <map>
#include <string>

#include "core/wire/kvtier.capnp.h"

namespace kvtier::protocol {
namespace {

std::map<std::size_t, std::string> names_of_messages() {
  std::map<std::size_t, std::string> names;
  const capnp::StructSchema schema = capnp::Schema::from<wire::Message>();
  for (const auto field : schema.getUnionFields())
    names[field.getProto().getDiscriminantValue()] = field.getProto().getName().cStr();
  return names;
}

void print_count(const std::string& name, std::uint64_t count) {
  if (count > 0)
    std::printf("  %-18s %llu\n", name.c_str(), static_cast<unsigned long long>(count));
}

void print_latencies(const char* what, const Latencies& alone, const Latencies& beside) {
  const auto print = [](const Latencies& l) {
    std::printf(
        "p50 %lld, p99 %lld, max %lld us (%llu)", static_cast<long long>(l.quantile(0.5).count()),
        static_cast<long long>(l.quantile(0.99).count()), static_cast<long long>(l.max().count()),
        static_cast<unsigned long long>(l.count()));
  };
  std::printf("  %-18s alone ", what);
  print(alone);
  std::printf("; beside the hostile ");
  print(beside);
  std::printf("\n");
}

}  // namespace

void print_figures(const Tally& tally) {
  const auto names = names_of_messages();
  const auto name_of = [&](std::size_t kind) {
    return names.contains(kind) ? names.at(kind) : "kind " + std::to_string(kind);
  };
  std::printf("%llu operations; messages sent:\n",
              static_cast<unsigned long long>(tally.operations.load()));
  for (std::size_t i = 0; i < Tally::kMessages; ++i) print_count(name_of(i), tally.sent[i]);
  std::printf("other acts:\n");
  for (std::size_t i = 0; i < kActs; ++i) print_count(kActNames[i], tally.acts[i]);
  std::printf("came back:\n");
  for (std::size_t i = 0; i < Tally::kMessages; ++i) print_count(name_of(i), tally.answered[i]);
  print_count("connections ended", tally.ended);
  print_count("slots given", tally.slots_given);
  print_count("blocks taken", tally.blocks_taken);
  print_count("blocks leased", tally.blocks_leased);
  print_count("blocks from disk", tally.blocks_read);
  std::printf("errors among them:\n");
  for (std::size_t i = 1; i < Tally::kCodes; ++i)
    print_count(name(static_cast<Errc>(i)), tally.refused[i]);
  const auto& honest = tally.honest;
  std::printf("the honest client:\n");
  print_count("blocks right", honest.blocks_right);
  std::printf("  %-18s %llu\n", "blocks wrong",
              static_cast<unsigned long long>(honest.blocks_wrong.load()));
  print_count("blocks missed", honest.blocks_missed);
  print_count("blocks written", honest.blocks_written);
  print_count("deadlines missed", honest.deadlines);
  print_count("connections", honest.connects);
  print_latencies("lease", honest.lease[0], honest.lease[1]);
  print_latencies("load from memory", honest.memory[0], honest.memory[1]);
  print_latencies("load with disk", honest.disk[0], honest.disk[1]);
  print_latencies("round trip", tally.probe.round_trip[0], tally.probe.round_trip[1]);
}

void judge_slowdown(Tally& tally, double most) {
  const auto alone = tally.honest.memory[0].quantile(0.99);
  const auto beside = tally.honest.memory[1].quantile(0.99);
  if (static_cast<double>(beside.count()) <= most * static_cast<double>(alone.count())) return;
  tally.failures.add("the honest client's p99 is " + std::to_string(beside.count()) +
                     " us beside the hostile, and " + std::to_string(alone.count()) + " us alone");
}

}  // namespace kvtier::protocol
