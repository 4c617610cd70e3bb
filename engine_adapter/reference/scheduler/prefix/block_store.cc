#include "engine_adapter/reference/scheduler/prefix/block_store.h"

#include <algorithm>

namespace kvtier::engine {

BlockStore::~BlockStore() {
  while (!blocks_.empty()) erase(blocks_.begin());
}

std::optional<BlockStore::Found> BlockStore::find(const BlockName& name) {
  const auto at = blocks_.find(name.key);
  if (at == blocks_.end() || apart_) return std::nullopt;
  Block& block = at->second;
  if (block.ns != name.ns || block.parent != name.parent ||
      !std::ranges::equal(block.tokens, name.tokens)) {
    return std::nullopt;
  }
  // The head of a prefix is asked for first and becomes the newest; each block goes in front of its
  // parent.
  const auto parent = blocks_.find(name.parent);
  order_.splice(parent != blocks_.end() ? parent->second.place : order_.end(), order_, block.place);
  return block.found;
}

void BlockStore::add(const BlockName& name, Found found) {
  const auto [at, is_new] = blocks_.try_emplace(name.key);
  if (!is_new) return;
  const auto parent = blocks_.find(name.parent);
  pool_.keep(found.page);
  const auto to = parent != blocks_.end() ? parent->second.place : order_.end();
  at->second = {std::move(found), name.ns, name.parent,
                std::vector<Token>(name.tokens.begin(), name.tokens.end()),
                order_.insert(to, name.key)};
}

void BlockStore::filled(const Key& key, const LoadTask* by) {
  const auto at = blocks_.find(key);
  if (at != blocks_.end() && at->second.found.task.get() == by) at->second.found.task.reset();
}

void BlockStore::remove(const Key& key, const LoadTask* by) {
  const auto at = blocks_.find(key);
  if (at != blocks_.end() && at->second.found.task.get() == by) erase(at);
}

void BlockStore::erase(Blocks::iterator at) {
  pool_.let_go(at->second.found.page);
  order_.erase(at->second.place);
  blocks_.erase(at);
}

bool BlockStore::give_up_one() {
  if (pool_.pages_idle() == 0) return false;
  for (;;) {
    const auto at = blocks_.find(order_.front());
    if (pool_.references(at->second.found.page) == 1) {
      erase(at);
      return true;
    }
    // In use: as good as used now.
    order_.splice(order_.end(), order_, order_.begin());
  }
}

void BlockStore::give_up_unused() {
  while (give_up_one()) {
  }
}

}  // namespace kvtier::engine
