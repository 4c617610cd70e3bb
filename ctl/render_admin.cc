// Blocks, sessions, tenants and what was done to them, for people.
#include "core/base/shown.h"
#include "core/terminal/table.h"
#include "core/terminal/terminal.h"
#include "core/terminal/units.h"
#include "ctl/render.h"

namespace kvtier::ctl {
namespace {

std::uint64_t of(const Json& json, const char* field) {
  return json.at(field).get<std::uint64_t>();
}

std::string counted(std::uint64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string line(const std::string& title, const std::string& value) {
  return title + std::string(12 - std::min<std::size_t>(title.size(), 11), ' ') + shown(value) +
         "\n";
}

std::string namespace_lines(const Json& ns) {
  std::string out = line("namespace", ns["id"].get<std::string>());
  if (!ns.contains("model")) return out + line("", ns.value("error", ""));
  out += line("model", ns["model"].get<std::string>());
  for (const char* field : {"adapter", "tenant"}) {
    if (!ns[field].get<std::string>().empty()) out += line(field, ns[field].get<std::string>());
  }
  out += line("shape", std::to_string(of(ns, "layers")) + " layers x " +
                           std::to_string(of(ns, "kv_heads")) + " heads x " +
                           std::to_string(of(ns, "head_dim_k")) + "/" +
                           std::to_string(of(ns, "head_dim_v")) + ", " +
                           std::to_string(of(ns, "block_tokens")) + " tokens, " +
                           ns["format"].get<std::string>() + ", rank " +
                           std::to_string(of(ns, "rank")) + "/" + std::to_string(of(ns, "ranks")));
  if (ns["invalidated"].get<bool>()) out += line("", "invalidated");
  return out;
}

// What hints have made of a placement: for how long it is kept, its priority, that it goes first.
std::string hint_of(const Json& placement) {
  if (placement["demoted"].get<bool>()) return "demoted";
  std::string text;
  if (const auto kept = of(placement, "kept_ms"); kept != 0) text = "kept " + human_duration(kept);
  if (const auto priority = of(placement, "priority"); priority != 0)
    text += (text.empty() ? "priority " : ", priority ") + std::to_string(priority);
  return text.empty() ? "-" : text;
}

}  // namespace

std::string render_inspect(const Json& block) {
  std::string out = line("key", block["key"].get<std::string>());
  const bool first = of(block, "block_index") == 0;
  out += line("parent", first ? "none: it is a prefix's first block"
                              : block["parent"].get<std::string>() +
                                    (block["parent_cached"].get<bool>() ? "" : " (not cached)"));
  out += line("index", std::to_string(of(block, "block_index")));
  out += line("record", human_bytes(of(block, "record_bytes")));
  out += line("last access",
              counted(of(block, "accesses_since"), "lease or commit of the cache") + " ago");
  out += namespace_lines(block["namespace"]);
  for (const char* flag : {"loading", "write_queued", "doomed"}) {
    if (!block[flag].get<bool>()) continue;
    const std::string name = flag;
    out += line("state", name == "loading"        ? "on its way from disk"
                         : name == "write_queued" ? "on its way to disk"
                                                  : "found no more; goes with its last lease");
  }
  Table table({{"TIER"},
               {"PLACE"},
               {"SLOT", true},
               {"LEASES", true},
               {"PINNED"},
               {"HINT"},
               {"CHECKSUM"},
               {"NOTE"}});
  for (const Json& p : block["placements"]) {
    const bool disk = p.contains("segment");
    const std::string place = p["where"].get<std::string>() + (disk ? ", segment " : ", extent ") +
                              std::to_string(of(p, disk ? "segment" : "extent"));
    const std::uint64_t pinned = of(p, "pinned_ms");
    table.add({p["tier"], place, std::to_string(of(p, "slot")), std::to_string(of(p, "leases")),
               pinned == 0 ? "-" : human_duration(pinned), hint_of(p), p["checksum"],
               p["online"].get<bool>() ? p["note"].get<std::string>() : "offline"});
  }
  return out + "\n" + table.text();
}

std::string render_sessions(const Json& sessions) {
  Table table({{"SESSION", true},
               {"NAME"},
               {"PID", true},
               {"OPEN"},
               {"SILENT"},
               {"NAMESPACES", true},
               {"LEASES", true},
               {"BLOCKS", true},
               {"SLOTS", true}});
  for (const Json& s : sessions["sessions"]) {
    table.add({std::to_string(of(s, "id")), s["name"], std::to_string(of(s, "pid")),
               human_duration(of(s, "age_ms")), human_duration(of(s, "silent_ms")),
               std::to_string(of(s, "namespaces")), std::to_string(of(s, "leases")),
               std::to_string(of(s, "blocks_leased")), std::to_string(of(s, "slots_reserved"))});
  }
  return table.text();
}

std::string render_drop(const Json& dropped) {
  std::string out = counted(of(dropped, "blocks_dropped"), "block") + " dropped\n";
  if (const auto kept = of(dropped, "blocks_in_use"); kept != 0)
    out += counted(kept, "block") + " in use: leased, or on the way to or from disk\n";
  if (const auto kept = of(dropped, "blocks_pinned"); kept != 0)
    out += counted(kept, "block") + " kept because pinned: unpin first, or drop with --force\n";
  return out;
}

std::string render_pin(const Json& pinned) {
  std::string out = "pinned " + counted(of(pinned, "placements_pinned"), "block") + ", " +
                    human_bytes(of(pinned, "bytes_pinned")) + ", for " +
                    human_duration(of(pinned, "lifetime_s") * 1000) +
                    " (a block in two tiers counts twice)\n";
  if (const auto refused = of(pinned, "placements_refused"); refused != 0) {
    out += "not pinned: " + counted(refused, "block") +
           ", as pins hold all they may of that tier ([pins] percent_max)\n";
  }
  return out;
}

std::string render_unpin(const Json& unpinned) {
  return counted(of(unpinned, "blocks_unpinned"), "block") + " unpinned\n";
}

std::string render_push(const Json& pushed) {
  std::string out = counted(of(pushed, "blocks_remote"), "block") + " in the remote tier\n";
  if (const auto left = of(pushed, "blocks_left"); left != 0) {
    out += counted(left, "block") +
           " not: not in host memory, kept on this host, or refused (kvtierctl status says what is "
           "wrong)\n";
  }
  return out;
}

std::string render_invalidate(const Json& invalidated) {
  std::string out = counted(invalidated["namespaces"].size(), "namespace") + " closed, " +
                    counted(of(invalidated, "blocks_dropped"), "block") + " dropped, " +
                    counted(of(invalidated, "sessions_told"), "session") + " told\n";
  if (const auto left = of(invalidated, "blocks_in_use"); left != 0)
    out += counted(left, "block") + " in use: found by nobody any more, gone with the last use\n";
  for (const Json& disk : invalidated["disks_offline"]) {
    out += shown(disk.get<std::string>()) +
           " is offline: what it holds goes when it is back; should kvtierd end before, invalidate "
           "again then\n";
  }
  return out;
}

std::string render_flush(const Json& flushed) {
  std::string out = "everything committed before is safe on disk, as far as it is admitted there\n";
  if (const auto left = of(flushed, "left_out_blocks"); left != 0) {
    out += counted(left, "block") + " left out since kvtierd started: " +
           counted(of(flushed, "left_out_in_memory_blocks"), "block") +
           " of them in memory, and offered again when they are used\n";
  }
  return out;
}

std::string render_quotas(const Json& quotas) {
  Table table({{"TENANT"}, {"TIER"}, {"USED", true}, {"QUOTA", true}, {"GUARANTEED", true}});
  for (const Json& t : quotas["tenants"]) {
    const std::string tenant = t["tenant"].get<std::string>();
    for (const auto& [tier, used] : t["used_bytes"].items()) {
      const auto bytes = [&t, &tier = tier](const char* field) {
        const Json value = t[field].value(tier, Json());
        return value.is_null() ? std::string("-") : human_bytes(value.get<std::uint64_t>());
      };
      table.add({tenant.empty() ? "(none)" : tenant, tier, human_bytes(used.get<std::uint64_t>()),
                 bytes("quota_bytes"), bytes("guaranteed_bytes")});
    }
  }
  return table.text();
}

std::string render_checks(const Json& checks, bool colours) {
  std::string out;
  for (const Json& c : checks["checks"]) {
    const std::string state = c["state"].get<std::string>();
    const char* colour = state == "ok" ? kGreen : state == "failed" ? kRed : kYellow;
    out += (colours ? colour : "") + state + (colours ? kPlain : "") +
           std::string(9 - std::min<std::size_t>(state.size(), 8), ' ') +
           shown(c["check"].get<std::string>()) + ": " + shown(c["seen"].get<std::string>()) + "\n";
    if (!c["mend"].get<std::string>().empty())
      out += "           mend: " + shown(c["mend"].get<std::string>()) + "\n";
  }
  return out;
}

}  // namespace kvtier::ctl
