#include "daemon/config/settings.h"

#include <algorithm>

#include "core/base/units.h"
#include "daemon/config/listen_address.h"
#include "daemon/config/setting_kinds.h"
#include "daemon/limits.h"

namespace kvtier::daemon {
namespace {

using namespace config_values;

// "auto", a share such as "25%", or a size.
Setting host_capacity() {
  const std::string mend =
      "a size of at least 4096 bytes and a multiple of 4096, such as \"64MiB\"; a share of the "
      "machine's memory from \"1%\" to \"90%\"; or \"auto\"";
  return {[mend](Config& config, const toml::node& node) -> Result<void> {
            const auto text = node.value_exact<std::string>();
            if (text && *text == "auto") {
              config.host.sizing = Sizing::automatic;
              return {};
            }
            if (text && text->ends_with('%')) {
              std::uint32_t percent = 0;
              const char* end = text->data() + text->size() - 1;
              const auto parsed = std::from_chars(text->data(), end, percent);
              if (parsed.ptr != end || parsed.ec != std::errc{} || percent < 1 || percent > 90)
                return expected(mend);
              config.host.sizing = Sizing::share;
              config.host.share_percent = percent;
              return {};
            }
            const auto value = bytes_from(node);
            if (!value || *value < 4_KiB || *value % 4_KiB != 0) return expected(mend);
            config.host.sizing = Sizing::fixed;
            config.host.capacity_bytes = *value;
            return {};
          },
          [](const Config& config) {
            const auto& host = config.host;
            if (host.sizing == Sizing::automatic) return quoted("auto");
            if (host.sizing == Sizing::share)
              return quoted(std::to_string(host.share_percent) + "%");
            return show_bytes(host.capacity_bytes);
          }};
}

// The directories of the disk tier, one (`directory`) or a list (`directories`). Whichever is not
// empty sets them; the other must be empty.
Result<void> set_directories(Config& config, std::vector<std::filesystem::path> wanted) {
  if (wanted.empty()) return {};
  if (!config.disk.directories.empty()) {
    return make_error(Errc::invalid, "give either directory or directories, not both");
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (std::find(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(i), wanted[i]) !=
        wanted.begin() + static_cast<std::ptrdiff_t>(i)) {
      return make_error(Errc::invalid, wanted[i].string() + " is there twice");
    }
  }
  config.disk.directories = std::move(wanted);
  return {};
}

Setting single_directory() {
  return {[](Config& config, const toml::node& node) -> Result<void> {
            const auto value = node.value_exact<std::string>();
            if (!value || (!value->empty() && value->front() != '/')) {
              return expected("an absolute path in quotes");
            }
            if (value->empty()) return {};
            return set_directories(config, {*value});
          },
          [](const Config& config) {
            const auto& all = config.disk.directories;
            return quoted(all.size() == 1 ? all[0].string() : "");
          }};
}

Setting directory_list() {
  const std::string mend = "a list of at most " + std::to_string(limits::kDisksMax) +
                           " absolute paths, such as [\"/mnt/a\", \"/mnt/b\"]";
  return {[mend](Config& config, const toml::node& node) -> Result<void> {
            const toml::array* list = node.as_array();
            if (list == nullptr || list->size() > limits::kDisksMax) return expected(mend);
            std::vector<std::filesystem::path> paths;
            for (const toml::node& item : *list) {
              const auto value = item.value_exact<std::string>();
              if (!value || !value->starts_with('/')) return expected(mend);
              paths.emplace_back(*value);
            }
            return set_directories(config, std::move(paths));
          },
          [](const Config& config) {
            const auto& all = config.disk.directories;
            std::string text;
            for (std::size_t i = 0; all.size() > 1 && i < all.size(); ++i) {
              text += (i == 0 ? "" : ", ") + quoted(all[i].string());
            }
            return "[" + text + "]";
          }};
}

Setting gpu_list() {
  const std::string mend = "a list of 1 to " + std::to_string(limits::kGpusMax) +
                           " different GPU numbers below 64, such as [0, 1]";
  return {[mend](Config& config, const toml::node& node) -> Result<void> {
            const toml::array* list = node.as_array();
            if (list == nullptr || list->empty() || list->size() > limits::kGpusMax)
              return expected(mend);
            std::vector<std::uint32_t> gpus;
            for (const toml::node& item : *list) {
              const auto value = item.value_exact<std::int64_t>();
              if (!value || *value < 0 || *value >= 64) return expected(mend);
              const auto gpu = static_cast<std::uint32_t>(*value);
              if (std::ranges::find(gpus, gpu) != gpus.end()) return expected(mend);
              gpus.push_back(gpu);
            }
            config.device.gpus = std::move(gpus);
            return {};
          },
          [](const Config& config) {
            std::string text;
            for (const std::uint32_t gpu : config.device.gpus)
              text += (text.empty() ? "" : ", ") + std::to_string(gpu);
            return "[" + text + "]";
          }};
}

Setting listen_address() {
  return {[](Config& config, const toml::node& node) -> Result<void> {
            const auto text = node.value_exact<std::string>();
            if (!text) return expected("an address and a port in quotes");
            if (!text->empty()) {
              if (auto at = ops::parse_listen(*text); !at) return at.error();
            }
            config.http.listen = *text;
            return {};
          },
          [](const Config& config) { return quoted(config.http.listen); }};
}

Setting host_names() {
  const std::string mend =
      "a list of at most " + std::to_string(limits::kHttpHostsMax) +
      " names in lower case and without a port, such as [\"node17\", \"node17.example.org\"]";
  return {[mend](Config& config, const toml::node& node) -> Result<void> {
            const toml::array* list = node.as_array();
            if (list == nullptr || list->size() > limits::kHttpHostsMax) return expected(mend);
            std::vector<std::string> names;
            for (const toml::node& item : *list) {
              const auto name = item.value_exact<std::string>();
              const auto good = [](char c) {
                return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
                       c == '_';
              };
              if (!name || name->empty() || !std::ranges::all_of(*name, good))
                return expected(mend);
              names.push_back(*name);
            }
            config.http.hosts = std::move(names);
            return {};
          },
          [](const Config& config) {
            std::string text;
            for (const std::string& name : config.http.hosts)
              text += (text.empty() ? "" : ", ") + quoted(name);
            return "[" + text + "]";
          }};
}

template <class Of>
std::map<std::string, Setting> memory_settings(Of of, Setting capacity) {
  return {
      {"capacity", std::move(capacity)},
      {"extent_size", bytes(
                          [of](Config & c) -> auto& { return of(c).extent_bytes; }, 64_KiB, 4096)},
      {"huge_pages", boolean([of](Config & c) -> auto& { return of(c).huge_pages; })},
      {"prefault", boolean([of](Config & c) -> auto& { return of(c).prefault; })},
  };
}

std::map<std::string, Setting> device_settings() {
  auto all = memory_settings(
      [](Config & c) -> auto& { return c.device; },
      bytes(
          [](Config & c) -> auto& { return c.device.capacity_bytes; }, 0, 4096));
  all.emplace("backend",
              choice(
                  [](Config & c) -> auto& { return c.device.backend; },
                  std::vector<std::pair<std::string, DeviceBackend>>{
                      {"memory", DeviceBackend::memory}, {"cuda", DeviceBackend::cuda}}));
  all.emplace("gpus", gpu_list());
  return all;
}

Setting admin_group() {
  return {[](Config& config, const toml::node& node) -> Result<void> {
            auto name = principal_from(node);
            if (!name) return name.error();
            config.access.admin_group = std::move(*name);
            return {};
          },
          [](const Config& config) { return show_principal(config.access.admin_group); }};
}

std::map<std::string, Setting> access_settings() {
  return {
      {"admin_group", admin_group()},
      {"read_only_users", principals([](Config & c) -> auto& { return c.access.read_only.users; })},
      {"read_only_groups",
       principals([](Config & c) -> auto& { return c.access.read_only.groups; })},
      {"read_only_device", boolean([](Config & c) -> auto& { return c.access.read_only_device; })}};
}

std::map<std::string, Setting> limit_settings() {
  const auto number = [](std::uint32_t Config::Limits::*member, std::int64_t low,
                         std::int64_t high) {
    return integer(
        [member](Config & c) -> auto& { return c.limits.*member; }, low, high);
  };
  const auto time = [](std::chrono::milliseconds Config::Limits::*member) {
    return milliseconds(
        [member](Config & c) -> auto& { return c.limits.*member; }, 100, 3'600'000);
  };
  using Limits = Config::Limits;
  return {
      {"sessions_max", number(&Limits::sessions_max, 1, limits::kSessionsMax)},
      {"sessions_per_user", number(&Limits::sessions_per_user, 1, limits::kSessionsMax)},
      {"leases_per_session", number(&Limits::leases_per_session, 1, limits::kLeasesPerSessionMax)},
      {"leases_per_user", number(&Limits::leases_per_user, 1, limits::kLeasesPerUserMax)},
      {"leased_percent", number(&Limits::leased_percent, 1, 100)},
      {"kept_percent", number(&Limits::kept_percent, 0, limits::kHintedPercentMax)},
      {"prefetched_percent", number(&Limits::prefetched_percent, 0, 100)},
      {"requests_per_second", number(&Limits::requests_per_second, 1000, 1 << 30)},
      {"hello_time_ms", time(&Limits::hello_time)},
      {"frame_time_ms", time(&Limits::frame_time)},
      {"unread_time_ms", time(&Limits::unread_time)}};
}

}  // namespace

const Settings& settings() {
  using LogLevel = std::pair<std::string, std::string>;
  static const Settings all{
      {"",
       {{"socket", path([](Config & c) -> auto& { return c.socket; })},
        {"socket_mode", file_mode([](Config & c) -> auto& { return c.socket_mode; })},
        {"lease_time_ms", milliseconds(
                              [](Config & c) -> auto& { return c.lease_time; }, 100, 3'600'000)},
        {"shutdown_timeout_ms",
         milliseconds(
             [](Config & c) -> auto& { return c.shutdown_timeout; }, 0, 600'000)},
        {"log_level",
         choice(
             [](Config & c) -> auto& { return c.log_level; },
             std::vector<LogLevel>{
                 {"debug", "debug"}, {"info", "info"}, {"warn", "warn"}, {"error", "error"}})}}},
      {"index",
       {{"blocks_max", integer(
                           [](Config & c) -> auto& { return c.index_blocks_max; }, 16, 1 << 29)}}},
      {"cache",
       {{"policy",
         choice(
             [](Config & c) -> auto& { return c.policy; },
             std::vector<std::pair<std::string, EvictionPolicy>>{
                 {"hit_density", EvictionPolicy::hit_density}, {"lru", EvictionPolicy::lru}})}}},
      {"pins",
       {{"percent_max", integer(
                            [](Config & c) -> auto& { return c.pinned_percent_max; }, 0, 90)}}},
      // Every block passes through the host tier; there may be no device tier.
      {"host", memory_settings(
                   [](Config & c) -> auto& { return c.host; }, host_capacity())},
      {"device", device_settings()},
      {"access", access_settings()},
      {"limits", limit_settings()},
      {"events", event_settings()},
      {"remote", remote_settings()},
      {"http",
       {{"listen", listen_address()},
        {"hosts", host_names()},
        {"stall_after_ms",
         milliseconds(
             [](Config & c) -> auto& { return c.http.stall_after; }, 100, 600'000)}}},
      {"disk",
       {{"directory", single_directory()},
        {"directories", directory_list()},
        {"capacity", bytes(
                         [](Config & c) -> auto& { return c.disk.capacity_bytes; }, 1_MiB, 4096)},
        {"segment_size",
         bytes(
             [](Config & c) -> auto& { return c.disk.segment_bytes; }, 64_KiB, 4096)},
        {"admission", choice(
                          [](Config & c) -> auto& { return c.disk.admission; },
                          std::vector<std::pair<std::string, Admission>>{
                              {"all", Admission::all},
                              {"second_hit", Admission::second_hit},
                              {"expected_reuse", Admission::expected_reuse},
                              {"none", Admission::none}})},
        {"write_budget", bytes(
                             [](Config & c) -> auto& { return c.disk.write_budget; }, 0, 1)},
        {"scrub_mib_per_s",
         integer(
             [](Config & c) -> auto& { return c.disk.scrub_mib_per_s; }, 0, 1 << 20)},
        {"io", choice(
                   [](Config & c) -> auto& { return c.disk.io; },
                   std::vector<std::pair<std::string, DiskIo>>{{"uring", DiskIo::uring},
                                                               {"sqpoll", DiskIo::sqpoll},
                                                               {"threads", DiskIo::threads}})}}}};
  return all;
}

}  // namespace kvtier::daemon
