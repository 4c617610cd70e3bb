// A RemoteStore in memory, whose values several caches may share. Nothing ends until the test says
// so, in whatever order it likes; records are verified for real.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/record/record.h"
#include "storage/remote/remote_store.h"

namespace kvtier::daemon::testing {

class FakeRemote final : public storage::RemoteStore {
 public:
  using Values = std::map<Key, std::vector<std::byte>>;
  explicit FakeRemote(std::shared_ptr<Values> values = std::make_shared<Values>())
      : values_(std::move(values)) {}

  Values& values() noexcept { return *values_; }
  const std::shared_ptr<Values>& shared() const noexcept { return values_; }

  struct Asked {
    enum class What { find, read, write } what;
    std::vector<Key> keys;
  };
  const std::vector<Asked>& asked() const noexcept { return asked_; }
  std::vector<Asked> take_asked() { return std::exchange(asked_, {}); }
  // Operations that have not ended.
  std::size_t under_way() const noexcept { return under_way_.size(); }
  // The oldest ends, as it is, or with this error.
  void end_one(std::optional<Errc> failure = {}) {
    auto end = std::move(under_way_.front());
    under_way_.pop_front();
    end(failure);
  }
  void end_newest(std::optional<Errc> failure = {}) {
    auto end = std::move(under_way_.back());
    under_way_.pop_back();
    end(failure);
  }
  // All of them, and what they bring.
  void end_all(std::optional<Errc> failure = {}) {
    while (!under_way_.empty()) end_one(failure);
  }
  std::optional<Errc> refuses;  // what comes
  const std::vector<Key>& erased() const noexcept { return erased_; }

  void say(storage::RemoteState state, const std::string& why = "") { changed_(state, why); }

  Result<void> register_extent(const storage::Extent& extent) override {
    extents_[extent.id()] = &extent;
    return {};
  }
  void forget_extent(storage::ExtentId extent, std::function<void()> done) override {
    extents_.erase(extent);
    done();
  }
  Result<void> find(std::vector<Key> keys, Deadline, Done<std::size_t> done) override {
    asked_.push_back({Asked::What::find, keys});
    if (refuses) return make_error(*refuses, "refused by the test");
    under_way_.push_back([this, keys = std::move(keys), done = std::move(done)](auto failure) {
      if (failure) return done(make_error(*failure, "failed by the test"));
      std::size_t found = 0;
      while (found < keys.size() && values_->contains(keys[found])) ++found;
      done(found);
    });
    return {};
  }
  Result<void> read(const Read& read, Done<void> done) override {
    asked_.push_back({Asked::What::read, {read.key}});
    if (refuses) return make_error(*refuses, "refused by the test");
    under_way_.push_back([this, read, done = std::move(done)](auto failure) {
      if (failure) return done(make_error(*failure, "failed by the test"));
      const auto value = values_->find(read.key);
      if (value == values_->end()) return done(make_error(Errc::not_found, "not there"));
      const auto slot = extents_.at(read.extent)->slot(read.slot);
      if (value->second.size() != read.record_bytes)
        return done(make_error(Errc::corrupt, "of another size"));
      std::ranges::copy(value->second, slot.begin());
      done(verify_checksums(slot.first(read.record_bytes), read.ns, read.key));
    });
    return {};
  }
  Result<void> write(const Write& write, Done<void> done) override {
    asked_.push_back({Asked::What::write, {write.identity.key}});
    if (refuses) return make_error(*refuses, "refused by the test");
    under_way_.push_back([this, write, done = std::move(done)](auto failure) {
      if (failure) return done(make_error(*failure, "failed by the test"));
      const auto slot = extents_.at(write.extent)->slot(write.slot).first(write.record_bytes);
      std::vector<std::byte> value(slot.begin(), slot.end());
      if (auto sealed = seal_checksums(value); !sealed) return done(sealed);
      (*values_)[write.identity.key] = std::move(value);
      done({});
    });
    return {};
  }
  void erase(std::vector<Key> keys) override {
    for (const Key& key : keys) values_->erase(key);
    erased_.insert(erased_.end(), keys.begin(), keys.end());
  }
  void on_health(Changed changed) override { changed_ = std::move(changed); }
  storage::RemoteStats stats() const override { return {}; }
  void close() override {}

 private:
  std::shared_ptr<Values> values_;
  std::vector<Asked> asked_;
  std::deque<std::function<void(std::optional<Errc>)>> under_way_;
  std::map<storage::ExtentId, const storage::Extent*> extents_;
  std::vector<Key> erased_;
  Changed changed_;
};

}  // namespace kvtier::daemon::testing
