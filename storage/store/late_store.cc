#include "storage/store/late_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "storage/index/store_directory.h"

namespace kvtier::storage {
namespace {

using Clock = std::chrono::steady_clock;
using NamespaceRows = std::vector<std::pair<NamespaceId, std::vector<std::byte>>>;

// Newest first, the head of a prefix before its tail.
bool newer(const DiskEntry& a, const DiskEntry& b) noexcept {
  if (a.last_access != b.last_access) return a.last_access > b.last_access;
  return a.identity.block_index < b.identity.block_index;
}

class LateStore final : public RecordStore {
 public:
  LateStore(const RecordStoreOptions& options, Post post, const WrapDevice& wrap, const Error& why)
      : options_(options), post_(std::move(post)), wrap_(wrap), why_(why.message) {
    options_.progress = nullptr;
    options_.may_create = false;
    thread_ = std::jthread([this](const std::stop_token& stop) { wait_for_it(stop); });
  }
  ~LateStore() override { close(); }

  Result<void> recover(const std::function<void(const DiskEntry&)>& visit) override {
    constexpr std::size_t kPiece = 2048;
    const std::size_t end = std::min(entries_.size(), recovered_ + kPiece);
    for (; recovered_ < end; ++recovered_) visit(entries_[recovered_]);
    // Before there are entries the thread is the one that opens the store.
    if (!entries_.empty() && !to_recover()) {
      let_go_of_entries();
      recovered_ = 0;
    }
    return {};
  }
  bool to_recover() const noexcept override { return recovered_ < entries_.size(); }
  bool unknown() const noexcept override { return store_ == nullptr; }

  Result<void> register_extent(const Extent& extent) override {
    if (store_) return store_->register_extent(extent);
    extents_[extent.id()] = &extent;
    return {};
  }
  void forget_extent(ExtentId extent, std::function<void()> done) override {
    if (store_) return store_->forget_extent(extent, std::move(done));
    extents_.erase(extent);
    done();
  }

  Result<void> write(const Write& write, Done<void> done) override {
    return store_ ? store_->write(write, std::move(done)) : offline();
  }
  Result<void> read(const Read& read, Done<void> done) override {
    return store_ ? store_->read(read, std::move(done)) : offline();
  }
  Result<void> scrub(const Scrub& scrub, Done<void> done) override {
    return store_ ? store_->scrub(scrub, std::move(done)) : offline();
  }
  // What is there is not known yet, so there is nothing to erase.
  void erase(std::vector<Key> keys, Done<void> done) override {
    if (store_) return store_->erase(std::move(keys), std::move(done));
    answer_offline(std::move(done));
  }
  void erase_for_good(std::vector<Erasure> what) override {
    if (store_) return store_->erase_for_good(std::move(what));
    to_erase_.insert(to_erase_.end(), what.begin(), what.end());
  }
  void touch(std::vector<std::pair<Key, std::uint64_t>> stamps) override {
    if (store_) store_->touch(std::move(stamps));
  }
  void remember_namespace(const NamespaceId& id, std::vector<std::byte> encoded) override {
    if (store_) return store_->remember_namespace(id, std::move(encoded));
    to_remember_[id] = std::move(encoded);
  }
  // What is there is not known yet; what of it nobody needs is found when it is.
  void forget_namespace(const NamespaceId& id) override {
    if (store_) return store_->forget_namespace(id);
    to_remember_.erase(id);
  }
  Result<NamespaceRows> namespaces() override { return namespaces_; }
  void flush(Done<void> done) override {
    if (store_) return store_->flush(std::move(done));
    answer_offline(std::move(done));
  }

  void on_lost(std::function<void(const std::vector<LostRecord>&)> lost) override {
    lost_ = std::move(lost);
    if (store_) store_->on_lost(lost_);
  }
  void on_health(std::function<void(bool, const std::string&)> changed) override {
    changed_ = std::move(changed);
    if (store_) return store_->on_health(changed_);
    changed_(false, why_);
  }
  RecordStoreStats stats() const override { return store_ ? store_->stats() : RecordStoreStats{}; }

  void close() override {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
    alive_.reset();
    opened_ = {};
    if (store_) store_->close();
  }

 private:
  struct Opened {
    std::unique_ptr<RecordStore> store;
    std::vector<DiskEntry> entries;
    NamespaceRows namespaces;
  };

  Result<void> offline() const { return make_error(Errc::unavailable, why_); }
  void answer_offline(Done<void> done) {
    if (done) post_([done = std::move(done), why = offline()] { done(why); });
  }

  // On the store's own thread, which what it posts may outlive.
  template <class Task>
  void tell(Task task) {
    post_([alive = std::weak_ptr<bool>(alive_), task = std::move(task)] {
      if (!alive.expired()) task();
    });
  }

  void wait_for_it(const std::stop_token& stop) {
    auto pause = options_.probe_first;
    std::string told = why_;
    while (!wait(stop, pause)) {
      const auto began = Clock::now();
      const auto opened = open();
      if (opened) return tell([this] { arrive(); });
      if (std::exchange(told, opened.error().message) != opened.error().message) {
        tell([this, why = told] { still_offline(why); });
      }
      // Reading a large index again and again would keep a core busy.
      const auto took = std::chrono::ceil<std::chrono::milliseconds>(Clock::now() - began);
      pause = std::max(std::min(2 * pause, options_.probe_max), 4 * took);
    }
  }

  // True: it is to stop.
  bool wait(const std::stop_token& stop, std::chrono::milliseconds pause) {
    std::unique_lock lock(mutex_);
    std::condition_variable_any stopped;
    stopped.wait_for(lock, stop, pause, [] { return false; });
    return stop.stop_requested();
  }

  Result<void> open() {
    Opened opened;
    auto store = open_wrapped_record_store(options_, post_, wrap_);
    if (!store) return store.error();
    opened.store = std::move(*store);
    auto rows = opened.store->namespaces();
    if (!rows) return rows.error();
    opened.namespaces = std::move(*rows);
    const auto read =
        opened.store->recover([&](const DiskEntry& entry) { opened.entries.push_back(entry); });
    if (!read) return read;
    std::ranges::sort(opened.entries, newer);
    const std::lock_guard lock(mutex_);
    opened_ = std::move(opened);
    return {};
  }

  // On a thread of its own: there may be millions. The one before has ended with its work.
  void let_go_of_entries() {
    try {
      thread_ = std::jthread([gone = std::exchange(entries_, {})] {});
    } catch (const std::system_error&) {
      entries_ = {};  // no thread to be had: rather late than never
    }
  }

  // From here on all on the control thread.
  void still_offline(const std::string& why) {
    why_ = why;
    spdlog::warn("disk tier: still not there: {}", why);
    if (changed_) changed_(false, why_);
  }

  void arrive() {
    {
      const std::lock_guard lock(mutex_);
      store_ = std::move(opened_.store);
      entries_ = std::move(opened_.entries);
      namespaces_ = std::move(opened_.namespaces);
    }
    for (const auto& [id, extent] : std::exchange(extents_, {})) {
      if (const auto good = store_->register_extent(*extent); !good) {
        spdlog::warn("extent {} is not registered for disk I/O: {}", id.value,
                     good.error().message);
      }
    }
    store_->erase_for_good(std::exchange(to_erase_, {}));
    for (auto& [id, encoded] : std::exchange(to_remember_, {}))
      store_->remember_namespace(id, encoded);
    if (lost_) store_->on_lost(lost_);
    if (!changed_) return;
    store_->on_health(changed_);
    changed_(true, "it can be used now");
  }

  RecordStoreOptions options_;
  const Post post_;
  const WrapDevice wrap_;
  std::string why_;
  std::function<void(bool, const std::string&)> changed_;
  std::function<void(const std::vector<LostRecord>&)> lost_;
  std::map<ExtentId, const Extent*> extents_;
  std::map<NamespaceId, std::vector<std::byte>> to_remember_;
  std::vector<Erasure> to_erase_;
  std::unique_ptr<RecordStore> store_;  // once it was opened
  std::vector<DiskEntry> entries_;
  std::size_t recovered_ = 0;
  NamespaceRows namespaces_;

  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::mutex mutex_;  // of opened_
  Opened opened_;
  std::jthread thread_;
};

}  // namespace

Result<std::unique_ptr<RecordStore>> open_record_store_now_or_late(
    const RecordStoreOptions& options, RecordStore::Post post, const WrapDevice& wrap) {
  auto store = open_wrapped_record_store(options, post, wrap);
  const bool may_come =
      !store && (store.error().code == Errc::io || store.error().code == Errc::no_space);
  if (!may_come || !StoreDirectory::was_made(options.directory)) return store;
  spdlog::error("disk tier {} cannot be used, kvtierd goes on without it until it can be: {}",
                options.directory.string(), store.error().message);
  return std::unique_ptr<RecordStore>(
      std::make_unique<LateStore>(options, std::move(post), wrap, store.error()));
}

}  // namespace kvtier::storage
