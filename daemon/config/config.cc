#include "daemon/config/config.h"

#include <toml++/toml.h>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "core/base/fd.h"
#include "daemon/config/config_values.h"
#include "daemon/config/settings.h"

namespace kvtier::daemon {
namespace {

using namespace config_values;

// More than any machine has.
constexpr std::uint64_t kUnknownCapacity = std::uint64_t{1} << 62;

std::string names_of(const auto& map) {
  std::string names;
  for (const auto& [name, _] : map) {
    if (!name.empty()) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

Result<void> read_table(Config& config, const toml::table& table, const std::string& section,
                        const std::string& file) {
  const auto& known = settings().at(section);
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (section.empty() && settings().contains(name) && node.is_table()) {
      if (auto good = read_table(config, *node.as_table(), name, file); !good) return good.error();
      continue;
    }
    if (section.empty() && name == "tenant") {
      if (auto good = read_tenants(config, node, file); !good) return good.error();
      continue;
    }
    const auto found = known.find(name);
    if (found == known.end()) {
      const std::string in = section.empty() ? "at the top level" : "in [" + section + "]";
      std::string mend = "known there: " + names_of(known);
      if (section.empty()) mend += "; sections: " + names_of(settings()) + ", tenant";
      return make_error(Errc::invalid, place(file, key.source()) + "unknown key '" + name + "' " +
                                           in + "; " + mend);
    }
    if (auto good = found->second.set(config, node); !good) {
      return make_error(Errc::invalid,
                        place(file, node.source()) + name + ": " + good.error().message);
    }
  }
  return {};
}

Result<void> check_writes(const Config& config) {
  const bool expected = config.disk.admission == Admission::expected_reuse;
  if (expected && config.policy != EvictionPolicy::hit_density)
    return make_error(Errc::invalid,
                      "disk.admission \"expected_reuse\" goes by what cache.policy \"hit_density\" "
                      "learns: set that, or another admission");
  if (!expected && config.disk.write_budget != 0)
    return make_error(
        Errc::invalid,
        "disk.write_budget is held by disk.admission \"expected_reuse\" alone: set that, "
        "or leave the budget out");
  return {};
}

}  // namespace

Result<Config> parse_config(const std::string& text, const std::string& name) {
  Config config;
  try {
    const toml::table table = toml::parse(text, name);
    if (auto good = read_table(config, table, "", name); !good) return good.error();
    // What is of a size that is not known yet is checked later, by settle_host_capacity().
    Config known = config;
    if (config.host.sizing != Sizing::fixed) known.host.capacity_bytes = kUnknownCapacity;
    if (const auto good = check_tenants(known); !good)
      return make_error(Errc::invalid, name + ": " + good.error().message);
    for (const auto check : {check_events, check_remote, check_writes}) {
      if (const auto good = check(config); !good)
        return make_error(Errc::invalid, name + ": " + good.error().message);
    }
  } catch (const toml::parse_error& error) {
    return make_error(Errc::invalid,
                      place(name, error.source()) + std::string(error.description()));
  }
  return config;
}

Result<Config> load_config(const std::filesystem::path& file) {
  // The stream's own extraction turns the library's exception for a directory into a bad stream.
  errno = 0;
  std::ifstream in(file);
  if (!in.is_open()) {
    return errno_error(Errc::io, "cannot read the configuration " + file.string() +
                                     ": give a readable file with --config");
  }
  std::ostringstream text;
  if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (in.bad() || text.fail()) {
    return make_error(Errc::io, "cannot read the configuration " + file.string() +
                                    ": give a readable file with --config");
  }
  return parse_config(text.str(), file.string());
}

std::vector<ConfigChange> changes_between(const Config& from, const Config& to) {
  std::vector<ConfigChange> changes;
  for (const auto& [section, keys] : settings()) {
    for (const auto& [key, setting] : keys) {
      ConfigChange change{section.empty() ? key : section + "." + key, setting.show(from),
                          setting.show(to)};
      if (change.from != change.to) changes.push_back(std::move(change));
    }
  }
  return changes;
}

std::string to_toml(const Config& config) {
  std::string text;
  for (const auto& [section, keys] : settings()) {
    if (!section.empty()) text += "\n[" + section + "]\n";
    for (const auto& [key, setting] : keys) text += key + " = " + setting.show(config) + "\n";
  }
  return text + tenants_to_toml(config);
}

}  // namespace kvtier::daemon
