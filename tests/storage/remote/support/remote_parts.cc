#include "tests/storage/remote/support/remote_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "storage/remote/remote_value.h"
#include "tests/storage/remote/support/redis_server.h"

namespace kvtier::storage::testing {

RemoteOptions TestRemote::options_of(const std::string& url) {
  RemoteOptions options;
  options.url = url;
  return options;
}

TestRemote::TestRemote(const RemoteOptions& options) {
  auto extents = make_memfd_extents(Tier::host, {});
  extent_ = *extents->create(ExtentId(1), {kSlots * kSlotBytes, kSlotBytes});
  auto store = open_remote_store(options, control_.post());
  if (!store) {
    ADD_FAILURE() << store.error().message;
    std::abort();
  }
  store_ = std::move(*store);
  store_->on_health([this](RemoteState state, const std::string& why) {
    said_.push_back({state, why});
  });
  EXPECT_TRUE(store_->register_extent(*extent_));
}

std::string TestRemote::wait_for(RemoteState state) {
  control_.run_until([&] { return !said_.empty() && said_.back().state == state; });
  return said_.back().why;
}

void TestRemote::wait_for_why(const std::string& part) {
  control_.run_until(
      [&] { return !said_.empty() && said_.back().why.find(part) != std::string::npos; });
}

bool TestRemote::brings(const std::function<bool()>& condition) {
  return comes_true([&] {
    bool all_run = false;
    control_.post()([&] { all_run = true; });
    control_.run_until([&] { return all_run; });
    return condition();
  });
}

RemoteStore::Read TestRemote::read_of(const TestRecord& record, std::uint32_t slot,
                                      std::chrono::milliseconds in) const {
  RemoteStore::Read read;
  read.ns = record.identity.ns;
  read.key = record.identity.key;
  read.extent = extent_->id();
  read.slot = slot;
  read.record_bytes = record.bytes.size();
  read.deadline = Clock::now() + in;
  return read;
}

RemoteStore::Write TestRemote::write_of(const TestRecord& record, std::uint32_t slot) {
  std::copy(record.bytes.begin(), record.bytes.end(), this->slot(slot).begin());
  return {record.identity, extent_->id(), slot, record.bytes.size()};
}

Result<void> TestRemote::write(const TestRecord& record) {
  return wait<void>([&](auto done) { return store_->write(write_of(record, 0), std::move(done)); });
}

Result<std::vector<std::byte>> TestRemote::read(const TestRecord& record,
                                                std::chrono::milliseconds in) {
  const auto to = slot(1);
  std::fill(to.begin(), to.end(), std::byte{0xEE});
  const auto result =
      wait<void>([&](auto done) { return store_->read(read_of(record, 1, in), std::move(done)); });
  if (!result) return result.error();
  return std::vector<std::byte>(to.begin(), to.begin() + static_cast<long>(record.bytes.size()));
}

Result<std::size_t> TestRemote::find(std::vector<Key> keys, std::chrono::milliseconds in) {
  return wait<std::size_t>(
      [&](auto done) { return store_->find(std::move(keys), Clock::now() + in, std::move(done)); });
}

bool TestRemote::serves(const TestRecord& record) {
  const auto found = find({record.identity.key});
  const auto bytes = read(record);
  EXPECT_TRUE(bytes) << bytes.error().message;
  return found && *found == 1 && bytes && record.equals(*bytes);
}

std::vector<Key> keys_of(const std::vector<TestRecord>& records) {
  std::vector<Key> keys;
  for (const TestRecord& record : records) keys.push_back(record.identity.key);
  return keys;
}

std::vector<TestRecord> test_records(std::uint32_t count, std::uint32_t first) {
  std::vector<TestRecord> records;
  for (std::uint32_t i = 0; i < count; ++i) records.emplace_back((first + i) % kKinds, first + i);
  return records;
}

std::string write_file(const TestDirectory& directory, const std::string& name,
                       const std::string& text) {
  const auto path = directory.path() / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string value_of(const TestRecord& record) {
  const auto value = ValueForm(nullptr).make(record.bytes, record.identity);
  std::string text(reinterpret_cast<const char*>(value->first.data()), value->first.size());
  text.append(reinterpret_cast<const char*>(value->rest.data()), value->rest.size());
  return text;
}

}  // namespace kvtier::storage::testing
