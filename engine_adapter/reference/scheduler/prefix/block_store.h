// The blocks that the engine has in its own pages, by name: what requests share. It refers to each
// page itself, so that a block outlives the requests that made it until its page is needed; then
// the blocks that nobody uses go, those used longest ago first, the tail of a prefix before its
// head.
//
// One thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/record/key_hash.h"
#include "engine_adapter/reference/model/page_pool.h"
#include "kvtier/key.h"

namespace kvtier::engine {

struct LoadTask;

// The key finds, the rest decides.
struct BlockName {
  NamespaceId ns;
  Key key;
  Key parent;
  std::span<const Token> tokens;
};

class BlockStore {
 public:
  // `pool` outlives the store. `apart`: nobody finds anything (EarlierWays).
  explicit BlockStore(PagePool& pool, bool apart = false) : pool_(pool), apart_(apart) {
    blocks_.reserve(pool.pages());
  }
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  struct Found {
    PageId page;
    std::shared_ptr<LoadTask> task;  // that is filling the page; null: it is filled
    std::uint32_t index = 0;         // in the task
  };
  // Whoever uses the page adds a reference to it before the store is called again.
  std::optional<Found> find(const BlockName& name);

  // Nothing happens where the key is known already.
  void add(const BlockName& name, PageId page) { add(name, {page, nullptr, 0}); }
  void add(const BlockName& name, Found found);
  // The page of a block that was being loaded is filled.
  void filled(const Key& key, const LoadTask* by);
  void remove(const Key& key, const LoadTask* by);

  // Gives one page back to the pool that nobody else refers to; false if there is none.
  bool give_up_one();
  void give_up_unused();
  std::size_t size() const noexcept { return blocks_.size(); }

 private:
  struct Block {
    Found found;
    NamespaceId ns;
    Key parent;
    std::vector<Token> tokens;
    std::list<Key>::iterator place;
  };

  using Blocks = std::unordered_map<Key, Block, KeyHash>;

  void erase(Blocks::iterator at);

  PagePool& pool_;
  const bool apart_;
  Blocks blocks_;
  std::list<Key> order_;  // used longest ago first
};

}  // namespace kvtier::engine
