// What the parts of the configuration's reader share. Only they include it.
#pragma once

#include <toml++/toml.h>
#include <functional>
#include <map>
#include <string>

#include "daemon/config/config.h"

namespace kvtier::daemon::config_values {

// "file:line:column: ".
std::string place(const std::string& file, const toml::source_region& at);
// "expected ...", to be put behind a place.
Error expected(const std::string& what);
// As a TOML string.
std::string quoted(const std::string& text);
// As TOML, in the largest unit that divides it.
std::string show_bytes(std::uint64_t bytes);
// A number, or a string with a unit. Errors: invalid.
Result<std::uint64_t> bytes_from(const toml::node& node);

// Users or groups: a list of names and numbers. Errors: invalid.
Result<std::vector<std::string>> principals_from(const toml::node& node);
std::string show_principals(const std::vector<std::string>& names);
// At most so many names, each as `item` reads it and not empty. Errors: invalid, with the mend.
Result<std::vector<std::string>> list_from(const toml::node& node, std::size_t most,
                                           const std::string& mend,
                                           Result<std::string> (*item)(const toml::node&));
std::string show_list(const std::vector<std::string>& names,
                      std::string (*show)(const std::string&));
// A name or a number. Errors: invalid.
Result<std::string> principal_from(const toml::node& node);
std::string show_principal(const std::string& name);

}  // namespace kvtier::daemon::config_values

namespace kvtier::daemon {

// As it would stand in the file: reading what is shown gives the value back.
struct Setting {
  // Errors: invalid, without the place in the file.
  std::function<Result<void>(Config&, const toml::node&)> set;
  std::function<std::string(const Config&)> show;
};

// [[tenant]]. Errors: invalid, with its place.
Result<void> read_tenants(Config& config, const toml::node& node, const std::string& file);
std::string tenants_to_toml(const Config& config);
// What tenants have to keep together: what is guaranteed fits each tier. Errors: invalid.
Result<void> check_tenants(const Config& config);

// The keys of [events].
std::map<std::string, Setting> event_settings();
// What they have to keep together. Errors: invalid.
Result<void> check_events(const Config& config);

// The keys of [remote].
std::map<std::string, Setting> remote_settings();
// What they have to keep together. Errors: invalid.
Result<void> check_remote(const Config& config);

}  // namespace kvtier::daemon
