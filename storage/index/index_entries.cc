#include "storage/index/index_entries.h"

namespace kvtier::storage {

std::uint32_t IndexEntries::number_of_another(const Kind& kind) {
  const auto [at, fresh] = numbers_.emplace(kind, static_cast<std::uint32_t>(kinds_.size()));
  if (fresh) kinds_.push_back(kind);
  return at->second;
}

}  // namespace kvtier::storage
