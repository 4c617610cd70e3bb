// Reads the fields of one JSON object of a request and remembers the first that does not hold, and
// which were read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine_adapter/reference/server/body_json.h"

namespace kvtier::engine::server {

class Fields {
 public:
  // `object` outlives it.
  explicit Fields(const OrderedJson& object) : object_(object) {}

  // Null where the key is absent or its value is null.
  const OrderedJson* find(const char* key);
  void fail(const char* key, const std::string& message);
  std::optional<double> number(const char* key, double low, double high);
  std::optional<std::int64_t> whole(const char* key, std::int64_t low, std::int64_t high);
  std::optional<std::uint32_t> count(const char* key, std::int64_t low, std::int64_t high);
  bool flag(const char* key, bool otherwise);
  std::string text(const char* key, std::size_t bytes_max);
  // Fields that ask for what there is not: fine while they ask for nothing. One that was read
  // already is left as it was.
  using AsksNothing = bool (*)(const OrderedJson& value);
  void refuse_unless(const char* key, AsksNothing nothing, const char* why);
  // What is here whatever it says, and not read.
  void pass_over(const char* key) { seen_.emplace_back(key); }
  void refuse_unknown();
  const std::optional<ApiError>& error() const noexcept { return error_; }

 private:
  bool seen(const std::string& key) const;

  const OrderedJson& object_;
  std::vector<std::string> seen_;
  std::optional<ApiError> error_;
};

}  // namespace kvtier::engine::server
