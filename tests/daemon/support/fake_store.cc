#include "tests/daemon/support/fake_store.h"

#include <algorithm>

#include "core/base/check.h"
#include "storage/index/segments.h"

namespace kvtier::daemon::testing {

using storage::DiskEntry;

std::vector<std::uint64_t> FakeStore::under_way() const {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, operation] : operations_) numbers.push_back(number);
  return numbers;
}

void FakeStore::complete(std::uint64_t number, Fate fate) {
  const auto found = operations_.find(number);
  KVTIER_CHECK(found != operations_.end());
  const Operation operation = std::move(found->second);
  operations_.erase(found);
  if (operation.cut_off) fate = Fate::unavailable;
  Result<void> result;
  switch (operation.asked.what) {
    case Asked::What::write:
      // A write that was cut off may have been indexed or not.
      result = finish_write(operation.write,
                            fate == Fate::unavailable && number % 2 == 0 ? Fate::good : fate);
      break;
    case Asked::What::read:
      result = finish_read(operation.read, fate);
      break;
    case Asked::What::erase:
      result = finish_erase(operation.asked.keys, fate);
      break;
    case Asked::What::scrub:
      result = finish_scrub(operation.scrub, fate);
      break;
    case Asked::What::flush:
      break;
  }
  if (fate == Fate::unavailable) result = make_error(Errc::unavailable, "cut off by the test");
  operation.done(result);
}

// Offline, the entries go before the store is back: at once, here.
Result<void> FakeStore::finish_erase(const std::vector<Key>& keys, Fate) {
  for (const Key& key : keys) index_.erase(key);
  return {};
}

void FakeStore::set_online(bool online) {
  if (online == online_) return;
  KVTIER_CHECK(!online || operations_.empty());
  online_ = online;
  came_ = came_ || online;
  for (auto& [number, operation] : operations_) operation.cut_off = true;
  const auto state = online ? storage::DiskState::online : storage::DiskState::offline;
  if (changed_) changed_(state, "taken away by the test");
}

void FakeStore::set_read_only(bool read_only) {
  read_only_ = read_only;
  for (auto& [number, operation] : operations_) {
    const auto what = operation.asked.what;
    operation.cut_off |= what != Asked::What::read && what != Asked::What::scrub;
  }
  changed_(read_only ? storage::DiskState::read_only : storage::DiskState::online,
           "filled by the test");
}

void FakeStore::come_late() {
  KVTIER_CHECK(operations_.empty());
  late_ = true;
  came_ = false;
  online_ = false;
  extents_.clear();
  for (const auto& [key, entry] : index_) left_.push_back(entry);
  std::ranges::sort(left_, [](const DiskEntry& a, const DiskEntry& b) {
    return std::pair(b.last_access, a.identity.block_index) <
           std::pair(a.last_access, b.identity.block_index);
  });
}

void FakeStore::spoil(const Key& key) {
  const DiskEntry& entry = index_.at(key);
  slots_.at({entry.at.segment, entry.at.slot}).back() ^= std::byte{1};
  slots_.at({entry.at.segment, entry.at.slot})[sizeof(RecordHeader)] ^= std::byte{1};
}

void FakeStore::give_up(const Key& key) {
  const auto record = index_.extract(key);
  lost_({{key, record.mapped().at}});
}

Result<void> FakeStore::recover(const std::function<void(const DiskEntry&)>& visit) {
  constexpr std::size_t kPiece = 3;
  if (unknown()) return {};
  if (!late_) {
    for (const auto& [key, entry] : index_) visit(entry);
  }
  for (std::size_t i = 0; i < kPiece && to_recover(); ++i) {
    visit(left_.front());
    left_.pop_front();
  }
  return {};
}

Result<void> FakeStore::register_extent(const storage::Extent& extent) {
  extents_[extent.id().value] = &extent;
  return {};
}

void FakeStore::forget_extent(storage::ExtentId extent, std::function<void()> done) {
  for (const auto& [number, operation] : operations_) {
    const bool io =
        operation.asked.what == Asked::What::read || operation.asked.what == Asked::What::write;
    KVTIER_CHECK(!io || operation.asked.extent != extent.value);
  }
  extents_.erase(extent.value);
  done();
}

Result<void> FakeStore::refused(Asked asked) {
  if (!online_) return make_error(Errc::unavailable, "taken away by the test");
  if (!std::exchange(journal_.refuse_next, false)) return {};
  asked.accepted = false;
  asked.device = device_;
  journal_.asked.push_back(std::move(asked));
  return make_error(Errc::no_space, "refused by the test");
}

Result<void> FakeStore::write(const Write& write, Done<void> done) {
  if (read_only_) return make_error(Errc::unavailable, "filled by the test");
  Asked asked{Asked::What::write, true,      0, {write.identity.key}, write.replaces,
              write.extent.value, write.slot};
  if (auto good = refused(asked); !good) return good;
  start({std::move(asked), write, {}, {}, std::move(done)});
  return {};
}

Result<void> FakeStore::read(const Read& read, Done<void> done) {
  Asked asked{Asked::What::read, true, 0, {read.key}, {}, read.extent.value, read.slot};
  if (auto good = refused(asked); !good) return good;
  start({std::move(asked), {}, read, {}, std::move(done)});
  return {};
}

Result<void> FakeStore::scrub(const Scrub& scrub, Done<void> done) {
  if (!online_) return make_error(Errc::unavailable, "taken away by the test");
  start({{Asked::What::scrub, true, 0, {scrub.key}, {}, 0, 0}, {}, {}, scrub, std::move(done)});
  return {};
}

Result<void> FakeStore::test_place(storage::DiskLocation at, std::uint64_t slot_bytes,
                                   Done<void> done) {
  if (!tests_places || !online_) return make_error(Errc::unavailable, "no place can be tested");
  place_tests_.emplace_back(storage::place_of(at, slot_bytes), std::move(done));
  return {};
}

storage::BadPlace FakeStore::end_place_test(const Result<void>& result) {
  auto [place, done] = std::move(place_tests_.front());
  place_tests_.pop_front();
  done(result);
  return place;
}

void FakeStore::erase(std::vector<Key> keys, Done<void> done) {
  start({{Asked::What::erase, true, 0, std::move(keys), {}, 0, 0}, {}, {}, {}, std::move(done)});
}

void FakeStore::touch(std::vector<std::pair<Key, std::uint64_t>> stamps) {
  for (const auto& [key, stamp] : stamps) {
    if (const auto found = index_.find(key); found != index_.end())
      found->second.last_access = stamp;
  }
}

void FakeStore::remember_namespace(const NamespaceId& id, std::vector<std::byte> encoded) {
  namespaces_[id] = std::move(encoded);
}

Result<std::vector<std::pair<NamespaceId, std::vector<std::byte>>>> FakeStore::namespaces() {
  return std::vector<std::pair<NamespaceId, std::vector<std::byte>>>(namespaces_.begin(),
                                                                     namespaces_.end());
}

void FakeStore::flush(Done<void> done) {
  start({{Asked::What::flush, true, 0, {}, {}, 0, 0}, {}, {}, {}, std::move(done)});
}

void FakeStore::start(Operation operation) {
  operation.asked.operation = journal_.next_operation++;
  operation.asked.device = device_;
  const bool reads =
      operation.asked.what == Asked::What::read || operation.asked.what == Asked::What::scrub;
  operation.cut_off = !online_ || (read_only_ && !reads);
  journal_.asked.push_back(operation.asked);
  operations_.emplace(operation.asked.operation, std::move(operation));
}

std::span<std::byte> FakeStore::memory(std::uint32_t extent, std::uint32_t slot,
                                       std::uint64_t bytes) const {
  return extents_.at(extent)->slot(slot).first(bytes);
}

Result<void> FakeStore::finish_write(const Write& write, Fate fate) {
  // The record is looked at before anything is changed.
  if (fate == Fate::corrupt) return make_error(Errc::corrupt, "failed by the test");
  if (fate == Fate::unavailable) return {};
  if (write.replaces) {
    const auto old = index_.find(*write.replaces);
    if (old != index_.end() && old->second.at == write.to) index_.erase(old);
  }
  if (fate == Fate::io) return make_error(Errc::io, "failed by the test");
  const auto record = memory(write.extent.value, write.slot, write.record_bytes);
  if (auto sealed = seal_checksums(record); !sealed) return sealed;
  // Two records in one slot would be the daemon's mistake.
  for (const auto& [key, entry] : index_) {
    KVTIER_CHECK(!(entry.at == write.to) || key == write.identity.key);
  }
  slots_[{write.to.segment, write.to.slot}].assign(record.begin(), record.end());
  index_[write.identity.key] = {write.identity, write.to, write.record_bytes, write.last_access};
  return {};
}

Result<void> FakeStore::finish_read(const Read& read, Fate fate) {
  if (fate == Fate::io) return make_error(Errc::io, "failed by the test");
  if (fate == Fate::unavailable) return {};
  const auto into = memory(read.extent.value, read.slot, read.record_bytes);
  const auto found = slots_.find({read.from.segment, read.from.slot});
  KVTIER_CHECK(found != slots_.end() && found->second.size() == read.record_bytes);
  std::ranges::copy(found->second, into.begin());
  if (fate == Fate::corrupt)
    into.back() ^= std::byte{1}, into[sizeof(RecordHeader)] ^= std::byte{1};
  return verify_checksums(into, read.ns, read.key);
}

Result<void> FakeStore::finish_scrub(const Scrub& scrub, Fate fate) {
  if (fate == Fate::io) return make_error(Errc::io, "failed by the test");
  if (fate == Fate::corrupt) return make_error(Errc::corrupt, "failed by the test");
  if (fate == Fate::unavailable) return {};
  const auto found = slots_.find({scrub.from.segment, scrub.from.slot});
  KVTIER_CHECK(found != slots_.end() && found->second.size() == scrub.record_bytes);
  return verify_checksums(found->second, scrub.ns, scrub.key);
}

FakeStore& FakeDisks::of(std::uint64_t operation) {
  const auto found = std::ranges::find_if(stores_, [&](auto& s) { return s->has(operation); });
  KVTIER_CHECK(found != stores_.end());
  return **found;
}

FakeStore* FakeDisks::holder(const Key& key) {
  for (const auto& store : stores_) {
    if (store->indexed(key)) return store.get();
  }
  return nullptr;
}

std::vector<std::uint64_t> FakeDisks::under_way() const {
  std::vector<std::uint64_t> numbers;
  for (const auto& store : stores_) {
    for (const auto number : store->under_way()) numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

void FakeDisks::complete_all() {
  for (auto numbers = under_way(); !numbers.empty(); numbers = under_way()) complete(numbers[0]);
}

std::size_t FakeDisks::records() const {
  std::size_t records = 0;
  for (const auto& store : stores_) records += store->records();
  return records;
}

}  // namespace kvtier::daemon::testing
