// All servers of the store, which of them serves a key, and so how the store is. On the store's
// thread.
//
// One server that is no cluster's, the first of `url` that takes writes, or else that can be read,
// serves every key. In a cluster the map of its slots says who; the servers of `url` are only asked
// for the map. It is asked for again when an answer says that it is stale, while a server is not
// well, and now and then.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "storage/remote/redis/key_slot.h"
#include "storage/remote/redis/node.h"

namespace kvtier::storage {

class Servers {
 public:
  Servers(RedisContext& context, OperationOwner& owner);

  // To the server of its key, or answered as lost.
  void take(OperationPtr operation);
  // The same, to a server that another one named. Its name, where it has none, is `from`'s.
  void take_at(const RedisNode& from, RemoteAddress to, OperationPtr operation);
  void take_back(const Operation& operation);

  void note_moved(const RedisNode& from, std::uint16_t slot, RemoteAddress to);
  void note_map_stale() noexcept { map_stale_ = true; }
  void slots_known(RedisNode& node, const Answer& answer);
  bool is_cluster() const noexcept { return mode_ == Mode::cluster; }

  void turn();
  std::vector<std::unique_ptr<RedisNode>>& nodes() noexcept { return nodes_; }
  Deadline next_turn() const noexcept;

  struct Health {
    RemoteState state = RemoteState::offline;
    std::string why;
    friend bool operator==(const Health&, const Health&) = default;
  };
  // None: not known yet.
  std::optional<Health> health() const;

 private:
  enum class Mode { unknown, alone, cluster };

  RedisNode* serving(std::uint16_t slot) const;
  RedisNode* alone() const;
  RedisNode* node_at(const RemoteAddress& address);
  bool is_seed(const RedisNode& node) const;
  void take_map(RedisNode& from, const redisReply& map);
  bool take_range(const RedisNode& from, const redisReply& range, long long& left);
  void count_unserved();
  void set_probes();
  void retire();
  void ask_for_map();

  RedisContext& context_;
  OperationOwner& owner_;
  Mode mode_ = Mode::unknown;
  std::string mode_fails_;
  std::vector<std::unique_ptr<RedisNode>> nodes_;  // those of `url` first, which stay
  std::vector<RedisNode*> slots_;                  // of a cluster; null: nobody's
  std::size_t unserved_ = kClusterSlots;           // of those
  bool map_stale_ = false;
  std::size_t next_asked_ = 0;
  Clock::time_point map_at_{};
};

}  // namespace kvtier::storage
