// A RecordStore in memory. Nothing completes until the test says which operation does, so that
// every order can be had and repeated; checksums are sealed and verified for real. It also
// remembers what was asked of it, in order. FakeDisks is several of them that share numbers and
// memory of what was asked.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "storage/store/record_store.h"

namespace kvtier::daemon::testing {

class FakeStore final : public storage::RecordStore {
 public:
  enum class Fate { good, io, corrupt, unavailable };

  // What the daemon asked for, oldest first; taken by the test.
  struct Asked {
    enum class What { write, read, erase, flush, scrub } what;
    bool accepted = true;
    std::uint64_t operation = 0;  // 0: refused
    std::vector<Key> keys;
    std::optional<Key> replaces;
    std::uint32_t extent = 0, slot = 0;  // of reads and writes
    std::uint32_t device = 0;
  };
  // Shared by the stores of one cache.
  struct Journal {
    std::vector<Asked> asked;
    std::uint64_t next_operation = 1;
    // Refuses the next reads and writes, as if the queue were full.
    bool refuse_next = false;
  };
  FakeStore(std::uint32_t device, Journal& journal) : device_(device), journal_(journal) {}

  // Operations under way, by number, in the order they came.
  std::vector<std::uint64_t> under_way() const;
  Asked::What what(std::uint64_t operation) const { return operations_.at(operation).asked.what; }
  const Asked& asked(std::uint64_t operation) const { return operations_.at(operation).asked; }
  void complete(std::uint64_t operation, Fate fate = Fate::good);
  bool has(std::uint64_t operation) const { return operations_.contains(operation); }
  // Whether it can only end as unavailable: the store has been offline since it was asked.
  bool cut_off(std::uint64_t operation) const { return operations_.at(operation).cut_off; }

  // As the real one does: what is under way when it goes offline, and what comes until it is back,
  // fails. Before it comes back all of that must have been completed.
  void set_online(bool online);
  bool online() const noexcept { return online_; }
  // Its index takes no more records.
  bool full = false;
  bool has_room() const noexcept override { return !full; }
  // Writes that are under way, erases and flushes, and those that come, fail; reads go on.
  void set_read_only(bool read_only);

  std::size_t records() const noexcept { return index_.size(); }
  bool indexed(const Key& key) const { return index_.contains(key); }
  std::uint64_t stamp(const Key& key) const { return index_.at(key).last_access; }
  // Flips a bit of a stored record.
  void spoil(const Key& key);

  // From now on as a store that could not be opened: to be given to a new cache, and to come with
  // set_online().
  void come_late();
  bool to_recover() const noexcept override { return late_ && came_ && !left_.empty(); }
  bool unknown() const noexcept override { return late_ && !came_; }
  Result<void> recover(const std::function<void(const storage::DiskEntry&)>& visit) override;
  void recovered() override {
    if (on_recovered) on_recovered();
  }
  std::function<void()> on_recovered;
  Result<void> register_extent(const storage::Extent& extent) override;
  void forget_extent(storage::ExtentId extent, std::function<void()> done) override;
  Result<void> write(const Write& write, Done<void> done) override;
  Result<void> read(const Read& read, Done<void> done) override;
  // Whether places can be tested; then the test says how each ends, oldest first.
  bool tests_places = false;
  std::vector<storage::BadPlace> bad;
  Result<void> test_place(storage::DiskLocation at, std::uint64_t slot_bytes,
                          Done<void> done) override;
  std::vector<storage::BadPlace> bad_places() const override { return bad; }
  // Which place it was.
  storage::BadPlace end_place_test(const Result<void>& result);
  std::size_t place_tests() const noexcept { return place_tests_.size(); }
  void erase(std::vector<Key> keys, Done<void> done) override;
  void erase_for_good(std::vector<storage::Erasure> what) override {
    erased_for_good_.insert(erased_for_good_.end(), what.begin(), what.end());
  }
  const std::vector<storage::Erasure>& erased_for_good() const noexcept { return erased_for_good_; }
  void touch(std::vector<std::pair<Key, std::uint64_t>> stamps) override;
  void remember_namespace(const NamespaceId& id, std::vector<std::byte> encoded) override;
  void forget_namespace(const NamespaceId& id) override { namespaces_.erase(id); }
  bool remembers(const NamespaceId& id) const { return namespaces_.contains(id); }
  Result<std::vector<std::pair<NamespaceId, std::vector<std::byte>>>> namespaces() override;
  void flush(Done<void> done) override;
  void on_health(Changed changed) override {
    changed_ = std::move(changed);
    if (unknown()) changed_(storage::DiskState::offline, "not opened by the test");
  }
  void on_lost(std::function<void(const std::vector<storage::LostRecord>&)> lost) override {
    lost_ = std::move(lost);
  }
  // As after a sync that failed.
  void give_up(const Key& key);
  Result<void> scrub(const Scrub& scrub, Done<void> done) override;
  storage::RecordStoreStats stats() const override { return {}; }
  // As if the index had been rebuilt from the segments.
  void lose_namespaces() { namespaces_.clear(); }
  void close() override {}

 private:
  struct Operation {
    Asked asked;
    Write write;
    Read read;
    Scrub scrub;
    Done<void> done;
    bool cut_off = false;
  };
  using At = std::pair<std::uint32_t, std::uint32_t>;
  void start(Operation operation);
  std::span<std::byte> memory(std::uint32_t extent, std::uint32_t slot, std::uint64_t bytes) const;
  Result<void> finish_write(const Write& write, Fate fate);
  Result<void> finish_read(const Read& read, Fate fate);
  Result<void> finish_scrub(const Scrub& scrub, Fate fate);
  Result<void> finish_erase(const std::vector<Key>& keys, Fate fate);
  Result<void> refused(Asked asked);

  const std::uint32_t device_;
  Journal& journal_;
  bool online_ = true;
  Changed changed_;
  bool read_only_ = false;
  std::function<void(const std::vector<storage::LostRecord>&)> lost_;
  std::map<std::uint64_t, Operation> operations_;
  std::map<std::uint32_t, const storage::Extent*> extents_;
  std::map<At, std::vector<std::byte>> slots_;
  std::map<Key, storage::DiskEntry> index_;
  std::map<NamespaceId, std::vector<std::byte>> namespaces_;
  std::vector<storage::Erasure> erased_for_good_;
  std::deque<std::pair<storage::BadPlace, Done<void>>> place_tests_;
  bool late_ = false, came_ = false;
  std::deque<storage::DiskEntry> left_;  // to be recovered late, newest first
};

class FakeDisks {
  FakeStore::Journal journal_;

 public:
  using Asked = FakeStore::Asked;
  using Fate = FakeStore::Fate;

  explicit FakeDisks(std::uint32_t disks) : refuse_next(journal_.refuse_next) {
    for (std::uint32_t d = 0; d < disks; ++d)
      stores_.push_back(std::make_unique<FakeStore>(d, journal_));
  }
  FakeStore& operator[](std::size_t disk) { return *stores_[disk]; }
  std::size_t size() const noexcept { return stores_.size(); }

  bool& refuse_next;
  std::vector<Asked> take_asked() { return std::exchange(journal_.asked, {}); }
  // Of all stores, in the order they came.
  std::vector<std::uint64_t> under_way() const;
  Asked::What what(std::uint64_t operation) { return of(operation).what(operation); }
  const Asked& asked(std::uint64_t operation) { return of(operation).asked(operation); }
  bool cut_off(std::uint64_t operation) { return of(operation).cut_off(operation); }
  void complete(std::uint64_t operation, Fate fate = Fate::good) {
    of(operation).complete(operation, fate);
  }
  // Completes all, oldest first, and what those bring.
  void complete_all();

  std::size_t records() const;
  bool indexed(const Key& key) { return holder(key) != nullptr; }
  std::uint64_t stamp(const Key& key) { return holder(key)->stamp(key); }
  void spoil(const Key& key) { holder(key)->spoil(key); }

 private:
  FakeStore& of(std::uint64_t operation);
  FakeStore* holder(const Key& key);

  std::vector<std::unique_ptr<FakeStore>> stores_;
};

}  // namespace kvtier::daemon::testing
