#include "engine_adapter/reference/template/value/write.h"

#include <algorithm>
#include <cmath>

#include "engine_adapter/reference/template/value/unicode.h"

namespace kvtier::jinja {
namespace {

class Writer {
 public:
  explicit Writer(Meter& meter) : meter_(meter) {}

  void repr(const Value& value, int depth = 0) {
    check(depth);
    if (const std::string* text = value.text()) return quoted(value.is_markup(), *text);
    if (const Sequence* sequence = value.sequence()) return repr_sequence(*sequence, depth);
    if (const Map* map = value.map()) return repr_map(*map, depth);
    if (const auto* space = value.shared<Namespace>()) {
      put("<Namespace ");
      repr_map(space->attributes, depth);
      return put(">");
    }
    if (value.is_undefined()) return put("Undefined");
    if (value.is_none()) return put("None");
    if (const bool* flag = value.get_if<bool>()) return put(*flag ? "True" : "False");
    if (const auto* number = value.get_if<std::int64_t>()) return put(std::to_string(*number));
    if (const double* real = value.get_if<double>()) return put(float_text(*real));
    meter_.fail(std::string(value.type_name()) + " has no text");
  }

  void json(const Value& value, const JsonStyle& style, int depth) {
    check(depth);
    const Sequence* sequence = value.sequence();
    if (sequence != nullptr && sequence->kind <= Sequence::Sequence::Kind::group) {
      json_list(sequence->items, style, depth);
    } else if (const Map* map = value.map()) {
      json_map(*map, style, depth);
    } else if (const std::string* text = value.text()) {
      json_text(*text, style.ascii);
    } else if (value.is_none()) {
      put("null");
    } else if (const bool* flag = value.get_if<bool>()) {
      put(*flag ? "true" : "false");
    } else if (const double* real = value.get_if<double>()) {
      put(std::isnan(*real)   ? "NaN"
          : std::isinf(*real) ? (*real < 0 ? "-Infinity" : "Infinity")
                              : float_text(*real));
    } else if (value.is_whole()) {
      put(std::to_string(value.whole()));
    } else {
      meter_.fail(std::string("tojson: ") + value.type_name() + " has no JSON form");
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void put(std::string_view text) {
    meter_.make(text.size());
    out_ += text;
  }
  void check(int depth) {
    meter_.step();
    if (depth > kValueDepthMax) meter_.fail("values are nested too deeply to be written");
  }
  void quoted(bool markup, std::string_view text) {
    meter_.make(6 * text.size());
    if (markup) out_ += "Markup(";
    append_quoted(out_, text);
    if (markup) out_ += ')';
  }

  void repr_sequence(const Sequence& sequence, int depth) {
    constexpr const char* kOpen[] = {
        "[", "(", "(", "range(", "dict_keys([", "dict_values([", "dict_items(["};
    constexpr const char* kClose[] = {"]", ")", ")", ")", "])", "])", "])"};
    const auto kind = static_cast<std::size_t>(sequence.kind);
    const List& items = sequence.items;
    put(kOpen[kind]);
    if (sequence.kind == Sequence::Kind::range) {
      const std::int64_t stride = items.size() > 1 ? items[1].whole() - items[0].whole() : 1;
      const std::int64_t first = items.empty() ? 0 : items.front().whole();
      const std::int64_t end = items.empty() ? 0 : items.back().whole() + stride;
      put(std::to_string(first) + ", " + std::to_string(end));
      if (stride != 1) put(", " + std::to_string(stride));
    } else {
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (i != 0) put(", ");
        repr(items[i], depth + 1);
      }
      if (items.size() == 1 &&
          (sequence.kind == Sequence::Kind::tuple || sequence.kind == Sequence::Kind::group)) {
        put(",");
      }
    }
    put(kClose[kind]);
  }

  void repr_map(const Map& map, int depth) {
    put("{");
    bool first = true;
    for (const auto& [key, entry] : map.entries()) {
      if (!first) put(", ");
      first = false;
      quoted(false, key);
      put(": ");
      repr(entry, depth + 1);
    }
    put("}");
  }

  void json_text(std::string_view text, bool ascii) {
    meter_.make(text.size() + 2);
    const std::size_t before = out_.size();
    append_json(out_, text, ascii);
    const std::size_t written = out_.size() - before;
    if (written > text.size() + 2) meter_.make(written - text.size() - 2);
  }

  void new_line(const JsonStyle& style, int depth) {
    if (style.indent < 0) return;
    const auto spaces = static_cast<std::size_t>(style.indent) * static_cast<std::size_t>(depth);
    meter_.make(spaces + 1);
    out_ += '\n';
    out_.append(spaces, ' ');
  }

  void json_list(const List& items, const JsonStyle& style, int depth) {
    put("[");
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i != 0) put(style.between);
      new_line(style, depth + 1);
      json(items[i], style, depth + 1);
    }
    if (!items.empty()) new_line(style, depth);
    put("]");
  }

  void json_map(const Map& map, const JsonStyle& style, int depth) {
    std::vector<const std::pair<std::string, Value>*> entries;
    entries.reserve(map.entries().size());
    for (const auto& entry : map.entries()) entries.push_back(&entry);
    if (style.sorted) {
      meter_.step(entries.size());
      std::ranges::sort(entries, {},
                        [](const auto* entry) { return std::string_view(entry->first); });
    }
    put("{");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i != 0) put(style.between);
      new_line(style, depth + 1);
      json_text(entries[i]->first, style.ascii);
      put(style.after_key);
      json(entries[i]->second, style, depth + 1);
    }
    if (!entries.empty()) new_line(style, depth);
    put("}");
  }

  Meter& meter_;
  std::string out_;
};

}  // namespace

std::string repr_of(Meter& meter, const Value& value) {
  Writer writer(meter);
  writer.repr(value);
  return writer.take();
}

std::string str_of(Meter& meter, const Value& value) {
  if (value.is_undefined()) return {};
  const std::string* text = value.text();
  if (text == nullptr) return repr_of(meter, value);
  meter.make(text->size());
  return *text;
}

std::string json_of(Meter& meter, const Value& value, const JsonStyle& style) {
  Writer writer(meter);
  writer.json(value, style, 0);
  return writer.take();
}

}  // namespace kvtier::jinja
