// What reads bytes that somebody else wrote, as functions of bytes. Whatever they are, nothing may
// crash, hang or, where a sanitizer looks, go wrong; a broken promise aborts.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace kvtier::fuzz {

using Bytes = std::vector<std::byte>;

struct Target {
  std::string name;
  void (*run)(std::span<const std::byte>);
  // Inputs that are right, to begin with.
  std::vector<Bytes> (*seeds)();
};

// frames: messages on the socket of a real daemon in this process.
Target frames();
Target config();
Target slot_table();
Target segment();
// Those of the engine.
Target safetensors();
Target tokenizer();
Target chat_template();

std::vector<Target> all_targets();

inline Bytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace kvtier::fuzz
