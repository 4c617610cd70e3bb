#include "engine_adapter/reference/cli/plan_trace.h"

#include <algorithm>
#include <cstdio>

#include "core/terminal/table.h"
#include "core/terminal/units.h"

namespace kvtier::engine::cli {
namespace {

using daemon::EvictionPolicy;

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

// The sizes given, less and more of memory, and less and more of the disk; or parts of what the
// whole trace takes.
std::vector<TracePlan::Size> sizes_around(std::uint64_t host, std::uint64_t disk,
                                          std::uint64_t all) {
  std::vector<TracePlan::Size> sizes;
  if (host == 0) {
    for (const std::uint64_t part : {64U, 32U, 16U, 8U, 4U, 2U, 1U})
      sizes.push_back({all / part, disk});
    return sizes;
  }
  sizes = {{host, disk}, {host / 2, disk}, {2 * host, disk}, {4 * host, disk}};
  if (disk == 0) {
    for (const std::uint64_t times : {4U, 16U}) sizes.push_back({host, times * host});
  } else {
    for (const std::uint64_t of : {std::uint64_t{0}, disk / 2, 2 * disk})
      sizes.push_back({host, of});
  }
  return sizes;
}

Result<void> replay(const daemon::Trace& trace, std::uint64_t block_bytes, TracePlan::Size& size) {
  const std::uint64_t host = size.host_bytes / block_bytes;
  // What is larger than the trace is as large as it.
  const auto blocks = [&](std::uint64_t bytes) {
    return std::min(bytes / block_bytes, trace.different_blocks + 1);
  };
  if (host == 0) {
    return make_error(Errc::invalid, "a host tier of " + ctl::human_bytes(size.host_bytes) +
                                         " has no room for a block of the trace, of " +
                                         ctl::human_bytes(block_bytes) +
                                         ": give more with --host-tier");
  }
  const auto done = daemon::replay(trace, {EvictionPolicy::hit_density, blocks(size.host_bytes),
                                           blocks(size.disk_bytes), daemon::Admission::all, false});
  if (!done) return done.error();
  size.share = done->share();
  size.host = done->share(Tier::host);
  size.optimum = daemon::replay_optimum(trace, blocks(size.host_bytes + size.disk_bytes)).share();
  return {};
}

std::string what_it_buys(const TracePlan& plan) {
  const auto& given = plan.sizes[plan.given];
  std::string text;
  const auto say = [&](const std::string& what, const TracePlan::Size& size) {
    char more[32];
    std::snprintf(more, sizeof more, "%+.1f", 100 * (size.share - given.share));
    text += what + " (" + ctl::human_bytes(size.host_bytes) + " and " +
            ctl::human_bytes(size.disk_bytes) + "): " + more + " points of hits.\n";
  };
  for (const auto& size : plan.sizes) {
    if (size.disk_bytes == given.disk_bytes && size.host_bytes == 2 * given.host_bytes)
      say("Twice the host memory", size);
    if (size.host_bytes != given.host_bytes) continue;
    if (given.disk_bytes != 0 && size.disk_bytes == 2 * given.disk_bytes)
      say("Twice the disk", size);
    if (given.disk_bytes == 0 && size.disk_bytes == 4 * given.host_bytes)
      say("A disk of four times the memory", size);
    if (given.disk_bytes != 0 && size.disk_bytes == 0) say("No disk", size);
  }
  return text;
}

}  // namespace

Result<TracePlan> plan_trace(const daemon::Trace& trace, const std::string& format,
                             std::uint64_t record_bytes, std::uint32_t record_tokens,
                             std::uint64_t host_bytes, std::uint64_t disk_bytes) {
  TracePlan plan;
  plan.format = format;
  plan.block_bytes = std::max<std::uint64_t>(record_bytes * trace.block_tokens / record_tokens, 1);
  plan.requests = trace.requests.size();
  plan.seconds = trace.seconds();
  plan.endless = daemon::replay_endless(trace).share();
  plan.endless_bytes = trace.different_blocks * plan.block_bytes;
  plan.sizes = sizes_around(host_bytes, disk_bytes, plan.endless_bytes);
  // A small trace may have fewer blocks than parts are made of it.
  if (host_bytes == 0)
    std::erase_if(plan.sizes, [&](const auto& size) { return size.host_bytes < plan.block_bytes; });
  const TracePlan::Size given = plan.sizes.front();
  std::ranges::sort(plan.sizes, {}, [](const TracePlan::Size& size) {
    return std::pair(size.disk_bytes, size.host_bytes);
  });
  const auto same = [&](const TracePlan::Size& size) {
    return size.host_bytes == given.host_bytes && size.disk_bytes == given.disk_bytes;
  };
  plan.given =
      static_cast<std::size_t>(std::ranges::find_if(plan.sizes, same) - plan.sizes.begin());
  for (TracePlan::Size& size : plan.sizes) {
    if (auto good = replay(trace, plan.block_bytes, size); !good) return good.error();
  }
  return plan;
}

std::string to_text(const TracePlan& plan) {
  ctl::Table table({{"HOST", true},
                    {"DISK", true},
                    {"HITS", true},
                    {"IN MEMORY", true},
                    {"BEST POSSIBLE", true}});
  for (const auto& size : plan.sizes) {
    table.add({ctl::human_bytes(size.host_bytes), ctl::human_bytes(size.disk_bytes),
               percent(size.share), percent(size.host), percent(size.optimum)});
  }
  return "The trace: " + std::to_string(plan.requests) + " requests in " +
         std::to_string(static_cast<std::uint64_t>(plan.seconds)) + " s; " + percent(plan.endless) +
         " of their blocks were there before, which no cache exceeds and one of " +
         ctl::human_bytes(plan.endless_bytes) + " reaches, in " + plan.format + ".\n\n" +
         table.text() + "\n" + what_it_buys(plan);
}

ctl::Json to_json(const TracePlan& plan) {
  ctl::Json json{{"format", plan.format},
                 {"requests", plan.requests},
                 {"seconds", plan.seconds},
                 {"block_bytes", plan.block_bytes},
                 {"endless", {{"share", plan.endless}, {"bytes", plan.endless_bytes}}},
                 {"sizes", ctl::Json::array()}};
  for (const auto& size : plan.sizes) {
    json["sizes"].push_back({{"host_bytes", size.host_bytes},
                             {"disk_bytes", size.disk_bytes},
                             {"hit_share", size.share},
                             {"host_share", size.host},
                             {"optimum_share", size.optimum}});
  }
  return json;
}

}  // namespace kvtier::engine::cli
