// Settings of the kinds that many keys have: sizes, numbers, words, paths. `field(config)` gives a
// reference to the member. Only settings.cc includes it.
#pragma once

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "daemon/config/settings.h"

namespace kvtier::daemon::config_values {

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

}  // namespace kvtier::daemon::config_values
