#include "storage/remote/remote_front.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/base/check.h"
#include "core/record/key_hash.h"
#include "storage/remote/byte_budget.h"
#include "storage/remote/remote_bounds.h"

namespace kvtier::storage {
namespace {

// Everything of the control thread's. The tasks that it is posted share it, for they may run after
// the store is gone.
struct Front {
  struct ExtentState {
    std::span<std::byte> memory;
    std::uint64_t slot_bytes = 0;
    std::uint64_t pending = 0;        // reads and writes that are not done
    std::function<void()> forgotten;  // told when none is
  };
  // Of a key that is to go: under way, or waiting until the store can be asked again.
  enum class Erasing { behind_writes, under_way, waiting };

  RemoteState state = RemoteState::offline;
  std::string why = "the remote store is being connected";
  RemoteStore::Changed changed;
  RemoteStats stats;
  std::unordered_map<ExtentId, ExtentState> extents;
  std::unordered_map<Key, Erasing, KeyHash> erasing;
  std::unordered_map<Key, std::uint32_t, KeyHash> writing;
  std::size_t reads = 0, writes = 0, keys_asked = 0;
  bool closed = false;  // from then on the store may be gone

  void release(ExtentId id) {
    const auto extent = extents.find(id);
    KVTIER_CHECK(extent != extents.end() && extent->second.pending > 0);
    if (--extent->second.pending > 0 || !extent->second.forgotten) return;
    const auto forgotten = std::move(extent->second.forgotten);
    extents.erase(extent);
    forgotten();
  }
};

class RemoteFront final : public RemoteStore {
 public:
  RemoteFront(const RemoteOptions& options, std::shared_ptr<RemoteShared> shared,
              std::unique_ptr<RemoteBackend> backend)
      : shared_(std::move(shared)),
        backend_(std::move(backend)),
        reads_(options.read_bytes_per_s, Clock::now()),
        writes_(options.write_bytes_per_s, Clock::now()) {
    shared_->changed = [this, front = front_](RemoteState state, std::string why) {
      if (front->closed) return;
      front->state = state;
      front->why = std::move(why);
      if (state != RemoteState::offline) erase_waiting();
      if (front->changed) front->changed(state, front->why);
    };
  }
  ~RemoteFront() override { close(); }

  Result<void> register_extent(const Extent& extent) override {
    if (front_->closed) return remote_closing();
    if (extent.bytes().empty())
      return make_error(Errc::invalid, "the remote store cannot use memory of a GPU");
    const auto [at, added] = front_->extents.try_emplace(extent.id());
    if (!added) return make_error(Errc::invalid, "an extent is registered already");
    at->second.memory = extent.bytes();
    at->second.slot_bytes = extent.shape().slot_bytes;
    return {};
  }

  void forget_extent(ExtentId id, std::function<void()> done) override {
    const auto extent = front_->extents.find(id);
    if (extent == front_->extents.end() || extent->second.pending == 0) {
      front_->extents.erase(id);
      return front_->closed ? done() : shared_->post(std::move(done));
    }
    extent->second.forgotten = std::move(done);
  }

  Result<void> find(std::vector<Key> keys, Deadline deadline, Done<std::size_t> done) override;
  Result<void> read(const Read& read, Done<void> done) override;
  Result<void> write(const Write& write, Done<void> done) override;
  void erase(std::vector<Key> keys) override;

  void on_health(Changed changed) override { front_->changed = std::move(changed); }
  RemoteStats stats() const override;
  void close() override {
    if (!std::exchange(front_->closed, true)) backend_->close();
  }

 private:
  Error offline() const {
    return make_error(Errc::unavailable, "the remote store cannot be used: " + front_->why);
  }
  Result<std::span<std::byte>> slot_of(ExtentId id, std::uint32_t slot, std::uint64_t bytes);
  void erase_now(std::vector<Key> keys);
  void erase_waiting();

  const std::shared_ptr<RemoteShared> shared_;
  const std::unique_ptr<RemoteBackend> backend_;
  const std::shared_ptr<Front> front_ = std::make_shared<Front>();
  ByteBudget reads_, writes_;
};

Result<std::span<std::byte>> RemoteFront::slot_of(ExtentId id, std::uint32_t slot,
                                                  std::uint64_t bytes) {
  const auto extent = front_->extents.find(id);
  if (extent == front_->extents.end() || extent->second.forgotten)
    return make_error(Errc::invalid, "an extent of the remote store's is not registered");
  const auto& [memory, slot_bytes, pending, forgotten] = extent->second;
  if (bytes == 0 || bytes % kRecordAlignment != 0 || bytes > slot_bytes ||
      slot >= memory.size() / slot_bytes) {
    return make_error(Errc::invalid, "a record of " + std::to_string(bytes) +
                                         " bytes does not fit its extent's slot");
  }
  return memory.subspan(slot * slot_bytes, bytes);
}

// What is being erased is not there any more.
Result<void> RemoteFront::find(std::vector<Key> keys, Deadline deadline, Done<std::size_t> done) {
  if (front_->closed) return remote_closing();
  if (front_->state == RemoteState::offline) return offline();
  if (!front_->erasing.empty()) {
    keys.erase(
        std::ranges::find_if(keys, [&](const Key& key) { return front_->erasing.contains(key); }),
        keys.end());
  }
  const std::size_t count = keys.size();
  if (front_->keys_asked + count > kRemoteKeysAskedMax)
    return make_error(Errc::no_space, "too many keys are being looked for in the remote store");
  front_->keys_asked += count;
  ++front_->stats.finds;
  auto finish = [front = front_, count, done = std::move(done)](Result<std::size_t> found) {
    front->keys_asked -= count;
    if (found) {
      front->stats.keys_found += *found;
      front->stats.keys_missed += count - *found;
    }
    done(std::move(found));
  };
  if (count == 0) {
    shared_->post([finish = std::move(finish)] { finish(std::size_t{0}); });
  } else {
    backend_->find({std::move(keys), deadline, std::move(finish)});
  }
  return {};
}

Result<void> RemoteFront::read(const Read& read, Done<void> done) {
  const auto refuse = [this](Error error) {
    ++front_->stats.reads_refused;
    return error;
  };
  if (front_->closed) return remote_closing();
  if (front_->state == RemoteState::offline) return refuse(offline());
  const auto memory = slot_of(read.extent, read.slot, read.record_bytes);
  if (!memory) return memory.error();
  if (front_->reads >= kRemoteReadsMax)
    return refuse(make_error(Errc::no_space, "too many reads wait for the remote store"));
  const bool erased = front_->erasing.contains(read.key);
  if (!erased && !reads_.take(read.record_bytes, Clock::now()))
    return refuse(make_error(Errc::unavailable, "the remote store's budget of reads is used up"));
  ++front_->reads;
  ++front_->extents.at(read.extent).pending;
  auto finish = [front = front_, extent = read.extent, bytes = read.record_bytes,
                 done = std::move(done)](Result<void> result) {
    --front->reads;
    front->release(extent);
    if (result) {
      ++front->stats.records_read;
      front->stats.bytes_read += bytes;
    } else {
      ++(result.error().code == Errc::not_found ? front->stats.not_found
                                                : front->stats.read_failures);
    }
    done(std::move(result));
  };
  if (erased) {
    shared_->post([finish = std::move(finish)] {
      finish(make_error(Errc::not_found, "the record is being erased from the remote store"));
    });
  } else {
    backend_->read({read.ns, read.key, *memory, read.deadline, std::move(finish)});
  }
  return {};
}

Result<void> RemoteFront::write(const Write& write, Done<void> done) {
  const auto refuse = [this](Error error) {
    ++front_->stats.writes_refused;
    return error;
  };
  if (front_->closed) return remote_closing();
  if (front_->state == RemoteState::offline) return refuse(offline());
  if (front_->state == RemoteState::read_only)
    return refuse(
        make_error(Errc::unavailable, "the remote store takes no records: " + front_->why));
  const auto memory = slot_of(write.extent, write.slot, write.record_bytes);
  if (!memory) return memory.error();
  const Key key = write.identity.key;
  if (const auto erasing = front_->erasing.find(key); erasing != front_->erasing.end()) {
    if (erasing->second != Front::Erasing::waiting)
      return refuse(make_error(Errc::unavailable, "the record is being erased"));
  }
  if (front_->writes >= kRemoteWritesMax)
    return refuse(make_error(Errc::no_space, "too many writes wait for the remote store"));
  if (!writes_.take(write.record_bytes, Clock::now()))
    return refuse(make_error(Errc::no_space, "the remote store's budget of writes is used up"));
  ++front_->writes;
  ++front_->writing[key];
  ++front_->extents.at(write.extent).pending;
  auto finish = [this, front = front_, extent = write.extent, key, bytes = write.record_bytes,
                 done = std::move(done)](Result<void> result) {
    --front->writes;
    front->release(extent);
    if (result) {
      ++front->stats.records_written;
      front->stats.bytes_written += bytes;
    } else {
      ++front->stats.write_failures;
    }
    if (const auto writing = front->writing.find(key); --writing->second == 0)
      front->writing.erase(writing);
    if (const auto erasing = front->erasing.find(key); erasing != front->erasing.end()) {
      if (erasing->second == Front::Erasing::waiting) {
        if (result) front->erasing.erase(erasing);  // what was written has taken its place
      } else if (!front->writing.contains(key) && !front->closed) {
        erase_now({key});
      }
    }
    done(std::move(result));
  };
  backend_->write({write.identity, *memory, std::move(finish)});
  return {};
}

void RemoteFront::erase(std::vector<Key> keys) {
  if (front_->closed) return;
  std::vector<Key> now;
  for (const Key& key : keys) {
    const bool known = front_->erasing.contains(key);
    if (front_->writing.contains(key) && (known || front_->erasing.size() < kRemoteErasesMax)) {
      front_->erasing[key] = Front::Erasing::behind_writes;
    } else if (!known || front_->erasing[key] == Front::Erasing::waiting) {
      now.push_back(key);
    }
  }
  if (front_->state == RemoteState::offline) {
    for (const Key& key : now) {
      if (front_->erasing.size() < kRemoteErasesMax) front_->erasing[key] = Front::Erasing::waiting;
    }
  } else if (!now.empty()) {
    erase_now(std::move(now));
  }
}

void RemoteFront::erase_now(std::vector<Key> keys) {
  for (const Key& key : keys) {
    if (front_->erasing.contains(key) || front_->erasing.size() < kRemoteErasesMax)
      front_->erasing[key] = Front::Erasing::under_way;
  }
  auto finish = [front = front_, keys](const std::vector<Key>& failed) {
    const std::unordered_set<Key, KeyHash> again(failed.begin(), failed.end());
    for (const Key& key : keys) {
      const auto erasing = front->erasing.find(key);
      if (erasing == front->erasing.end() || erasing->second != Front::Erasing::under_way) continue;
      if (again.contains(key)) {
        erasing->second = Front::Erasing::waiting;
      } else {
        front->erasing.erase(erasing);
      }
    }
  };
  backend_->erase({std::move(keys), std::move(finish)});
}

void RemoteFront::erase_waiting() {
  std::vector<Key> keys;
  for (const auto& [key, how] : front_->erasing) {
    if (how == Front::Erasing::waiting && !front_->writing.contains(key)) keys.push_back(key);
  }
  if (!keys.empty()) erase_now(std::move(keys));
}

RemoteStats RemoteFront::stats() const {
  RemoteStats stats = front_->stats;
  const RemoteCounters& counters = shared_->counters;
  stats.corrupt = counters.corrupt;
  stats.late = counters.late;
  stats.memory_faults = counters.memory_faults;
  stats.connections = counters.connections;
  return stats;
}

}  // namespace

std::unique_ptr<RemoteStore> make_remote_front(const RemoteOptions& options,
                                               std::shared_ptr<RemoteShared> shared,
                                               std::unique_ptr<RemoteBackend> backend) {
  return std::make_unique<RemoteFront>(options, std::move(shared), std::move(backend));
}

}  // namespace kvtier::storage
