// What top shows.
#include <algorithm>
#include <cmath>

#include "core/terminal/table.h"
#include "core/terminal/terminal.h"
#include "core/terminal/units.h"
#include "ctl/top.h"

namespace kvtier::ctl {
namespace {

constexpr std::size_t kNamespacesShown = 8;
constexpr std::size_t kSessionsShown = 8;

std::uint64_t count(const Json& json, const char* field) {
  return json.is_object() ? json.value(field, std::uint64_t{0}) : 0;
}

std::uint64_t sum(const Json& per_tier) {
  std::uint64_t total = 0;
  for (const Json& value : per_tier) total += value.get<std::uint64_t>();
  return total;
}

// Of two looks at a list, the earlier state of the one that has the same name.
Json same(const Json& list, const char* name, const Json& as) {
  for (const Json& item : list) {
    if (item[name] == as[name]) return item;
  }
  return nullptr;
}

class Rates {
 public:
  explicit Rates(double seconds) : seconds_(seconds) {}
  double operator()(const Json& before, const Json& now, const char* field) const {
    return of(count(before, field), count(now, field));
  }
  double of(std::uint64_t before, std::uint64_t now) const {
    return seconds_ <= 0 || now < before ? 0 : static_cast<double>(now - before) / seconds_;
  }

 private:
  double seconds_;
};

Json share(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

Json tier_view(const Json& before, const Json& now, const Rates& rate) {
  Json view;
  for (const char* field : {"tier", "online", "used_bytes", "reserved_bytes", "taken_bytes",
                            "cap_bytes", "blocks", "pinned_bytes", "hinted_bytes", "hits"})
    view[field] = now[field];
  view["hits_per_s"] = rate(before, now, "hits");
  view["read_bytes_per_s"] = rate(before, now, "hit_bytes");
  view["write_bytes_per_s"] = rate(before, now, "inserted_bytes");
  view["evictions_per_s"] = rate(before, now, "evictions");
  view["failures"] = now["failures"];
  return view;
}

Json disk_view(const Json& before, const Json& now, const Rates& rate) {
  Json view;
  for (const char* field :
       {"directory", "online", "state", "why", "taken_bytes", "cap_bytes", "bytes_written_per_day"})
    view[field] = now[field];
  view["read_bytes_per_s"] = rate(before, now, "bytes_read");
  view["write_bytes_per_s"] = rate(before, now, "bytes_written");
  view["corrupt"] = now["corrupt"];
  view["failures"] = now["failures"];
  return view;
}

Json namespace_views(const Json& before, const Json& now, const Rates& rate) {
  Json views = Json::array();
  for (const Json& ns : now) {
    Json view;
    view["id"] = ns["id"];
    view["model"] = ns.value("model", "");
    view["tenant"] = ns.value("tenant", "");
    view["bytes"] = sum(ns["bytes"]);
    view["blocks"] = ns["blocks"];
    view["hits"] = sum(ns["hits"]);
    const Json earlier = before.is_array() ? same(before, "id", ns) : Json(nullptr);
    view["hits_per_s"] = earlier.is_null() ? 0 : rate.of(sum(earlier["hits"]), sum(ns["hits"]));
    views.push_back(std::move(view));
  }
  std::ranges::stable_sort(views.get_ref<Json::array_t&>(), [](const Json& a, const Json& b) {
    return count(a, "bytes") > count(b, "bytes");
  });
  return views;
}

std::string bytes_per_s(const Json& value) {
  return human_bytes(static_cast<std::uint64_t>(value.get<double>())) + "/s";
}

std::string share_text(const Json& share) {
  if (share.is_null()) return "-";
  return percent(static_cast<std::uint64_t>(std::llround(share.get<double>() * 1000)), 1000);
}

std::string bar(std::uint64_t part, std::uint64_t whole, unsigned width) {
  const auto full =
      whole == 0 ? 0 : std::min<std::uint64_t>(width, (part * width + whole - 1) / whole);
  return "[" + std::string(full, '#') + std::string(width - full, '.') + "]";
}

void add(std::vector<std::string>& lines, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end == std::string::npos ? text.size() : end + 1;
  }
}

void add_titled(std::vector<std::string>& lines, const std::string& table, bool colours) {
  const std::size_t first = lines.size();
  lines.emplace_back();
  add(lines, table);
  if (colours && lines.size() > first + 1) lines[first + 1] = kBold + lines[first + 1] + kPlain;
}

std::string tiers_table(const Json& tiers, unsigned width) {
  Table table({{"TIER"},
               {"USE"},
               {"USED", true},
               {"RESERVED", true},
               {"TAKEN", true},
               {"CAP", true},
               {"PINNED", true},
               {"HINTED", true},
               {"BLOCKS", true},
               {"HITS/S", true},
               {"READ", true},
               {"WRITTEN", true},
               {"EVICTED/S", true},
               {"FAILED", true}});
  for (const Json& t : tiers) {
    if (count(t, "cap_bytes") == 0) continue;
    table.add({t["tier"].get<std::string>() + (t["online"].get<bool>() ? "" : " (offline)"),
               bar(count(t, "used_bytes"), count(t, "cap_bytes"), width),
               human_bytes(count(t, "used_bytes")), human_bytes(count(t, "reserved_bytes")),
               human_bytes(count(t, "taken_bytes")), human_bytes(count(t, "cap_bytes")),
               human_bytes(count(t, "pinned_bytes")), human_bytes(count(t, "hinted_bytes")),
               std::to_string(count(t, "blocks")), human_rate(t["hits_per_s"]),
               bytes_per_s(t["read_bytes_per_s"]), bytes_per_s(t["write_bytes_per_s"]),
               human_rate(t["evictions_per_s"]), std::to_string(count(t, "failures"))});
  }
  return table.text();
}

std::string devices_table(const Json& view) {
  Table table({{"DEVICE"},
               {"STATE"},
               {"RESERVED", true},
               {"TAKEN", true},
               {"CAP", true},
               {"READ", true},
               {"WRITTEN", true},
               {"PER DAY", true},
               {"FAILED", true},
               {"CORRUPT", true}});
  for (const Json& g : view["gpus"]) {
    table.add({"GPU " + std::to_string(count(g, "gpu")) + " " + g["name"].get<std::string>(),
               "online", human_bytes(count(g, "reserved_bytes")),
               human_bytes(count(g, "taken_bytes")), human_bytes(count(g, "cap_bytes")), "-", "-",
               "-", "-", "-"});
  }
  for (const Json& d : view["disks"]) {
    table.add({d["directory"], d["state"], "-", human_bytes(count(d, "taken_bytes")),
               human_bytes(count(d, "cap_bytes")), bytes_per_s(d["read_bytes_per_s"]),
               bytes_per_s(d["write_bytes_per_s"]), human_bytes(count(d, "bytes_written_per_day")),
               std::to_string(count(d, "failures")), std::to_string(count(d, "corrupt"))});
  }
  return view["gpus"].empty() && view["disks"].empty() ? "" : table.text();
}

std::string namespaces_table(const Json& namespaces) {
  if (namespaces.is_null()) return "namespaces: only the cache's administrator sees them\n";
  Table table({{"NAMESPACE"},
               {"MODEL"},
               {"TENANT"},
               {"BYTES", true},
               {"BLOCKS", true},
               {"HITS", true},
               {"HITS/S", true}});
  for (std::size_t i = 0; i < namespaces.size() && i < kNamespacesShown; ++i) {
    const Json& n = namespaces[i];
    table.add({n["id"].get<std::string>().substr(0, 12), n["model"], n["tenant"],
               human_bytes(count(n, "bytes")), std::to_string(count(n, "blocks")),
               std::to_string(count(n, "hits")), human_rate(n["hits_per_s"])});
  }
  return table.text();
}

std::string sessions_table(const Json& sessions) {
  if (sessions.is_null()) return "sessions: only the cache's administrator sees them\n";
  Table table({{"SESSION"},
               {"PID", true},
               {"LEASES", true},
               {"BLOCKS", true},
               {"SLOTS", true},
               {"SILENT"}});
  for (std::size_t i = 0; i < sessions.size() && i < kSessionsShown; ++i) {
    const Json& s = sessions[i];
    table.add({s["name"], std::to_string(count(s, "pid")), std::to_string(count(s, "leases")),
               std::to_string(count(s, "blocks_leased")),
               std::to_string(count(s, "slots_reserved")), human_duration(count(s, "silent_ms"))});
  }
  return table.text();
}

}  // namespace

Json compare(const Look& before, const Look& now) {
  const double seconds = std::chrono::duration<double>(now.at - before.at).count();
  const Rates rate(seconds);
  Json view;
  view["version"] = now.status["version"];
  view["uptime_ms"] = now.status["uptime_ms"];
  view["interval_s"] = seconds;
  view["blocks"] = now.status["blocks"];
  view["blocks_max"] = now.status["blocks_max"];
  view["leases"] = now.status["leases"];
  view["reserved_slots"] = now.status["reserved_slots"];
  const auto since = [&](const char* field) {
    return count(now.status, field) -
           std::min(count(before.status, field), count(now.status, field));
  };
  view["looked_up_per_s"] = rate(before.status, now.status, "looked_up");
  view["hit_rate_interval"] =
      share(since("looked_up") - std::min(since("misses"), since("looked_up")), since("looked_up"));
  const std::uint64_t looked_up = count(now.status, "looked_up");
  view["hit_rate"] = share(looked_up - std::min(count(now.status, "misses"), looked_up), looked_up);
  view["dropped_write_backs_per_s"] = rate(before.status, now.status, "dropped_write_backs");
  view["tiers"] = Json::array();
  for (const Json& tier : now.status["tiers"])
    view["tiers"].push_back(tier_view(same(before.status["tiers"], "tier", tier), tier, rate));
  view["disks"] = Json::array();
  for (const Json& disk : now.status["disks"])
    view["disks"].push_back(disk_view(same(before.status["disks"], "directory", disk), disk, rate));
  view["gpus"] = now.status["gpus"];
  view["sessions"] = now.sessions;
  view["namespaces"] = now.namespaces.is_null()
                           ? Json(nullptr)
                           : namespace_views(before.namespaces, now.namespaces, rate);
  return view;
}

std::vector<std::string> render_top(const Json& view, unsigned columns, bool colours) {
  std::vector<std::string> lines;
  lines.push_back("kvtierd " + view["version"].get<std::string>() + ", up " +
                  human_duration(count(view, "uptime_ms")) + "; " +
                  std::to_string(count(view, "blocks")) + " of at most " +
                  std::to_string(count(view, "blocks_max")) + " blocks, " +
                  std::to_string(count(view, "leases")) + " leases, " +
                  std::to_string(count(view, "reserved_slots")) + " slots reserved");
  lines.push_back("hit rate " + share_text(view["hit_rate_interval"]) + " now, " +
                  share_text(view["hit_rate"]) + " in all; " + human_rate(view["looked_up_per_s"]) +
                  " blocks/s looked up, " + human_rate(view["dropped_write_backs_per_s"]) +
                  " write-backs/s dropped");
  add_titled(lines, tiers_table(view["tiers"], columns >= 120 ? 20 : 8), colours);
  add_titled(lines, devices_table(view), colours);
  add_titled(lines, namespaces_table(view["namespaces"]), colours);
  add_titled(lines, sessions_table(view["sessions"]), colours);
  for (std::string& line : lines) line = cut(line, columns);
  return lines;
}

}  // namespace kvtier::ctl
