// Tenants in the configuration: [[tenant]] tables, and users and groups.
#include <algorithm>
#include <charconv>
#include <set>

#include "core/base/units.h"
#include "daemon/config/config_values.h"
#include "daemon/config/tenants.h"
#include "daemon/limits.h"

namespace kvtier::daemon {
namespace config_values {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Result<std::string> principal_from(const toml::node& node) {
  constexpr std::int64_t kMax = 0xFFFFFFFEU;
  if (const auto number = node.value_exact<std::int64_t>();
      number && *number >= 0 && *number <= kMax)
    return std::to_string(*number);
  const auto text = node.value_exact<std::string>();
  if (!text || is_number(*text)) return expected("a name in quotes, or a number");
  return *text;
}

std::string show_principal(const std::string& name) {
  return is_number(name) ? name : quoted(name);
}

Result<std::vector<std::string>> principals_from(const toml::node& node) {
  return list_from(node, limits::kPrincipalsMax,
                   "a list of at most " + std::to_string(limits::kPrincipalsMax) +
                       " names in quotes or numbers, such as [\"alice\", 1001]",
                   principal_from);
}

std::string show_principals(const std::vector<std::string>& names) {
  return show_list(names, show_principal);
}

}  // namespace config_values

namespace {

using namespace config_values;
using Amounts = std::array<std::optional<Config::Amount>, kTiers>;

Error at(const std::string& file, const toml::node& node, const std::string& what) {
  return make_error(Errc::invalid, place(file, node.source()) + what);
}

Result<Config::Amount> amount_from(const toml::node& node) {
  const std::string mend = "a size, or a part of the tier such as \"25%\"";
  const auto text = node.value_exact<std::string>();
  if (!text || !text->ends_with('%')) {
    const auto bytes = bytes_from(node);
    if (!bytes) return expected(mend);
    return Config::Amount{*bytes, false};
  }
  std::uint64_t percent = 0;
  const char* end = text->data() + text->size() - 1;
  const auto parsed = std::from_chars(text->data(), end, percent);
  if (parsed.ec != std::errc{} || parsed.ptr != end || percent > 100) return expected(mend);
  return Config::Amount{percent, true};
}

std::string show(const Config::Amount& amount) {
  return amount.percent ? quoted(std::to_string(amount.value) + "%") : show_bytes(amount.value);
}

Result<Amounts> amounts_from(const toml::node& node, const std::string& file,
                             const std::string& key) {
  const toml::table* table = node.as_table();
  if (table == nullptr)
    return at(file, node, key + ": expected amounts by tier, such as { host = \"8GiB\" }");
  Amounts amounts;
  for (const auto& [name, value] : *table) {
    const auto tier = std::ranges::find_if(
        kAllTiers, [tier_name = name.str()](Tier t) { return tier_name == kvtier::name(t); });
    if (tier == kAllTiers.end()) {
      return at(file, value,
                key + ": '" + std::string(name.str()) + "' is no tier; known: device, host, disk");
    }
    const auto amount = amount_from(value);
    if (!amount)
      return at(file, value, key + "." + kvtier::name(*tier) + ": " + amount.error().message);
    amounts[index_of(*tier)] = *amount;
  }
  return amounts;
}

Result<std::vector<std::string>> salts_from(const toml::node& node) {
  const std::string mend = "a list of 1 to " + std::to_string(limits::kTenantSaltsMax) +
                           " salts in quotes, none of them empty";
  const toml::array* list = node.as_array();
  if (list == nullptr || list->empty() || list->size() > limits::kTenantSaltsMax)
    return expected(mend);
  std::vector<std::string> salts;
  for (const toml::node& item : *list) {
    const auto salt = item.value_exact<std::string>();
    if (!salt || salt->empty()) return expected(mend);
    salts.push_back(*salt);
  }
  return salts;
}

Result<void> read_key(Config::Tenant& tenant, const std::string& key, const toml::node& node,
                      const std::string& file) {
  const auto taken = [&](auto& into, auto value) -> Result<void> {
    if (!value) return at(file, node, key + ": " + value.error().message);
    into = std::move(*value);
    return {};
  };
  if (key == "salts") return taken(tenant.salts, salts_from(node));
  if (key == "users") return taken(tenant.members.users, principals_from(node));
  if (key == "groups") return taken(tenant.members.groups, principals_from(node));
  if (key == "quota" || key == "guaranteed") {
    auto amounts = amounts_from(node, file, key);
    if (!amounts) return amounts.error();
    (key == "quota" ? tenant.quota : tenant.guaranteed) = *amounts;
    return {};
  }
  if (key == "isolated" || key == "name") {
    const auto flag = node.value_exact<bool>();
    const auto text = node.value_exact<std::string>();
    if (key == "isolated" && !flag) return at(file, node, "isolated: expected true or false");
    if (key == "name" && (!text || text->empty() || text->size() > 64))
      return at(file, node, "name: expected 1 to 64 characters in quotes");
    if (flag) tenant.isolated = *flag;
    if (text) tenant.name = *text;
    return {};
  }
  return at(file, node,
            "unknown key '" + key +
                "' in [[tenant]]; known there: groups, guaranteed, isolated, name, "
                "quota, salts, users");
}

Result<void> add_tenant(Config& config, const toml::node& node, const std::string& file) {
  const toml::table* table = node.as_table();
  if (table == nullptr) return at(file, node, "tenant: expected [[tenant]] tables");
  Config::Tenant tenant;
  for (const auto& [key, value] : *table) {
    if (auto good = read_key(tenant, std::string(key.str()), value, file); !good) return good;
  }
  if (tenant.name.empty()) return at(file, node, "a [[tenant]] without a name: give it one");
  const bool is_default = tenant.name == kDefaultTenantName;
  if (is_default && !tenant.salts.empty()) {
    return at(
        file, node,
        "the tenant 'default' has every salt that no other tenant lists: leave out its salts");
  }
  if (!is_default && tenant.salts.empty()) tenant.salts = {tenant.name};
  std::set<std::string> salts;
  for (const auto& other : config.tenants) {
    if (other.name == tenant.name)
      return at(file, node, "the tenant '" + tenant.name + "' is there twice");
    salts.insert(other.salts.begin(), other.salts.end());
  }
  for (const std::string& salt : tenant.salts) {
    if (salts.insert(salt).second) continue;
    return at(file, node,
              "a salt of '" + tenant.name + "' is listed twice: a namespace belongs to one tenant");
  }
  config.tenants.push_back(std::move(tenant));
  return {};
}

std::string show(const std::string& key, const Amounts& amounts) {
  std::string text;
  for (const Tier tier : kAllTiers) {
    const auto& amount = amounts[index_of(tier)];
    if (amount)
      text += (text.empty() ? "" : ", ") + std::string(name(tier)) + " = " + show(*amount);
  }
  return text.empty() ? "" : key + " = { " + text + " }\n";
}

}  // namespace

Result<void> read_tenants(Config& config, const toml::node& node, const std::string& file) {
  const toml::array* list = node.as_array();
  if (list == nullptr) return at(file, node, "tenant: expected [[tenant]] tables");
  if (list->size() >= limits::kTenantsMax) {
    return at(
        file, node,
        "tenant: at most " + std::to_string(limits::kTenantsMax - 1) + " of them are possible");
  }
  for (const toml::node& item : *list) {
    if (auto good = add_tenant(config, item, file); !good) return good;
  }
  return {};
}

std::string tenants_to_toml(const Config& config) {
  std::string text;
  for (const auto& tenant : config.tenants) {
    text += "\n[[tenant]]\nname = " + quoted(tenant.name) + "\n";
    if (!tenant.salts.empty()) {
      std::string salts;
      for (const auto& salt : tenant.salts) salts += (salts.empty() ? "" : ", ") + quoted(salt);
      text += "salts = [" + salts + "]\n";
    }
    text += "users = " + show_principals(tenant.members.users) + "\n";
    text += "groups = " + show_principals(tenant.members.groups) + "\n";
    text += show("quota", tenant.quota) + show("guaranteed", tenant.guaranteed);
    text += std::string("isolated = ") + (tenant.isolated ? "true" : "false") + "\n";
  }
  return text;
}

std::uint64_t capacity_of(const Config& config, Tier tier) noexcept {
  if (tier == Tier::device) return config.device.capacity_bytes;
  if (tier == Tier::host) return config.host.capacity_bytes;
  return config.disk.capacity_bytes * config.disk.directories.size();
}

Result<void> check_tenants(const Config& config) {
  for (const Tier tier : kAllTiers) {
    const std::size_t t = index_of(tier);
    const std::uint64_t cap = capacity_of(config, tier);
    const std::string of_tier = std::string(" of the ") + name(tier) + " tier";
    std::uint64_t sum = 0;
    for (const auto& tenant : config.tenants) {
      const std::uint64_t least = tenant.guaranteed[t] ? tenant.guaranteed[t]->bytes_of(cap) : 0;
      if (tenant.quota[t] && least > tenant.quota[t]->bytes_of(cap)) {
        return make_error(Errc::invalid, "[[tenant]] '" + tenant.name + "': guaranteed" + of_tier +
                                             " is more than its quota: lower it");
      }
      // Each is at most 2^62, and so is a cap: no sum of two overflows.
      sum += least;
      if (sum > cap) {
        return make_error(Errc::invalid, "[[tenant]]: more than all" + of_tier + " (" +
                                             std::to_string(cap) +
                                             " bytes) is guaranteed: lower `guaranteed` of '" +
                                             tenant.name + "' or of another tenant");
      }
    }
  }
  return {};
}

}  // namespace kvtier::daemon
