// Records of a wanted size, prompts made of numbers, and a directory that goes away.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kvtier/namespace.h"
#include "kvtier/record_layout.h"

namespace kvtier::bench {

inline constexpr std::uint32_t kBlockTokens = 16;
inline constexpr std::uint64_t kSmallestRecord = 8192;

// A namespace whose records have exactly this size: a multiple of 4 KiB from 8 KiB to 4 MiB.
Namespace namespace_of_records(std::uint64_t record_bytes);

// The same number gives the same tokens, another one others.
std::vector<Token> prompt(std::uint64_t number, std::size_t tokens);

std::uint64_t mixed(std::uint64_t number) noexcept;

// A fresh directory below `parent`, removed with all it holds.
class ScratchDirectory {
 public:
  // Throws std::runtime_error, saying why it cannot be made.
  explicit ScratchDirectory(const std::filesystem::path& parent);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The value, or a std::runtime_error with the error's message: a measurement has nothing better to
// do.
template <class T>
T need(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace kvtier::bench
