#include "tests/daemon/fake_store.h"

#include <algorithm>

#include "client/base/check.h"

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
  Result<void> result;
  switch (operation.asked.what) {
    case Asked::What::write:
      result = finish_write(operation.write, fate);
      break;
    case Asked::What::read:
      result = finish_read(operation.read, fate);
      break;
    case Asked::What::erase:
      for (const Key& key : operation.asked.keys) index_.erase(key);
      break;
    case Asked::What::flush:
      break;
  }
  operation.done(result);
}

void FakeStore::complete_all() {
  while (!operations_.empty()) complete(operations_.begin()->first);
}

void FakeStore::spoil(const Key& key) {
  const DiskEntry& entry = index_.at(key);
  slots_.at({entry.at.segment, entry.at.slot}).back() ^= std::byte{1};
  slots_.at({entry.at.segment, entry.at.slot})[sizeof(RecordHeader)] ^= std::byte{1};
}

Result<void> FakeStore::recover(const std::function<void(const DiskEntry&)>& visit) {
  for (const auto& [key, entry] : index_) visit(entry);
  return {};
}

Result<void> FakeStore::register_extent(const storage::Extent& extent) {
  extents_[extent.id().value] = &extent;
  return {};
}

void FakeStore::forget_extent(storage::ExtentId extent) {
  for (const auto& [number, operation] : operations_) {
    const bool io =
        operation.asked.what == Asked::What::read || operation.asked.what == Asked::What::write;
    KVTIER_CHECK(!io || operation.asked.extent != extent.value);
  }
  extents_.erase(extent.value);
}

Result<void> FakeStore::write(const Write& write, Done<void> done) {
  Asked asked{Asked::What::write,
              !std::exchange(refuse_next, false),
              0,
              {write.identity.key},
              write.replaces,
              write.extent.value,
              write.slot};
  if (!asked.accepted) {
    asked_.push_back(std::move(asked));
    return make_error(Errc::no_space, "refused by the test");
  }
  Operation operation{std::move(asked), write, {}, std::move(done)};
  start(std::move(operation));
  return {};
}

Result<void> FakeStore::read(const Read& read, Done<void> done) {
  Asked asked{
      Asked::What::read, !std::exchange(refuse_next, false), 0, {read.key}, {}, read.extent.value,
      read.slot};
  if (!asked.accepted) {
    asked_.push_back(std::move(asked));
    return make_error(Errc::no_space, "refused by the test");
  }
  Operation operation{std::move(asked), {}, read, std::move(done)};
  start(std::move(operation));
  return {};
}

void FakeStore::erase(std::vector<Key> keys, Done<void> done) {
  start({{Asked::What::erase, true, 0, std::move(keys), {}, 0, 0}, {}, {}, std::move(done)});
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
  start({{Asked::What::flush, true, 0, {}, {}, 0, 0}, {}, {}, std::move(done)});
}

void FakeStore::start(Operation operation) {
  operation.asked.operation = next_operation_++;
  asked_.push_back(operation.asked);
  operations_.emplace(operation.asked.operation, std::move(operation));
}

std::span<std::byte> FakeStore::memory(std::uint32_t extent, std::uint32_t slot,
                                       std::uint64_t bytes) const {
  return extents_.at(extent)->slot(slot).first(bytes);
}

Result<void> FakeStore::finish_write(const Write& write, Fate fate) {
  // The record is looked at before anything is changed.
  if (fate == Fate::corrupt) return make_error(Errc::corrupt, "failed by the test");
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
  index_[write.identity.key] = {write.identity, write.to, write.record_bytes, write.slot_bytes,
                                write.last_access};
  return {};
}

Result<void> FakeStore::finish_read(const Read& read, Fate fate) {
  if (fate == Fate::io) return make_error(Errc::io, "failed by the test");
  const auto into = memory(read.extent.value, read.slot, read.record_bytes);
  const auto found = slots_.find({read.from.segment, read.from.slot});
  KVTIER_CHECK(found != slots_.end() && found->second.size() == read.record_bytes);
  std::ranges::copy(found->second, into.begin());
  if (fate == Fate::corrupt)
    into.back() ^= std::byte{1}, into[sizeof(RecordHeader)] ^= std::byte{1};
  return verify_checksums(into, read.ns, read.key);
}

}  // namespace kvtier::daemon::testing
