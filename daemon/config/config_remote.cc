// [remote] in the configuration.
#include <algorithm>
#include <array>

#include "daemon/config/setting_kinds.h"
#include "daemon/limits.h"

namespace kvtier::daemon {
namespace {

using namespace config_values;

constexpr std::array<std::string_view, 4> kSchemes{"redis://", "rediss://", "redis+unix://",
                                                   "file:///"};
constexpr std::int64_t kExpirySecondsMax = 366LL * 86'400;
constexpr std::int64_t kConnectionsMax = 64;

Setting store_url() {
  return {[](Config& config, const toml::node& node) -> Result<void> {
            const auto text = node.value_exact<std::string>();
            const auto begins = [&](std::string_view scheme) {
              return text->starts_with(scheme) && text->size() > scheme.size();
            };
            if (!text || (!text->empty() && std::ranges::none_of(kSchemes, begins))) {
              return expected(
                  "\"redis://HOST:PORT\", \"rediss://HOST:PORT\" (over TLS), "
                  "\"redis+unix:///SOCKET\", \"file:///DIRECTORY\", or \"\" for no remote tier");
            }
            config.remote.url = *text;
            return {};
          },
          [](const Config& config) { return quoted(config.remote.url); }};
}

// Of a secret or a certificate; empty: none.
Setting optional_file(std::string Config::Remote::*member) {
  return {[member](Config& config, const toml::node& node) -> Result<void> {
            const auto text = node.value_exact<std::string>();
            if (!text || (!text->empty() && !text->starts_with('/')))
              return expected("an absolute path in quotes, or \"\" for none");
            config.remote.*member = *text;
            return {};
          },
          [member](const Config& config) { return quoted(config.remote.*member); }};
}

Setting tenants_that_share() {
  const std::string mend = "a list of at most " + std::to_string(limits::kTenantsMax) +
                           " names of isolated tenants in quotes, such as [\"acme\"]";
  const auto text = [](const toml::node& item) -> Result<std::string> {
    if (auto name = item.value_exact<std::string>()) return *std::move(name);
    return expected("a name in quotes");
  };
  return {
      [=](Config& config, const toml::node& node) -> Result<void> {
        auto names = list_from(node, limits::kTenantsMax, mend, text);
        if (!names) return names.error();
        config.remote.tenants = std::move(*names);
        return {};
      },
      [](const Config& config) { return show_list(config.remote.tenants, config_values::quoted); }};
}

}  // namespace

std::map<std::string, Setting> remote_settings() {
  using Remote = Config::Remote;
  using Choices = std::vector<std::pair<std::string, RemoteAdmission>>;
  return {
      {"url", store_url()},
      {"password_file", optional_file(&Remote::password_file)},
      {"tls_ca_file", optional_file(&Remote::tls_ca_file)},
      {"tls_cert_file", optional_file(&Remote::tls_cert_file)},
      {"tls_key_file", optional_file(&Remote::tls_key_file)},
      {"key_file", optional_file(&Remote::key_file)},
      {"cluster", boolean([](Config & c) -> auto& { return c.remote.cluster; })},
      {"connections",
       integer(
           [](Config & c) -> auto& { return c.remote.connections; }, 1, kConnectionsMax)},
      {"read_bytes_per_s",
       bytes(
           [](Config & c) -> auto& { return c.remote.read_bytes_per_s; }, 0, 1)},
      {"write_bytes_per_s",
       bytes(
           [](Config & c) -> auto& { return c.remote.write_bytes_per_s; }, 0, 1)},
      {"expiry_s",
       integer(
           [](Config & c) -> auto& { return c.remote.expiry_s; }, 0, kExpirySecondsMax)},
      {"lookup_timeout_ms",
       milliseconds(
           [](Config & c) -> auto& { return c.remote.lookup_timeout; }, 1, 1000)},
      {"read_timeout_ms",
       milliseconds(
           [](Config & c) -> auto& { return c.remote.read_timeout; }, 10, 60'000)},
      {"blocks_known_max", integer(
                               [](Config & c) -> auto& { return c.remote.blocks_known_max; }, 16,
                               limits::kRemoteKnownMax)},
      {"admission", choice(
                        [](Config & c) -> auto& { return c.remote.admission; },
                        Choices{{"second_use", RemoteAdmission::second_use},
                                {"all", RemoteAdmission::all},
                                {"warm", RemoteAdmission::warm}})},
      {"tenants", tenants_that_share()},
  };
}

Result<void> check_remote(const Config& config) {
  const Config::Remote& remote = config.remote;
  const bool tls = remote.url.starts_with("rediss://");
  if (!tls && !(remote.tls_ca_file.empty() && remote.tls_cert_file.empty() &&
                remote.tls_key_file.empty())) {
    return make_error(Errc::invalid,
                      "remote.tls_ca_file, tls_cert_file and tls_key_file are of a server over "
                      "TLS: give a remote.url with rediss://, or leave them out");
  }
  if (remote.tls_cert_file.empty() != remote.tls_key_file.empty())
    return make_error(Errc::invalid,
                      "remote.tls_cert_file and remote.tls_key_file belong together: give both");
  const bool directory = remote.url.starts_with("file://");
  if (directory && (remote.cluster || !remote.password_file.empty()))
    return make_error(Errc::invalid,
                      "remote.cluster and remote.password_file are of a server, and remote.url is "
                      "a directory: leave them out");
  if (directory && remote.expiry_s != 0)
    return make_error(Errc::invalid,
                      "remote.expiry_s is kept by a server, and remote.url is a directory: leave "
                      "it out, and have old files removed there");
  for (const std::string& name : remote.tenants) {
    const auto tenant = std::ranges::find(config.tenants, name, &Config::Tenant::name);
    if (tenant == config.tenants.end() || !tenant->isolated)
      return make_error(Errc::invalid, "remote.tenants has '" + name +
                                           "', which is the name of no isolated [[tenant]]: what "
                                           "is not isolated needs no leave");
  }
  return {};
}

}  // namespace kvtier::daemon
