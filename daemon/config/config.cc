#include "daemon/config/config.h"

#include <toml++/toml.h>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "core/base/sizes.h"
#include "core/base/units.h"
#include "daemon/config/config_values.h"
#include "daemon/config/listen_address.h"
#include "daemon/limits.h"

namespace kvtier::daemon {
namespace config_values {

std::string place(const std::string& file, const toml::source_region& at) {
  return file + ":" + std::to_string(at.begin.line) + ":" + std::to_string(at.begin.column) + ": ";
}

Error expected(const std::string& what) {
  return make_error(Errc::invalid, "expected " + what);
}

std::string quoted(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

std::string show_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? std::to_string(bytes) : quoted(std::to_string(bytes) + kUnits[unit]);
}

Result<std::uint64_t> bytes_from(const toml::node& node) {
  if (const auto number = node.value_exact<std::int64_t>(); number && *number >= 0)
    return static_cast<std::uint64_t>(*number);
  if (const auto text = node.value_exact<std::string>()) {
    if (const auto bytes = parse_size(*text)) return bytes;
  }
  return expected(std::string("a size: ") + kSizeForms);
}

}  // namespace config_values

namespace {

using namespace config_values;

// More than any machine has.
constexpr std::uint64_t kUnknownCapacity = std::uint64_t{1} << 62;

struct Setting {
  std::function<Result<void>(Config&, const toml::node&)> set;
  std::function<std::string(const Config&)> show;
};
// Section (empty: top level), then key.
using Settings = std::map<std::string, std::map<std::string, Setting>>;

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

// `field(config)` gives a reference to the member.
template <class Field>
Setting bytes(Field field, std::uint64_t low, std::uint64_t multiple_of) {
  return {[=](Config& config, const toml::node& node) -> Result<void> {
            const auto value = bytes_from(node);
            if (!value) return value.error();
            if (*value < low || *value % multiple_of != 0) {
              return expected("a size of at least " + std::to_string(low) +
                              " bytes and a multiple of " + std::to_string(multiple_of));
            }
            field(config) = *value;
            return {};
          },
          [=](const Config& config) { return show_bytes(field(const_cast<Config&>(config))); }};
}

template <class Field>
Setting boolean(Field field) {
  return {[=](Config& config, const toml::node& node) -> Result<void> {
            const auto value = node.value_exact<bool>();
            if (!value) return expected("true or false");
            field(config) = *value;
            return {};
          },
          [=](const Config& config) {
            return std::string(field(const_cast<Config&>(config)) ? "true" : "false");
          }};
}

template <class Field>
Setting path(Field field) {
  return {
      [=](Config& config, const toml::node& node) -> Result<void> {
        const auto value = node.value_exact<std::string>();
        if (!value || !value->starts_with('/')) {
          return expected("an absolute path in quotes");
        }
        field(config) = *value;
        return {};
      },
      [=](const Config& config) { return quoted(field(const_cast<Config&>(config)).string()); }};
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

template <class Field>
Setting integer(Field field, std::int64_t low, std::int64_t high) {
  return {[=](Config& config, const toml::node& node) -> Result<void> {
            const auto value = node.value_exact<std::int64_t>();
            if (!value || *value < low || *value > high) {
              return expected("a whole number from " + std::to_string(low) + " to " +
                              std::to_string(high));
            }
            field(config) = static_cast<std::uint32_t>(*value);
            return {};
          },
          [=](const Config& config) { return std::to_string(field(const_cast<Config&>(config))); }};
}

template <class Field>
Setting milliseconds(Field field, std::int64_t low, std::int64_t high) {
  return {[=](Config& config, const toml::node& node) -> Result<void> {
            const auto value = node.value_exact<std::int64_t>();
            if (!value || *value < low || *value > high) {
              return expected("milliseconds from " + std::to_string(low) + " to " +
                              std::to_string(high));
            }
            field(config) = std::chrono::milliseconds(*value);
            return {};
          },
          [=](const Config& config) {
            return std::to_string(field(const_cast<Config&>(config)).count());
          }};
}

template <class Field>
Setting file_mode(Field field) {
  return {[=](Config& config, const toml::node& node) -> Result<void> {
            const auto text = node.value_exact<std::string>();
            std::uint32_t mode = 0;
            const char* end = text ? text->data() + text->size() : nullptr;
            if (!text || text->empty() || std::from_chars(text->data(), end, mode, 8).ptr != end ||
                mode > 0777) {
              return expected("a file mode in quotes, such as \"0660\"");
            }
            field(config) = mode;
            return {};
          },
          [=](const Config& config) {
            char text[8];
            std::snprintf(text, sizeof text, "%04o", field(const_cast<Config&>(config)));
            return quoted(text);
          }};
}

// `choices` are pairs of a word and what it stands for.
template <class Field, class Value>
Setting choice(Field field, std::vector<std::pair<std::string, Value>> choices) {
  return {[=](Config& config, const toml::node& node) -> Result<void> {
            const auto word = node.value_exact<std::string>();
            std::string all;
            for (const auto& [name, value] : choices) {
              if (word && *word == name) {
                field(config) = value;
                return {};
              }
              all += (all.empty() ? "\"" : ", \"") + name + "\"";
            }
            return expected("one of " + all);
          },
          [=](const Config& config) {
            for (const auto& [name, value] : choices) {
              if (field(const_cast<Config&>(config)) == value) return quoted(name);
            }
            return std::string("\"\"");
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

template <class Field>
Setting principals(Field field) {
  return {
      [=](Config& config, const toml::node& node) -> Result<void> {
        auto names = principals_from(node);
        if (!names) return names.error();
        field(config) = std::move(*names);
        return {};
      },
      [=](const Config& config) { return show_principals(field(const_cast<Config&>(config))); }};
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
      {"requests_per_second", number(&Limits::requests_per_second, 1000, 1 << 30)},
      {"hello_time_ms", time(&Limits::hello_time)},
      {"frame_time_ms", time(&Limits::frame_time)},
      {"unread_time_ms", time(&Limits::unread_time)}};
}

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
      {"pins",
       {{"percent_max", integer(
                            [](Config & c) -> auto& { return c.pinned_percent_max; }, 0, 90)}}},
      // Every block passes through the host tier; there may be no device tier.
      {"host", memory_settings(
                   [](Config & c) -> auto& { return c.host; }, host_capacity())},
      {"device", device_settings()},
      {"access", access_settings()},
      {"limits", limit_settings()},
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
        {"admission",
         choice(
             [](Config & c) -> auto& { return c.disk.admission; },
             std::vector<std::pair<std::string, Admission>>{{"all", Admission::all},
                                                            {"second_hit", Admission::second_hit},
                                                            {"none", Admission::none}})},
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
