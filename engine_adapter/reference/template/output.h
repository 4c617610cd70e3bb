// What a rendering writes, or what a part of it does, caught. One rendering's, on one thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "engine_adapter/reference/template/value/value.h"
#include "engine_adapter/reference/template/value/write.h"

namespace kvtier::jinja {

class Output {
 public:
  // `meter` outlives it.
  explicit Output(Meter& meter) : meter_(meter) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void put(std::string_view text) {
    meter_.put(text.size());
    text_ += text;
  }
  void put(const Value& value) {
    const std::string* text = value.text();
    if (text != nullptr) return put(std::string_view(*text));
    put(std::string_view(str_of(meter_, value)));
  }

  // What `write` writes; what was written before stays.
  template <class Write>
  std::string caught(const Write& write) {
    std::string before = std::exchange(text_, {});
    write();
    return std::exchange(text_, std::move(before));
  }
  std::string take() { return std::exchange(text_, {}); }

 private:
  Meter& meter_;
  std::string text_;
};

}  // namespace kvtier::jinja
