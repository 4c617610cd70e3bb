// A record as a remote store has it: under a name made of its key, as the record's own bytes or
// those sealed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/record/record.h"
#include "kvtier/result.h"
#include "storage/remote/value_cipher.h"

namespace kvtier::storage {

// Before the 32 digits of a key. It changes when what the values are does. No name has a brace, so
// a cluster hashes all of it.
inline constexpr std::string_view kValuePrefix = "kvtier:1:";
std::string value_name(const Key& key);

// How values are made and opened. Never changes; any thread.
class ValueForm {
 public:
  // `cipher`: null where values are the records as they are.
  explicit ValueForm(std::shared_ptr<const ValueCipher> cipher) : cipher_(std::move(cipher)) {}

  bool sealed() const noexcept { return cipher_ != nullptr; }
  std::uint64_t value_bytes(std::uint64_t record_bytes) const noexcept {
    return record_bytes + (sealed() ? ValueCipher::kMoreBytes : 0);
  }

  // What to store of `record`, which others may write to and which is only read: `first`, and the
  // bytes of the record behind it. A sealed value is in `first` as a whole.
  struct Value {
    std::vector<std::byte> first;
    std::span<const std::byte> rest;
  };
  // Errors: corrupt (it is not the block that it is named as, or has a checksum that does not
  // hold), io.
  Result<Value> make(std::span<const std::byte> record, const BlockIdentity& identity) const;

  // The record in `value`, memory that nobody else writes to. Errors: corrupt.
  Result<std::span<const std::byte>> open(std::span<std::byte> value, const NamespaceId& ns,
                                          const Key& key) const;

 private:
  std::shared_ptr<const ValueCipher> cipher_;
};

}  // namespace kvtier::storage
