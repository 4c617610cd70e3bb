#include "ctl/check/check_system.h"

#include <toml++/toml.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/base/sizes.h"
#include "core/terminal/units.h"

namespace kvtier::ctl {
namespace {

std::uint64_t count(const Json& json, const char* field) {
  return json.at(field).get<std::uint64_t>();
}

Result<std::uint64_t> bytes_at(const toml::table& table, const char* section,
                               std::uint64_t otherwise) {
  const auto node = table[section]["capacity"];
  if (const auto number = node.value_exact<std::int64_t>())
    return static_cast<std::uint64_t>(*number);
  if (const auto text = node.value_exact<std::string>()) return parse_size(*text);
  return otherwise;
}

Setup find_setup(Checks& out, const CheckOptions& options) {
  auto status = fetch_status(options.target);
  if (status) {
    const Setup setup = setup_of(*status);
    out.push_back({Check::State::ok, "daemon",
                   "kvtierd " + setup.version + " answers, pid " + std::to_string(setup.pid), ""});
    return setup;
  }
  const std::string why = status.error().message;
  std::ifstream in(options.config);
  std::ostringstream text;
  if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  const auto setup = setup_from_config(text.str());
  const std::string from =
      !in.is_open() ? "the defaults, as " + options.config + " cannot be read"
      : setup       ? options.config
                    : "the defaults, as " + options.config + " is wrong: " + setup.error().message;
  out.push_back(
      {setup ? Check::State::warning : Check::State::failed, "daemon", why + "; checked by " + from,
       setup ? "systemctl start kvtierd" : "kvtierd --check-config --config " + options.config});
  return setup ? *setup : setup_from_config("").value();
}

}  // namespace

Setup setup_of(const Json& status) {
  Setup setup;
  setup.running = true;
  setup.pid = static_cast<std::uint32_t>(count(status, "pid"));
  setup.version = status["version"].get<std::string>();
  for (const Json& gpu : status["gpus"]) setup.cuda = setup.cuda || gpu["name"] != "memory";
  for (const Json& tier : status["tiers"]) {
    if (tier["tier"] == "host") {
      setup.host_bytes = count(tier, "cap_bytes");
      setup.host_taken = count(tier, "taken_bytes");
    }
    if (tier["tier"] == "device" && !setup.cuda) {
      setup.device_bytes = count(tier, "cap_bytes");
      setup.device_taken = count(tier, "taken_bytes");
    }
  }
  for (const Json& disk : status["disks"]) {
    setup.disks.push_back({disk["directory"].get<std::string>(), count(disk, "cap_bytes"),
                           count(disk, "file_bytes")});
  }
  return setup;
}

Result<Setup> setup_from_config(const std::string& text) {
  Setup setup;
  try {
    const toml::table table = toml::parse(text);
    const auto host = bytes_at(table, "host", 4ULL << 30);
    const auto device = bytes_at(table, "device", 0);
    const auto disk = bytes_at(table, "disk", 16ULL << 30);
    if (!host) return host.error();
    if (!device) return device.error();
    if (!disk) return disk.error();
    setup.host_bytes = *host;
    setup.cuda =
        table["device"]["backend"].value_or(std::string("memory")) == "cuda" && *device > 0;
    if (!setup.cuda) setup.device_bytes = *device;
    const auto directory = table["disk"]["directory"].value_or(std::string());
    if (!directory.empty()) setup.disks.push_back({directory, *disk, 0});
    if (const auto* list = table["disk"]["directories"].as_array()) {
      for (const toml::node& node : *list)
        setup.disks.push_back({node.value_or(std::string()), *disk, 0});
    }
  } catch (const toml::parse_error& error) {
    return make_error(Errc::invalid, "line " + std::to_string(error.source().begin.line) + ": " +
                                         std::string(error.description()));
  }
  return setup;
}

void check_socket(Checks& out, const Host& host, const std::string& socket, const Setup& setup) {
  const SocketFacts facts = host.socket(socket);
  const std::string name = "socket";
  if (facts.connect_error == 0) {
    out.push_back({Check::State::ok, name, socket + " can be reached by " + host.user(), ""});
  } else if (facts.connect_error == EACCES) {
    const std::string group = facts.group.empty() ? "kvtier" : facts.group;
    out.push_back({Check::State::failed, name,
                   host.user() + " may not use " + socket +
                       (facts.exists ? ", which is group " + group + "'s" : ""),
                   "usermod -aG " + group + " " + host.user() + "    (then log in again)"});
  } else {
    out.push_back({setup.running ? Check::State::failed : Check::State::warning, name,
                   socket + ": " + std::strerror(facts.connect_error), "systemctl start kvtierd"});
  }
}

Json check_system(const CheckOptions& options) {
  return check_system(options, Host());
}

Json check_system(const CheckOptions& options, const Host& host) {
  Checks checks;
  const Setup setup = find_setup(checks, options);
  check_socket(checks, host, options.target.socket, setup);
  check_memory(checks, host, setup);
  check_kernel(checks, host, setup);
  check_gpus(checks, host, setup);
  check_disks(checks, host, setup);
  Json json;
  json["checks"] = Json::array();
  unsigned warnings = 0, failed = 0;
  for (const Check& check : checks) {
    warnings += check.state == Check::State::warning ? 1 : 0;
    failed += check.state == Check::State::failed ? 1 : 0;
    const char* state = check.state == Check::State::ok        ? "ok"
                        : check.state == Check::State::warning ? "warning"
                                                               : "failed";
    json["checks"].push_back(
        {{"check", check.check}, {"state", state}, {"seen", check.seen}, {"mend", check.mend}});
  }
  json["warnings"] = warnings;
  json["failed"] = failed;
  return json;
}

}  // namespace kvtier::ctl
