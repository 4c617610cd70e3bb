// [events] in the configuration.
#include <algorithm>

#include "core/base/units.h"
#include "daemon/config/listen_address.h"
#include "daemon/config/setting_kinds.h"
#include "daemon/config/tenants.h"
#include "daemon/limits.h"

namespace kvtier::daemon {
namespace {

using namespace config_values;

// Of a unix socket, with the zero behind it.
constexpr std::size_t kIpcPathMax = 107;

Result<void> check_endpoint(const std::string& text) {
  const Error mend = expected(
      "\"ipc:///run/kvtier/events.sock\" (an absolute path), \"tcp://127.0.0.1:5557\" (an address "
      "and a port; 0.0.0.0 is every address), or \"\" for none");
  if (text.empty()) return {};
  constexpr std::string_view kIpc = "ipc://", kTcp = "tcp://";
  if (text.starts_with(kIpc)) {
    const std::string path = text.substr(kIpc.size());
    if (!path.starts_with('/')) return mend;
    if (path.size() > kIpcPathMax)
      return expected("a path of at most " + std::to_string(kIpcPathMax) + " bytes behind ipc://");
    return {};
  }
  if (!text.starts_with(kTcp)) return mend;
  const auto at = ops::parse_listen(text.substr(kTcp.size()));
  if (!at || at->port() == 0) return mend;
  return {};
}

template <class Field>
Setting endpoint(Field field) {
  return {[=](Config& config, const toml::node& node) -> Result<void> {
            const auto text = node.value_exact<std::string>();
            if (!text) return expected("an endpoint in quotes");
            if (auto good = check_endpoint(*text); !good) return good;
            field(config) = *text;
            return {};
          },
          [=](const Config& config) {
            return config_values::quoted(field(const_cast<Config&>(config)));
          }};
}

Setting topic() {
  return {[](Config& config, const toml::node& node) -> Result<void> {
            const auto text = node.value_exact<std::string>();
            if (!text || text->size() > limits::kEventTopicBytesMax) {
              return expected("a text of at most " + std::to_string(limits::kEventTopicBytesMax) +
                              " bytes in quotes");
            }
            config.events.topic = *text;
            return {};
          },
          [](const Config& config) { return quoted(config.events.topic); }};
}

template <class Field>
Setting texts(Field field, const std::string& example) {
  const std::string mend = "a list of at most " + std::to_string(limits::kEventNamesMax) +
                           " names in quotes, such as " + example;
  const auto text = [](const toml::node& item) -> Result<std::string> {
    if (auto name = item.value_exact<std::string>()) return *std::move(name);
    return expected("a name in quotes");
  };
  return {[=](Config& config, const toml::node& node) -> Result<void> {
            auto names = list_from(node, limits::kEventNamesMax, mend, text);
            if (!names) return names.error();
            field(config) = std::move(*names);
            return {};
          },
          [=](const Config& config) {
            return show_list(field(const_cast<Config&>(config)), config_values::quoted);
          }};
}

}  // namespace

std::map<std::string, Setting> event_settings() {
  using Hashes = std::pair<std::string, Config::BlockHashes>;
  using Ranks = std::pair<std::string, Config::Ranks>;
  return {
      {"endpoint", endpoint([](Config & c) -> auto& { return c.events.endpoint; })},
      {"replay_endpoint", endpoint([](Config & c) -> auto& { return c.events.replay_endpoint; })},
      {"topic", topic()},
      {"ipc_mode", file_mode([](Config & c) -> auto& { return c.events.ipc_mode; })},
      {"tokens", boolean([](Config & c) -> auto& { return c.events.tokens; })},
      {"block_hashes", choice(
                           [](Config & c) -> auto& { return c.events.block_hashes; },
                           std::vector<Hashes>{{"int64", Config::BlockHashes::int64},
                                               {"bytes", Config::BlockHashes::bytes}})},
      {"ranks",
       choice(
           [](Config & c) -> auto& { return c.events.ranks; },
           std::vector<Ranks>{{"first", Config::Ranks::first}, {"all", Config::Ranks::all}})},
      {"tenants", texts(
                      [](Config & c) -> auto& { return c.events.tenants; }, "[\"default\"]")},
      {"models", texts(
                     [](Config & c) -> auto& { return c.events.models; }, "[\"docs-4m\"]")},
      {"queue_size", bytes(
                         [](Config & c) -> auto& { return c.events.queue_bytes; },
                         limits::kEventQueueBytesMin, 4096)},
      {"replay_size", bytes(
                          [](Config & c) -> auto& { return c.events.replay_bytes; },
                          limits::kEventReplayBytesMin, 4096)},
      {"subscriber_batches", integer(
                                 [](Config & c) -> auto& { return c.events.subscriber_batches; }, 1,
                                 limits::kEventSubscriberBatchesMax)},
  };
}

Result<void> check_events(const Config& config) {
  const Config::Events& events = config.events;
  if (events.endpoint.empty() && !events.replay_endpoint.empty())
    return make_error(Errc::invalid, "events.replay_endpoint needs events.endpoint as well");
  if (!events.endpoint.empty() && events.endpoint == events.replay_endpoint)
    return make_error(Errc::invalid,
                      "events.endpoint and events.replay_endpoint are two sockets: give each an "
                      "endpoint of its own");
  for (const std::string& name : events.tenants) {
    if (name != kDefaultTenantName &&
        std::ranges::find(config.tenants, name, &Config::Tenant::name) == config.tenants.end())
      return make_error(Errc::invalid, "events.tenants has '" + name +
                                           "', which is the name of no [[tenant]]; \"default\" is "
                                           "what is in none");
  }
  return {};
}

}  // namespace kvtier::daemon
