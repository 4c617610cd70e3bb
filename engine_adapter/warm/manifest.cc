#include "engine_adapter/warm/manifest.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "engine_adapter/reference/files/json.h"
#include "engine_adapter/warm/limits.h"

namespace kvtier::warm {
namespace {

using engine::Json;
using engine::JsonFields;

Result<Json> parse_toml(const std::string& text, const std::string& where) {
  try {
    const toml::table table = toml::parse(text, where);
    std::ostringstream json;
    json << toml::json_formatter(table);
    return engine::parse_json(json.str(), where);
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    return make_error(Errc::malformed, where + ":" + std::to_string(at.line) + ":" +
                                           std::to_string(at.column) + ": " +
                                           std::string(error.description()));
  }
}

Result<Json> read_any(const std::filesystem::path& file) {
  const std::string kind = file.extension().string();
  if (kind != ".toml" && kind != ".json") {
    return make_error(Errc::invalid, file.string() + ": name a manifest .toml or .json");
  }
  const auto text = engine::read_file(file);
  if (!text) return text.error();
  if (text->size() > kManifestBytesMax) {
    return make_error(Errc::invalid, file.string() + ": larger than " +
                                         std::to_string(kManifestBytesMax >> 20U) + " MiB");
  }
  return kind == ".toml" ? parse_toml(*text, file.string())
                         : engine::parse_json(*text, file.string());
}

// Errors: invalid, naming the first key that is not one of `known`.
template <std::size_t N>
Result<void> only_known(const Json& object, const std::array<const char*, N>& known,
                        const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) != known.end()) continue;
    std::string choices;
    for (const char* one : known) {
      if (!choices.empty()) choices += ", ";
      choices += one;
    }
    return make_error(Errc::invalid, where + ": no key is called '" + key + "': " + choices);
  }
  return {};
}

// prefix or prefix_file, and salt, over what holds outside.
Result<void> take_common(const Json& object, const std::string& where,
                         const std::filesystem::path& folder, Source& into) {
  JsonFields fields(object, where);
  const std::string prefix = fields.text("prefix", "");
  const std::string file = fields.text("prefix_file", "");
  into.salt = fields.text("salt", into.salt);
  if (fields.error()) return *fields.error();
  if (object.contains("prefix") && object.contains("prefix_file")) {
    return make_error(Errc::invalid, where + ": give prefix or prefix_file, not both");
  }
  if (object.contains("prefix")) into.prefix = std::make_shared<const std::string>(prefix);
  if (object.contains("prefix_file")) {
    auto read = read_prefix(folder / file);
    if (!read) return make_error(read.error().code, where + ": " + read.error().message);
    into.prefix = std::move(*read);
  }
  return {};
}

}  // namespace

Result<std::vector<Source>> load_manifest(const std::filesystem::path& file,
                                          const Source& defaults) {
  const auto json = read_any(file);
  if (!json) return json.error();
  const std::string where = file.string();
  if (!json->is_object()) return make_error(Errc::malformed, where + ": is not an object");
  constexpr std::array<const char*, 4> kTop{"prefix", "prefix_file", "salt", "documents"};
  constexpr std::array<const char*, 4> kEach{"path", "prefix", "prefix_file", "salt"};
  if (auto known = only_known(*json, kTop, where); !known) return known.error();
  Source common = defaults;
  const auto folder = file.parent_path();
  if (auto took = take_common(*json, where, folder, common); !took) return took.error();
  const Json* documents = engine::find(*json, "documents");
  if (documents == nullptr || !documents->is_array() || documents->empty()) {
    return make_error(Errc::invalid, where + ": documents: give at least one, each with a path");
  }
  std::vector<Source> sources;
  for (std::size_t i = 0; i < documents->size(); ++i) {
    const Json& one = (*documents)[i];
    const std::string place = where + ": documents[" + std::to_string(i) + "]";
    if (!one.is_object()) return make_error(Errc::malformed, place + ": is not an object");
    if (auto known = only_known(one, kEach, place); !known) return known.error();
    Source source = common;
    if (auto took = take_common(one, place, folder, source); !took) return took.error();
    JsonFields fields(one, place);
    source.path = (folder / fields.text("path")).string();
    if (fields.error()) return *fields.error();
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace kvtier::warm
