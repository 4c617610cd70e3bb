#include "engine_adapter/reference/tokenizer/pre_tokenizer.h"

#include "engine_adapter/reference/tokenizer/pattern.h"
#include "engine_adapter/reference/tokenizer/space_mark.h"

namespace kvtier::engine {
namespace {

// GPT-2's, which ByteLevel uses with use_regex.
constexpr const char* kByteLevelExpression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Result<SplitBehavior> parse_behavior(const std::string& text, const std::string& where) {
  if (text == "Removed") return SplitBehavior::removed;
  if (text == "Isolated") return SplitBehavior::isolated;
  if (text == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (text == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (text == "Contiguous") return SplitBehavior::contiguous;
  return make_error(Errc::malformed, where + ": unknown behavior '" + text + "'");
}

Result<void> split_all(const Splitter& splitter, std::vector<std::string_view>& words) {
  std::vector<std::string_view> next;
  for (const std::string_view word : words) {
    if (auto split = splitter.split(word, next); !split) return split;
  }
  words = std::move(next);
  return {};
}

}  // namespace

Result<PreTokenizer> PreTokenizer::parse(const Json& json, const std::string& where) {
  PreTokenizer pre;
  std::vector<const Json*> steps{&json};
  if (type_of(json) == "Sequence") {
    const Json* list = find(json, "pretokenizers");
    if (list == nullptr || !list->is_array()) {
      return make_error(Errc::malformed, where + ": Sequence without pretokenizers");
    }
    steps.clear();
    for (const Json& step : *list) steps.push_back(&step);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (auto step = pre.parse_step(*steps[i], where, i + 1 == steps.size()); !step) {
      return step.error();
    }
  }
  return pre;
}

Result<void> PreTokenizer::parse_step(const Json& json, const std::string& where, bool last) {
  const std::string type = type_of(json);
  if (type == "Split") return parse_split(json, where + ": Split");
  if (type == "Digits") return parse_digits(json, where + ": Digits");
  if (type == "Metaspace") return parse_metaspace(json, where + ": Metaspace");
  if (type == "ByteLevel" && last) return parse_byte_level(json, where + ": ByteLevel");
  return make_error(Errc::invalid, where + ": type '" + type +
                                       "' is not supported here; supported are Split, Digits, "
                                       "Metaspace, and ByteLevel at the end");
}

Result<void> PreTokenizer::parse_split(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  const auto behavior = parse_behavior(fields.text("behavior"), where);
  const bool invert = fields.flag("invert", false);
  if (fields.error()) return *fields.error();
  if (!behavior) return behavior.error();
  auto splitter = compile_pattern(json, where, *behavior, invert);
  if (!splitter) return splitter.error();
  steps_.emplace_back(std::move(*splitter));
  return {};
}

Result<void> PreTokenizer::parse_digits(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  const bool individual = fields.flag("individual_digits", false);
  if (fields.error()) return *fields.error();
  auto splitter = Splitter::compile(
      "\\p{N}", individual ? SplitBehavior::isolated : SplitBehavior::contiguous, false);
  if (!splitter) return splitter.error();
  steps_.emplace_back(std::move(*splitter));
  return {};
}

Result<void> PreTokenizer::parse_metaspace(const Json& json, const std::string& where) {
  using Prepend = Metaspace::Prepend;
  JsonFields fields(json, where);
  const std::string mark = fields.text("replacement", std::string(kSpaceMark));
  const std::string scheme =
      fields.text("prepend_scheme", fields.flag("add_prefix_space", true) ? "always" : "never");
  const bool split = fields.flag("split", true);
  if (mark != kSpaceMark) {
    fields.fail(Errc::invalid, "replacement '" + mark + "' is not supported; supported is U+2581");
  }
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    fields.fail(Errc::malformed, "unknown prepend_scheme '" + scheme + "'");
  }
  if (fields.error()) return *fields.error();
  Metaspace step{scheme == "always"  ? Prepend::always
                 : scheme == "first" ? Prepend::first
                                     : Prepend::never,
                 {}};
  if (split) {
    auto splitter =
        Splitter::compile(std::string(kSpaceMark), SplitBehavior::merged_with_next, false);
    if (!splitter) return splitter.error();
    step.splitter.emplace(std::move(*splitter));
  }
  steps_.emplace_back(std::move(step));
  return {};
}

Result<void> PreTokenizer::parse_byte_level(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  const bool prefix_space = fields.flag("add_prefix_space", true);
  const bool use_regex = fields.flag("use_regex", true);
  if (fields.error()) return *fields.error();
  byte_level_ = true;
  if (prefix_space) steps_.emplace_back(PrefixSpace{});
  if (!use_regex) return {};
  auto splitter = Splitter::compile(kByteLevelExpression, SplitBehavior::isolated, false);
  if (!splitter) return splitter.error();
  steps_.emplace_back(std::move(*splitter));
  return {};
}

Result<PreTokenizer::Words> PreTokenizer::split(std::string_view text, bool at_start) const {
  Words out;
  if (text.empty()) return out;
  std::vector<std::string_view>& words = out.words;
  words.push_back(text);
  for (const Step& step : steps_) {
    if (const auto* splitter = std::get_if<Splitter>(&step)) {
      if (auto split = split_all(*splitter, words); !split) return split.error();
    } else if (std::holds_alternative<PrefixSpace>(step)) {
      for (std::string_view& word : words) {
        if (!word.starts_with(' ')) word = out.owned.emplace_back(" ").append(word);
      }
    } else {
      const auto& metaspace = std::get<Metaspace>(step);
      for (std::size_t i = 0; i < words.size(); ++i) {
        std::string& marked = out.owned.emplace_back(with_space_marks(words[i]));
        const bool prepend = metaspace.prepend == Metaspace::Prepend::always ||
                             (metaspace.prepend == Metaspace::Prepend::first && at_start && i == 0);
        if (prepend && !marked.starts_with(kSpaceMark)) marked.insert(0, kSpaceMark);
        words[i] = marked;
      }
      if (!metaspace.splitter) continue;
      if (auto split = split_all(*metaspace.splitter, words); !split) return split.error();
    }
  }
  return out;
}

}  // namespace kvtier::engine
