#include "daemon/cache/catalogue/eviction_order.h"

#include <algorithm>
#include <thread>

namespace kvtier::daemon {

std::vector<BlockId> oldest_first(const Catalogue& catalogue, std::span<Recovered> blocks) {
  const auto is_orphan = [&](const Recovered& r) {
    return catalogue.namespaces()[catalogue.block(r.id).ns].is_orphan();
  };
  const bool any_orphan = catalogue.namespaces().orphan_blocks() != 0;
  const auto others =
      any_orphan ? std::partition(blocks.begin(), blocks.end(), is_orphan) : blocks.begin();
  const auto older = [](const Recovered& a, const Recovered& b) {
    return std::pair(a.last_access, b.block_index) < std::pair(b.last_access, a.block_index);
  };
  std::sort(blocks.begin(), others, older);
  // Most of them in two halves, on two threads.
  const auto middle = others + (blocks.end() - others) / 2;
  {
    const std::jthread half([&] { std::sort(middle, blocks.end(), older); });
    std::sort(others, middle, older);
  }
  std::inplace_merge(others, middle, blocks.end(), older);
  std::vector<BlockId> ids(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) ids[i] = blocks[i].id;
  return ids;
}

}  // namespace kvtier::daemon
