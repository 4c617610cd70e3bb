#include "bench/support/records.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "core/base/check.h"

namespace kvtier::bench {

// One layer of 64-wide bf16 K and V is one page; there are no scales, so the header is one page
// too.
Namespace namespace_of_records(std::uint64_t record_bytes) {
  Namespace ns;
  ns.model = "bench-" + std::to_string(record_bytes);
  ns.layers = static_cast<std::uint32_t>(record_bytes / kRecordAlignment - 1);
  ns.kv_heads = 1;
  ns.head_dim_k = ns.head_dim_v = 64;
  ns.block_tokens = kBlockTokens;
  ns.format = StorageFormat::bf16;
  ns.positions = "none";
  KVTIER_CHECK(ns.validate() && RecordLayout::of(ns).record_bytes == record_bytes);
  return ns;
}

std::uint64_t mixed(std::uint64_t number) noexcept {
  number += 0x9E3779B97F4A7C15ULL;
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9ULL;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EBULL;
  return number ^ (number >> 31);
}

std::vector<Token> prompt(std::uint64_t number, std::size_t tokens) {
  std::vector<Token> made(tokens);
  std::uint64_t state = mixed(number);
  for (Token& token : made) token = static_cast<Token>((state = mixed(state)) >> 40);
  return made;
}

ScratchDirectory::ScratchDirectory(const std::filesystem::path& parent) {
  // kvtierd takes no relative paths.
  std::string pattern = (std::filesystem::absolute(parent) / "kvtier-bench-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("cannot make a directory in " + parent.string() + ": " +
                             std::strerror(errno));
  }
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace kvtier::bench
