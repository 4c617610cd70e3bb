// A RecordStore in memory. Nothing completes until the test says which operation does, so that
// every order can be had and repeated; checksums are sealed and verified for real. It also
// remembers what was asked of it, in order.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <vector>

#include "storage/disk/record_store.h"

namespace kvtier::daemon::testing {

class FakeStore final : public storage::RecordStore {
 public:
  enum class Fate { good, io, corrupt };

  // What the daemon asked for, oldest first; taken by the test.
  struct Asked {
    enum class What { write, read, erase, flush } what;
    bool accepted = true;
    std::uint64_t operation = 0;  // 0: refused
    std::vector<Key> keys;
    std::optional<Key> replaces;
    std::uint32_t extent = 0, slot = 0;  // of reads and writes
  };
  std::vector<Asked> take_asked() { return std::exchange(asked_, {}); }

  // Operations under way, by number, in the order they came.
  std::vector<std::uint64_t> under_way() const;
  Asked::What what(std::uint64_t operation) const { return operations_.at(operation).asked.what; }
  const Asked& asked(std::uint64_t operation) const { return operations_.at(operation).asked; }
  void complete(std::uint64_t operation, Fate fate = Fate::good);
  // Completes all, oldest first, and what those bring.
  void complete_all();

  // Refuses the next reads and writes, as if the queue were full.
  bool refuse_next = false;
  std::size_t records() const noexcept { return index_.size(); }
  bool indexed(const Key& key) const { return index_.contains(key); }
  std::uint64_t stamp(const Key& key) const { return index_.at(key).last_access; }
  // Flips a bit of a stored record.
  void spoil(const Key& key);

  Result<void> recover(const std::function<void(const storage::DiskEntry&)>& visit) override;
  Result<void> register_extent(const storage::Extent& extent) override;
  void forget_extent(storage::ExtentId extent) override;
  Result<void> write(const Write& write, Done<void> done) override;
  Result<void> read(const Read& read, Done<void> done) override;
  void erase(std::vector<Key> keys, Done<void> done) override;
  void touch(std::vector<std::pair<Key, std::uint64_t>> stamps) override;
  void remember_namespace(const NamespaceId& id, std::vector<std::byte> encoded) override;
  Result<std::vector<std::pair<NamespaceId, std::vector<std::byte>>>> namespaces() override;
  void flush(Done<void> done) override;
  storage::RecordStoreStats stats() const override { return {}; }
  void close() override {}

 private:
  struct Operation {
    Asked asked;
    Write write;
    Read read;
    Done<void> done;
  };
  using At = std::pair<std::uint32_t, std::uint32_t>;
  void start(Operation operation);
  std::span<std::byte> memory(std::uint32_t extent, std::uint32_t slot, std::uint64_t bytes) const;
  Result<void> finish_write(const Write& write, Fate fate);
  Result<void> finish_read(const Read& read, Fate fate);

  std::vector<Asked> asked_;
  std::map<std::uint64_t, Operation> operations_;
  std::uint64_t next_operation_ = 1;
  std::map<std::uint32_t, const storage::Extent*> extents_;
  std::map<At, std::vector<std::byte>> slots_;
  std::map<Key, storage::DiskEntry> index_;
  std::map<NamespaceId, std::vector<std::byte>> namespaces_;
};

}  // namespace kvtier::daemon::testing
