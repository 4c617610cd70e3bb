#include "engine_adapter/reference/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/base/check.h"
#include "engine_adapter/reference/tokenizer/pattern.h"

namespace kvtier::engine {

Result<Normalizer> Normalizer::parse(const Json& json, const std::string& where) {
  Normalizer normalizer;
  if (auto parsed = parse_step(json, where, normalizer.steps_); !parsed) return parsed.error();
  return normalizer;
}

Result<Normalizer::Step> Normalizer::parse_replace(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  std::string by = fields.text("content");
  if (fields.error()) return *fields.error();
  auto matches = compile_pattern(json, where, SplitBehavior::isolated, false);
  if (!matches) return matches.error();
  return Result<Step>(boost::system::in_place_value, Replace{std::move(*matches), std::move(by)});
}

Result<void> Normalizer::parse_step(const Json& json, const std::string& where,
                                    std::vector<Step>& steps) {
  JsonFields fields(json, where);
  const std::string type = fields.text("type");
  if (fields.error()) return *fields.error();
  if (type == "Sequence") {
    const Json* list = find(json, "normalizers");
    if (list == nullptr || !list->is_array()) {
      return make_error(Errc::malformed, where + ": Sequence without normalizers");
    }
    for (const Json& step : *list) {
      if (type_of(step) == "Sequence") {
        return make_error(Errc::invalid, where + ": a Sequence in a Sequence is not supported");
      }
      if (auto parsed = parse_step(step, where, steps); !parsed) return parsed;
    }
    return {};
  }
  if (type == "Prepend") {
    steps.emplace_back(Prepend{fields.text("prepend")});
    if (fields.error()) return *fields.error();
    return {};
  }
  if (type == "Replace") {
    auto replace = parse_replace(json, where + ": Replace");
    if (!replace) return replace.error();
    steps.push_back(std::move(*replace));
    return {};
  }
  constexpr std::pair<const char*, Form> kForms[] = {
      {"NFC", Form::nfc}, {"NFD", Form::nfd}, {"NFKC", Form::nfkc}, {"NFKD", Form::nfkd}};
  for (const auto& [form_name, form] : kForms) {
    if (type != form_name) continue;
    steps.emplace_back(form);
    return {};
  }
  return make_error(Errc::invalid, where + ": normalizer '" + type +
                                       "' is not supported; supported are NFC, NFD, NFKC, NFKD, "
                                       "Prepend, Replace and a Sequence of them");
}

Result<std::string> Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<Form>(&step)) {
      out = apply(*form, out);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!out.empty()) out.insert(0, prepend->text);
    } else {
      auto replaced = apply(std::get<Replace>(step), out);
      if (!replaced) return replaced;
      out = std::move(*replaced);
    }
  }
  return out;
}

std::string Normalizer::apply(Form form, const std::string& text) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return text;
  int options = UTF8PROC_STABLE;
  options |= form == Form::nfc || form == Form::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == Form::nfkc || form == Form::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                             static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  KVTIER_CHECK(size >= 0);
  return {reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size)};
}

Result<std::string> Normalizer::apply(const Replace& replace, std::string_view text) {
  const auto spans = replace.matches.spans(text);
  if (!spans) return spans.error();
  std::string out;
  for (const Splitter::Span& span : *spans) {
    out +=
        span.match ? std::string_view(replace.by) : text.substr(span.begin, span.end - span.begin);
  }
  return out;
}

}  // namespace kvtier::engine
