#include "ctl/render.h"

#include "core/terminal/table.h"
#include "core/terminal/units.h"

namespace kvtier::ctl {
namespace {

std::string number(const Json& value) {
  return std::to_string(value.get<std::uint64_t>());
}
std::string bytes(const Json& value) {
  return human_bytes(value.get<std::uint64_t>());
}

std::uint64_t sum(const Json& per_tier) {
  std::uint64_t total = 0;
  for (const Json& value : per_tier) total += value.get<std::uint64_t>();
  return total;
}

std::string joined(const Json& names) {
  std::string text;
  for (const Json& name : names) text += (text.empty() ? "" : ",") + name.get<std::string>();
  return text.empty() ? "-" : text;
}

std::string render_tiers(const Json& tiers) {
  Table table({{"TIER"},
               {"STATE"},
               {"USED", true},
               {"RESERVED", true},
               {"TAKEN", true},
               {"CAP", true},
               {"PINNED", true},
               {"HINTED", true},
               {"BLOCKS", true},
               {"HITS", true},
               {"IN", true},
               {"OUT", true},
               {"FAILED", true},
               {"NOTE"}});
  for (const Json& t : tiers) {
    table.add({t["tier"], t["online"].get<bool>() ? "online" : "offline", bytes(t["used_bytes"]),
               bytes(t["reserved_bytes"]), bytes(t["taken_bytes"]), bytes(t["cap_bytes"]),
               bytes(t["pinned_bytes"]), bytes(t["hinted_bytes"]), number(t["blocks"]),
               number(t["hits"]), number(t["insertions"]), number(t["evictions"]),
               number(t["failures"]), t["note"]});
  }
  return table.text();
}

std::string render_gpus(const Json& gpus) {
  Table table({{"GPU", true},
               {"NAME"},
               {"UUID"},
               {"USED", true},
               {"RESERVED", true},
               {"TAKEN", true},
               {"CAP", true},
               {"BLOCKS", true}});
  for (const Json& g : gpus) {
    table.add({number(g["gpu"]), g["name"], g["uuid"], bytes(g["used_bytes"]),
               bytes(g["reserved_bytes"]), bytes(g["taken_bytes"]), bytes(g["cap_bytes"]),
               number(g["blocks"])});
  }
  return table.text();
}

std::string render_disks(const Json& disks) {
  Table table({{"DIRECTORY"},
               {"STATE"},
               {"USED", true},
               {"TAKEN", true},
               {"CAP", true},
               {"FILES", true},
               {"BLOCKS", true},
               {"WRITTEN", true},
               {"PER DAY", true},
               {"FAILED", true},
               {"CORRUPT", true},
               {"WHY"}});
  for (const Json& d : disks) {
    table.add({d["directory"], d["state"], bytes(d["used_bytes"]), bytes(d["taken_bytes"]),
               bytes(d["cap_bytes"]) + " of " + bytes(d["capacity_bytes"]), bytes(d["file_bytes"]),
               number(d["blocks"]), bytes(d["bytes_written"]), bytes(d["bytes_written_per_day"]),
               number(d["failures"]), number(d["corrupt"]), d["why"]});
  }
  return table.text();
}

// "4.00 GiB of 8.00 GiB (1.00 GiB guaranteed)".
std::string share(const Json& tenant, const char* tier) {
  const Json& quota = tenant["quota_bytes"][tier];
  const Json& least = tenant["guaranteed_bytes"][tier];
  std::string text = bytes(tenant["used_bytes"][tier]);
  if (!quota.is_null()) text += " of " + bytes(quota);
  if (least.get<std::uint64_t>() != 0) text += " (" + bytes(least) + " guaranteed)";
  return text;
}

std::string render_events(const Json& events) {
  if (!events["listening"].get<bool>()) return "not published: the log has the reason";
  return number(events["batches"]) + " batches, " + number(events["subscriptions"]) +
         " subscriptions, " + number(events["replayed"]) + " batches replayed, " +
         number(events["lost"]) + " changes lost and made up for";
}

std::string render_remote(const Json& remote) {
  Table table({{"REMOTE"},
               {"STATE"},
               {"KNOWN", true},
               {"ONLY THERE", true},
               {"HITS", true},
               {"LOOKUPS", true},
               {"LATE", true},
               {"FOUND", true},
               {"READ", true},
               {"WRITTEN", true},
               {"DROPPED", true},
               {"GONE", true},
               {"CORRUPT", true},
               {"WHY"}});
  table.add({remote["url"], remote["state"], number(remote["blocks"]),
             number(remote["only_there_blocks"]), number(remote["hits"]), number(remote["lookups"]),
             number(remote["late_lookups"]), number(remote["found_blocks"]),
             bytes(remote["bytes_read"]), bytes(remote["bytes_written"]),
             number(remote["dropped_writes"]), number(remote["stale_blocks"]),
             number(remote["corrupt"]), remote["why"]});
  return table.text();
}

// "prefetch 12 taken, 3 already; keep 5 taken", as far as any came.
std::string render_hints(const Json& hints) {
  std::string text;
  for (const auto& [kind, outcomes] : hints.items()) {
    text += (text.empty() ? "" : "; ") + kind;
    std::string of_kind;
    for (const auto& [outcome, blocks] : outcomes.items())
      of_kind += (of_kind.empty() ? " " : ", ") + number(blocks) + " " + outcome;
    text += of_kind;
  }
  return text;
}

std::string render_tenants(const Json& tenants) {
  Table table({{"TENANT"}, {"NAMESPACES", true}, {"DEVICE"}, {"HOST"}, {"DISK"}, {"NOTE"}});
  for (const Json& t : tenants) {
    table.add({t["tenant"], number(t["namespaces"]), share(t, "device"), share(t, "host"),
               share(t, "disk"), t["isolated"].get<bool>() ? "isolated" : ""});
  }
  return table.text();
}

std::string render_peers(const Json& peers) {
  Table table({{"SESSION", true},
               {"NAME"},
               {"PID", true},
               {"UID", true},
               {"LEASES", true},
               {"BLOCKS", true},
               {"RESERVED", true},
               {"NOTE"}});
  for (const Json& p : peers) {
    const bool reads = p["read_only"].get<bool>();
    table.add({number(p["session"]), p["name"], number(p["pid"]), number(p["uid"]),
               number(p["leases"]), number(p["leased_blocks"]), number(p["reserved_slots"]),
               std::string(reads ? "read-only" : "") +
                   (p["admin"].get<bool>() ? (reads ? ", administrator" : "administrator") : "")});
  }
  return table.text();
}

std::string render_pass(const std::string& title, const Json& pass) {
  return title + ": " + number(pass["records"]) + " records checked (" + bytes(pass["bytes"]) +
         "), " + number(pass["corrupt"]) + " corrupt and forgotten, " + number(pass["skipped"]) +
         " skipped, in " + human_duration(pass["duration_ms"].get<std::uint64_t>());
}

std::string render_namespaces(const Json& namespaces) {
  Table table({{"NAMESPACE"},
               {"MODEL"},
               {"ADAPTER"},
               {"TENANT"},
               {"FORMAT"},
               {"SHAPE"},
               {"RANK", true},
               {"BLOCKS", true},
               {"DEVICE", true},
               {"HOST", true},
               {"DISK", true},
               {"HITS", true},
               {"NOTE"}});
  const auto text = [](const Json& n, const char* field) {
    const std::string value = n.value(field, "");
    return value.empty() ? std::string("-") : value;
  };
  for (const Json& n : namespaces) {
    const auto in_tier = [&](const char* tier) {
      return human_bytes(n["bytes"].value(tier, std::uint64_t{0}));
    };
    std::string shape = "-";
    std::string rank = "-";
    if (n.contains("layers")) {
      shape = number(n["layers"]) + " layers x " + number(n["kv_heads"]) + " heads x " +
              number(n["head_dim_k"]) + "/" + number(n["head_dim_v"]) + ", " +
              number(n["block_tokens"]) + " tokens";
      rank = number(n["rank"]) + "/" + number(n["ranks"]);
    }
    table.add({n["id"], text(n, "model"), text(n, "adapter"), text(n, "tenant"), text(n, "format"),
               shape, rank, number(n["blocks"]), in_tier("device"), in_tier("host"),
               in_tier("disk"), std::to_string(sum(n["hits"])),
               n["invalidated"].get<bool>() ? "invalidated" : n.value("error", "")});
  }
  return table.text();
}

std::string render_blocks(const Json& blocks) {
  Table table({{"KEY"},
               {"NAMESPACE"},
               {"INDEX", true},
               {"TIERS"},
               {"PINNED"},
               {"KEPT"},
               {"LEASES", true},
               {"RECORD", true}});
  for (const Json& b : blocks) {
    table.add({b["key"], b["namespace"], number(b["block_index"]), joined(b["tiers"]),
               joined(b["pinned"]), joined(b["kept"]), number(b["leases"]),
               bytes(b["record_bytes"])});
  }
  return table.text();
}

}  // namespace

std::string render_status(const Json& s) {
  const auto looked_up = s["looked_up"].get<std::uint64_t>();
  const std::vector<std::pair<std::string, std::string>> lines = {
      {"version", s["version"]},
      {"up", human_duration(s["uptime_ms"].get<std::uint64_t>())},
      {"blocks", number(s["blocks"]) + " of at most " + number(s["blocks_max"])},
      {"namespaces", number(s["namespaces"])},
      {"sessions", number(s["sessions"])},
      {"leases", number(s["leases"])},
      {"slots", number(s["reserved_slots"]) + " reserved, " + number(s["quarantined_slots"]) +
                    " quarantined"},
      {"looked up", number(s["looked_up"]) + " blocks, hit " +
                        percent(s["hits"].get<std::uint64_t>(), looked_up) + ", missed " +
                        number(s["misses"])},
      {"faults", number(s["faults"]) + " blocks, " + number(s["double_releases"]) +
                     " double releases, " + number(s["frame_errors"]) + " frame errors"},
      {"refused", number(s["turned_away"]) + " connections, " + number(s["denied"]) +
                      " requests, " + number(s["refused_reports"]) + " reports"},
      {"dropped", number(s["dropped_write_backs"]) + " write-backs"},
  };
  std::string out;
  for (const auto& [title, value] : lines)
    out += title + std::string(12 - title.size(), ' ') + value + "\n";
  if (!s["hints"].empty()) out += "hints       " + render_hints(s["hints"]) + "\n";
  if (!s["events"].is_null()) out += "events      " + render_events(s["events"]) + "\n";
  if (s["orphans"].get<std::uint64_t>() != 0)
    out +=
        "orphans     " + number(s["orphans"]) + " blocks whose namespace nobody has opened yet\n";
  out += "\n" + render_tiers(s["tiers"]);
  if (!s["gpus"].empty()) out += "\n" + render_gpus(s["gpus"]);
  if (!s["disks"].empty()) out += "\n" + render_disks(s["disks"]);
  if (!s["remote"].is_null()) out += "\n" + render_remote(s["remote"]);
  if (s["tenants"].size() > 1) out += "\n" + render_tenants(s["tenants"]);
  if (!s["peers"].empty()) out += "\n" + render_peers(s["peers"]);
  return out;
}

std::string render_scrub(const Json& report) {
  std::string out;
  if (report["running"].get<bool>())
    out += render_pass("under way", report["current"]) + " so far\n";
  if (report.contains("last")) {
    out += render_pass("last pass", report["last"]) + ", ended " +
           human_duration(report["last"]["ended_ago_ms"].get<std::uint64_t>()) + " ago\n";
  }
  return out.empty() ? "no scrub yet\n" : out;
}

std::string render_list(const Json& list) {
  std::string out =
      list["namespaces"].empty() ? "no namespaces\n" : render_namespaces(list["namespaces"]);
  if (!list["blocks"].empty()) out += "\n" + render_blocks(list["blocks"]);
  if (list["more_blocks"].get<bool>()) out += "... and more: give a larger --limit\n";
  return out;
}

}  // namespace kvtier::ctl
