#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine_adapter/reference/tokenizer/splitter.h"

#include <pcre2.h>

#include <algorithm>
#include <new>

namespace kvtier::engine {
namespace {

constexpr std::string_view kWhiteSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";

std::string reason_of(int code) {
  unsigned char text[256];
  const int length = pcre2_get_error_message(code, text, sizeof text);
  return length < 0 ? "error " + std::to_string(code) : std::string(text, text + length);
}

struct FreeMatch {
  void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
};

}  // namespace

Result<std::string> oniguruma_to_pcre2(std::string_view expression) {
  std::string out;
  bool in_brackets = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c != '\\' || i + 1 == expression.size()) {
      if (c == '[') in_brackets = true;
      if (c == ']') in_brackets = false;
      out += c;
      continue;
    }
    const char escaped = expression[++i];
    if (escaped == 'S' && in_brackets) {
      return make_error(Errc::invalid, "\\S inside brackets is not supported; supported is \\s");
    }
    if (escaped == 's' || escaped == 'S') {
      if (!in_brackets) out += escaped == 's' ? "[" : "[^";
      out += kWhiteSpace;
      if (!in_brackets) out += "]";
    } else {
      out += {c, escaped};
    }
  }
  return out;
}

void Splitter::Free::operator()(void* code) const noexcept {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

Result<Splitter> Splitter::compile(const std::string& expression, SplitBehavior behavior,
                                   bool invert) {
  const auto translated = oniguruma_to_pcre2(expression);
  if (!translated) return translated.error();
  int code = 0;
  std::size_t offset = 0;
  Splitter splitter;
  splitter.behavior_ = behavior;
  splitter.invert_ = invert;
  splitter.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()),
                                     translated->size(), PCRE2_UTF | PCRE2_UCP, &code, &offset,
                                     nullptr));
  if (!splitter.code_) {
    return make_error(Errc::invalid, "the expression '" + *translated + "' at byte " +
                                         std::to_string(offset) + ": " + reason_of(code));
  }
  return splitter;
}

std::string Splitter::escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::isalnum(byte) == 0) out += '\\';
    out += c;
  }
  return out;
}

Result<std::vector<Splitter::Span>> Splitter::spans(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(code, nullptr));
  if (!match) throw std::bad_alloc();
  std::vector<Span> found;
  std::size_t covered = 0;
  std::size_t from = 0;
  while (from < text.size()) {
    const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), nullptr);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) return make_error(Errc::invalid, "cannot split the text: " + reason_of(result));
    const std::size_t* const ends = pcre2_get_ovector_pointer(match.get());
    const std::size_t begin = ends[0];
    from = ends[1];
    if (begin > covered) found.push_back({covered, begin, invert_});
    found.push_back({begin, from, !invert_});
    covered = from;
  }
  if (covered < text.size()) found.push_back({covered, text.size(), invert_});
  return found;
}

Result<void> Splitter::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const auto found = spans(text);
  if (!found) return found.error();
  const std::size_t first = pieces.size();
  bool joins_next = false;  // merged_with_next: the piece before waits for this one
  bool previous_match = false;
  for (const Span& span : *found) {
    if (span.match && behavior_ == SplitBehavior::removed) continue;
    const bool has_previous = pieces.size() > first;
    const bool join =
        has_previous &&
        ((behavior_ == SplitBehavior::merged_with_previous && span.match && !previous_match) ||
         (behavior_ == SplitBehavior::merged_with_next && joins_next && !span.match) ||
         (behavior_ == SplitBehavior::contiguous && span.match == previous_match));
    if (join) {
      std::string_view& previous = pieces.back();
      previous = {previous.data(),
                  span.end - static_cast<std::size_t>(previous.data() - text.data())};
    } else {
      pieces.push_back(text.substr(span.begin, span.end - span.begin));
    }
    previous_match = span.match;
    joins_next = span.match;
  }
  return {};
}

}  // namespace kvtier::engine
