#include "tests/storage/support/helpers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "storage/store/late_store.h"

namespace kvtier::storage::testing {

// A name that was never used: one with the process's number may be that of a test that was killed.
TestDirectory::TestDirectory(Where where) {
  const bool in_memory = where == Where::memory && ::access("/dev/shm", W_OK) == 0;
  const std::filesystem::path all = in_memory ? "/dev/shm/kvtier-tests" : KVTIER_TEST_DIRECTORY;
  std::filesystem::create_directories(all);
  std::string name = all / "XXXXXX";
  if (::mkdtemp(name.data()) == nullptr)
    throw std::filesystem::filesystem_error("a test's directory", all,
                                            std::error_code(errno, std::generic_category()));
  path_ = name;
}

TestDirectory::~TestDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

RecordStore::Post Control::post() {
  return [this](std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    posted_.notify_one();
  };
}

void Control::run_until(const std::function<bool()>& done) {
  while (!done()) {
    std::unique_lock lock(mutex_);
    constexpr std::chrono::seconds kPatience{120};
    if (!posted_.wait_for(lock, kPatience, [this] { return !tasks_.empty(); })) {
      throw std::runtime_error("what the test waits for does not come");
    }
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
  }
}

Namespace test_namespace(unsigned kind) {
  Namespace ns;
  ns.model = "test-" + std::to_string(kind);
  ns.layers = kind == 0 ? 1 : 4;
  ns.kv_heads = 2;
  ns.head_dim_k = ns.head_dim_v = 64;
  ns.block_tokens = 16;
  ns.format = StorageFormat::fp8_e4m3;
  return ns;
}

std::uint64_t record_bytes(unsigned kind) {
  return RecordLayout::of(test_namespace(kind)).record_bytes;
}

TestRecord::TestRecord(unsigned kind, std::uint32_t number) {
  const Namespace ns = test_namespace(kind);
  const RecordLayout layout = RecordLayout::of(ns);
  std::mt19937_64 random(number * 31ULL + kind);
  bytes.resize(layout.record_bytes);
  for (std::size_t i = layout.header_bytes; i < bytes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
  std::vector<Token> tokens(layout.block_tokens);
  for (Token& token : tokens) token = static_cast<Token>(random());
  identity.ns = id_of(ns);
  identity.parent.bytes[0] = std::byte(number % 7);
  identity.key = chain_key(identity.ns, identity.parent, tokens);
  identity.block_index = number % 100;
  write_header(bytes, layout, identity, tokens);
}

bool TestRecord::equals(std::span<const std::byte> found) const {
  if (found.size() < bytes.size()) return false;
  std::vector<std::byte> unsealed(found.begin(), found.begin() + static_cast<long>(bytes.size()));
  RecordHeader header;
  std::memcpy(&header, unsealed.data(), sizeof header);
  header.payload_checksum = header.header_checksum = header.era = 0;
  std::memcpy(unsealed.data(), &header, sizeof header);
  return unsealed == bytes;
}

RecordStoreOptions small_options(const std::filesystem::path& directory) {
  RecordStoreOptions options;
  options.directory = directory;
  options.capacity_bytes = 64_MiB;
  options.segment_bytes = 1_MiB;
  return options;
}

TestStore::TestStore(const RecordStoreOptions& options, std::unique_ptr<BlockDevice> device) {
  take(open_record_store(options, control_.post(), std::move(device)));
}

TestStore::TestStore(const RecordStoreOptions& options, Late) {
  take(open_record_store_now_or_late(options, control_.post()));
}

void TestStore::take(Result<std::unique_ptr<RecordStore>> store) {
  auto extents = make_memfd_extents(Tier::host, {});
  extent_ = *extents->create(ExtentId(1), {kSlots * kSlotBytes, kSlotBytes});
  if (!store) {
    ADD_FAILURE() << store.error().message;
    std::abort();
  }
  store_ = std::move(*store);
  EXPECT_TRUE(store_->register_extent(*extent_));
}

std::vector<DiskEntry> TestStore::recover() {
  std::vector<DiskEntry> entries;
  EXPECT_TRUE(store_->recover([&](const DiskEntry& entry) { entries.push_back(entry); }));
  store_->recovered();
  return entries;
}

RecordStore::Write TestStore::write_of(const TestRecord& record, DiskLocation to,
                                       std::uint32_t slot) {
  std::copy(record.bytes.begin(), record.bytes.end(), extent_->slot(slot).begin());
  RecordStore::Write write;
  write.identity = record.identity;
  write.to = to;
  write.slot_bytes = write.record_bytes = record.bytes.size();
  write.extent = extent_->id();
  write.slot = slot;
  return write;
}

RecordStore::Read TestStore::read_of(const TestRecord& record, DiskLocation from,
                                     std::uint32_t slot) {
  RecordStore::Read read;
  read.ns = record.identity.ns;
  read.key = record.identity.key;
  read.from = from;
  read.slot_bytes = read.record_bytes = record.bytes.size();
  read.extent = extent_->id();
  read.slot = slot;
  return read;
}

Result<void> TestStore::wait_for(
    const std::function<Result<void>(RecordStore::Done<void>)>& start) {
  std::optional<Result<void>> outcome;
  if (auto started = start([&](Result<void> result) { outcome = std::move(result); }); !started) {
    return started;
  }
  control_.run_until([&] { return outcome.has_value(); });
  return *outcome;
}

Result<void> TestStore::write(const TestRecord& record, DiskLocation to,
                              std::optional<Key> replaces, std::uint64_t stamp) {
  RecordStore::Write write = write_of(record, to);
  write.replaces = replaces;
  write.last_access = stamp;
  return wait_for([&](auto done) { return store_->write(write, std::move(done)); });
}

Result<std::vector<std::byte>> TestStore::read(const TestRecord& record, DiskLocation from) {
  const auto slot = extent_->slot(1);
  std::fill(slot.begin(), slot.end(), std::byte{0xEE});
  const auto result =
      wait_for([&](auto done) { return store_->read(read_of(record, from, 1), std::move(done)); });
  if (!result) return result.error();
  return std::vector<std::byte>(slot.begin(),
                                slot.begin() + static_cast<long>(record.bytes.size()));
}

bool TestStore::works(const TestRecord& record, DiskLocation to) {
  if (!write(record, to)) return false;
  const auto found = read(record, to);
  return found && record.equals(*found) && flush();
}

void TestStore::watch_health() {
  store_->on_health([this](DiskState state, const std::string& why) {
    health_.push_back({state == DiskState::online, why});
  });
}

void TestStore::wait_until(bool online) {
  control_.run_until([&] { return !health_.empty() && health_.back().online == online; });
}

Result<void> TestStore::erase(std::vector<Key> keys) {
  return wait_for([&](auto done) {
    store_->erase(std::move(keys), std::move(done));
    return Result<void>{};
  });
}

void TestStore::forget(ExtentId extent) {
  bool done = false;
  store_->forget_extent(extent, [&] { done = true; });
  control_.run_until([&] { return done; });
}

Result<void> TestStore::flush() {
  return wait_for([&](auto done) {
    store_->flush(std::move(done));
    return Result<void>{};
  });
}

}  // namespace kvtier::storage::testing
