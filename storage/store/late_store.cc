#include "storage/store/late_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
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

}  // namespace

class LateStore final : public RecordStore {
 public:
  // Begins to open it at once.
  LateStore(const RecordStoreOptions& options, Post post, const WrapDevice& wrap)
      : options_(options), post_(std::move(post)), wrap_(wrap) {
    options_.progress = [this](const std::string& text) { note_progress(text); };
    options_.cancelled = [this] { return stopping_.load(); };
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  ~LateStore() override { close(); }

  // What came of the first attempt; none: nothing was heard of it for `patience`, or it has failed
  // and the store may come. Then this is that store.
  std::optional<Result<std::unique_ptr<RecordStore>>> first_attempt(
      std::chrono::milliseconds patience, const std::function<void(const std::string&)>& progress) {
    std::unique_lock lock(mutex_);
    const auto began = Clock::now();
    while (news_.wait_until(lock, heard_ + patience,
                            [this] { return first_.has_value() || !progress_.empty(); })) {
      if (first_) break;
      const std::string text = std::exchange(progress_, {});
      lock.unlock();
      if (progress) progress(text);
      lock.lock();
    }
    const bool may_come = !first_ || (!*first_ && first_may_come_);
    if (!may_come) {
      verdict_ = Verdict::taken;
      news_.notify_all();
      return std::move(*first_);
    }
    why_ = first_ ? first_->error().message
                  : options_.directory.string() + ": nothing came of opening it for " +
                        std::to_string(
                            std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - began)
                                .count()) +
                        " s; look at its device with dmesg";
    verdict_ = Verdict::late;
    news_.notify_all();
    spdlog::error("disk tier {} cannot be used, kvtierd goes on without it until it can be: {}",
                  options_.directory.string(), why_);
    return std::nullopt;
  }

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
  bool has_room() const noexcept override { return !store_ || store_->has_room(); }
  Result<void> read(const Read& read, Done<void> done) override {
    return store_ ? store_->read(read, std::move(done)) : offline();
  }
  Result<void> scrub(const Scrub& scrub, Done<void> done) override {
    return store_ ? store_->scrub(scrub, std::move(done)) : offline();
  }
  Result<void> test_place(DiskLocation at, std::uint64_t slot_bytes, Done<void> done) override {
    return store_ ? store_->test_place(at, slot_bytes, std::move(done)) : offline();
  }
  std::vector<BadPlace> bad_places() const override {
    return store_ ? store_->bad_places() : std::vector<BadPlace>{};
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
  void on_health(Changed changed) override {
    changed_ = std::move(changed);
    if (store_) return store_->on_health(changed_);
    changed_(DiskState::offline, why_);
  }
  RecordStoreStats stats() const override { return store_ ? store_->stats() : RecordStoreStats{}; }

  void close() override {
    stopping_ = true;
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
    alive_.reset();
    opened_ = {};
    first_.reset();
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

  void note_progress(const std::string& text) {
    const std::lock_guard lock(mutex_);
    heard_ = Clock::now();
    progress_ = text;
    news_.notify_all();
  }

  // The first attempt is the start's, if that still waits for it; whatever comes of it later, and
  // all that follow, is this store's own.
  void run(const std::stop_token& stop) {
    auto attempt = open_wrapped_record_store(options_, post_, wrap_);
    const bool may_come = !attempt && StoreDirectory::may_come(options_.directory, attempt.error());
    options_.may_create = false;
    {
      std::unique_lock lock(mutex_);
      if (verdict_ == Verdict::none) {
        first_ = std::move(attempt);
        first_may_come_ = may_come;
        news_.notify_all();
        news_.wait(lock, stop, [this] { return verdict_ != Verdict::none; });
        if (verdict_ != Verdict::late) return;
        attempt = std::move(*first_);
        first_.reset();
      }
    }
    wait_for_it(stop, std::move(attempt));
  }

  void wait_for_it(const std::stop_token& stop, Result<std::unique_ptr<RecordStore>> attempt) {
    auto pause = options_.probe_first;
    std::string told = attempt ? std::string() : attempt.error().message;
    for (auto began = Clock::now();;) {
      const Result<void> ready =
          attempt ? make_ready(std::move(*attempt)) : Result<void>(attempt.error());
      if (ready) return tell([this] { arrive(); });
      if (std::exchange(told, ready.error().message) != ready.error().message) {
        tell([this, why = told] { still_offline(why); });
      }
      // Reading a large index again and again would keep a core busy.
      const auto took = std::chrono::ceil<std::chrono::milliseconds>(Clock::now() - began);
      if (wait(stop, pause)) return;
      pause = std::max(std::min(2 * pause, options_.probe_max), 4 * took);
      began = Clock::now();
      attempt = open_wrapped_record_store(options_, post_, wrap_);
    }
  }

  // True: it is to stop.
  bool wait(const std::stop_token& stop, std::chrono::milliseconds pause) {
    std::unique_lock lock(mutex_);
    news_.wait_for(lock, stop, pause, [] { return false; });
    return stop.stop_requested();
  }

  Result<void> make_ready(std::unique_ptr<RecordStore> store) {
    Opened opened;
    opened.store = std::move(store);
    auto rows = opened.store->namespaces();
    if (!rows) return rows.error();
    opened.namespaces = std::move(*rows);
    const auto read =
        opened.store->recover([&](const DiskEntry& entry) { opened.entries.push_back(entry); });
    if (!read) return read;
    opened.store->recovered();
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
    if (changed_) changed_(DiskState::offline, why_);
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
    changed_(DiskState::online, "it can be used now");
  }

  RecordStoreOptions options_;
  const Post post_;
  const WrapDevice wrap_;
  std::string why_;
  Changed changed_;
  std::function<void(const std::vector<LostRecord>&)> lost_;
  std::map<ExtentId, const Extent*> extents_;
  std::map<NamespaceId, std::vector<std::byte>> to_remember_;
  std::vector<Erasure> to_erase_;
  std::unique_ptr<RecordStore> store_;  // once it was opened
  std::vector<DiskEntry> entries_;
  std::size_t recovered_ = 0;
  NamespaceRows namespaces_;

  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;  // of what follows
  std::condition_variable_any news_;
  Opened opened_;
  // The first attempt: what was heard of it, what came of it, and whose it is.
  enum class Verdict { none, taken, late } verdict_ = Verdict::none;
  Clock::time_point heard_ = Clock::now();
  std::string progress_;
  std::optional<Result<std::unique_ptr<RecordStore>>> first_;
  bool first_may_come_ = false;

  std::jthread thread_;
};

StoreOpening::StoreOpening(const RecordStoreOptions& options, RecordStore::Post post,
                           const WrapDevice& wrap)
    : progress_(options.progress),
      late_(std::make_unique<LateStore>(options, std::move(post), wrap)) {}
StoreOpening::~StoreOpening() = default;

Result<std::unique_ptr<RecordStore>> StoreOpening::take(std::chrono::milliseconds patience) {
  auto first = late_->first_attempt(patience, progress_);
  if (first) return std::move(*first);
  return std::unique_ptr<RecordStore>(std::move(late_));
}

Result<std::unique_ptr<RecordStore>> open_record_store_now_or_late(
    const RecordStoreOptions& options, RecordStore::Post post, const WrapDevice& wrap,
    std::chrono::milliseconds patience) {
  return StoreOpening(options, std::move(post), wrap).take(patience);
}

}  // namespace kvtier::storage
