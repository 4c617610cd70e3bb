// Values sealed with AES-256-GCM, for stores that are not trusted with what prompts say: 12 random
// bytes (the nonce), the record enciphered, 16 bytes (the tag). The key's name is authenticated
// with it, so a value under another key does not open. Never changes; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::storage {

class ValueCipher {
 public:
  static constexpr std::size_t kKeyBytes = 32, kNonceBytes = 12, kTagBytes = 16;
  static constexpr std::size_t kMoreBytes = kNonceBytes + kTagBytes;  // than the record has

  explicit ValueCipher(const std::array<unsigned char, kKeyBytes>& key) : key_(key) {}
  ~ValueCipher();
  ValueCipher(const ValueCipher&) = delete;
  ValueCipher& operator=(const ValueCipher&) = delete;

  // Errors: invalid (cannot be read, or is not 32 bytes).
  static Result<std::array<unsigned char, kKeyBytes>> read_key(const std::filesystem::path& file);

  // `out` is kMoreBytes longer than head and body, which lie one behind the other in the record.
  // Errors: io (the library failed).
  Result<void> seal(std::span<const std::byte> head, std::span<const std::byte> body,
                    std::string_view name, std::span<std::byte> out) const;
  // Deciphers in place and returns where the record lies in `value`. Errors: corrupt (another key,
  // another name, changed).
  Result<std::span<std::byte>> open(std::span<std::byte> value, std::string_view name) const;

 private:
  std::array<unsigned char, kKeyBytes> key_;
};

}  // namespace kvtier::storage
