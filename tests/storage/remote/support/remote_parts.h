// What the tests of the remote store share: a store with one registered extent and blocking calls.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/remote/remote_store.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage::testing {

class TestRemote {
 public:
  static constexpr std::uint64_t kSlotBytes = 64_KiB;
  static constexpr std::uint32_t kSlots = 64;
  static constexpr std::chrono::seconds kPatience{20};

  // Fails the test if the store cannot be opened.
  explicit TestRemote(const RemoteOptions& options);
  explicit TestRemote(const std::string& url) : TestRemote(options_of(url)) {}
  static RemoteOptions options_of(const std::string& url);

  RemoteStore& operator*() noexcept { return *store_; }
  RemoteStore* operator->() noexcept { return store_.get(); }
  Control& control() noexcept { return control_; }
  std::span<std::byte> slot(std::uint32_t number) const { return extent_->slot(number); }
  Extent& extent() noexcept { return *extent_; }

  struct Said {
    RemoteState state;
    std::string why;
  };
  const std::vector<Said>& said() const noexcept { return said_; }
  // Until it says so; what it says of it.
  std::string wait_for(RemoteState state);
  // Until its reason has this in it.
  void wait_for_why(const std::string& part);

  // As comes_true(), with what the store posts meanwhile done.
  bool brings(const std::function<bool()>& condition);

  RemoteStore::Read read_of(const TestRecord& record, std::uint32_t slot,
                            std::chrono::milliseconds in = kPatience) const;
  RemoteStore::Write write_of(const TestRecord& record, std::uint32_t slot);

  Result<void> write(const TestRecord& record);
  // The record as read. The slot is scribbled over first.
  Result<std::vector<std::byte>> read(const TestRecord& record,
                                      std::chrono::milliseconds in = kPatience);
  Result<std::size_t> find(std::vector<Key> keys, std::chrono::milliseconds in = kPatience);
  // Whether the record is read, and right.
  bool serves(const TestRecord& record);
  // Written, found and read.
  bool works(const TestRecord& record) { return write(record) && serves(record); }

  template <class T>
  Result<T> wait(const std::function<Result<void>(RemoteStore::Done<T>)>& start) {
    std::optional<Result<T>> outcome;
    if (auto started = start([&](Result<T> result) { outcome = std::move(result); }); !started)
      return started.error();
    control_.run_until([&] { return outcome.has_value(); });
    return *outcome;
  }

 private:
  Control control_;
  std::unique_ptr<Extent> extent_;
  std::vector<Said> said_;
  std::unique_ptr<RemoteStore> store_;
};

// One that has said that it is online.
class OnlineRemote : public TestRemote {
 public:
  template <class Options>
  explicit OnlineRemote(const Options& options) : TestRemote(options) {
    wait_for(RemoteState::online);
  }
};

std::vector<Key> keys_of(const std::vector<TestRecord>& records);
std::vector<TestRecord> test_records(std::uint32_t count, std::uint32_t first = 0);
// A file with this text, in the directory.
std::string write_file(const TestDirectory& directory, const std::string& name,
                       const std::string& text);
// The value that a store makes of a record where none is sealed.
std::string value_of(const TestRecord& record);

}  // namespace kvtier::storage::testing
