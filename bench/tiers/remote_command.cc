#include <hiredis/hiredis.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "bench/support/records.h"
#include "bench/tiers/commands.h"
#include "storage/remote/redis/connection.h"
#include "storage/remote/remote_store.h"
#include "storage/remote/remote_url.h"
#include "storage/remote/remote_value.h"

namespace kvtier::bench {
namespace {

using storage::Connection;

constexpr std::uint32_t kRecords = 64;
// For a read or a write, of which none is to be late.
constexpr std::chrono::seconds kPatience{30};
enum class Way { read, write };

struct FreeContext {
  void operator()(redisContext* context) const noexcept { ::redisFree(context); }
};
struct FreeBareReply {
  void operator()(void* reply) const noexcept { ::freeReplyObject(reply); }
};

std::string size_name(std::uint64_t bytes) {
  if (bytes % (1U << 20) == 0) return std::to_string(bytes >> 20) + "MiB";
  return std::to_string(bytes >> 10) + "KiB";
}

// As many operations on a connection as the store has on one.
std::uint32_t depth_of(std::uint64_t record_bytes) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(Connection::kBytesMax / record_bytes,
                                                              1, Connection::kOperationsMax));
}

std::vector<char> payload_of(std::uint64_t bytes) {
  std::vector<char> payload(bytes);
  for (std::size_t i = 0; i + sizeof(std::uint64_t) <= payload.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = mixed(i);
    std::memcpy(payload.data() + i, &word, sizeof word);
  }
  return payload;
}

// hiredis as it is: blocking connections, each with its pipeline, served in turn by one thread.
class BareLoop {
 public:
  BareLoop(const storage::RemoteAddress& server, const RemoteBenchOptions& options)
      : payload_(payload_of(options.record_bytes)), depth_(depth_of(options.record_bytes)) {
    for (std::uint32_t i = 0; i < options.connections; ++i) {
      connections_.emplace_back(server.is_socket()
                                    ? ::redisConnectUnix(server.host.c_str())
                                    : ::redisConnect(server.host.c_str(), server.port));
      if (!connections_.back() || connections_.back()->err != 0)
        throw std::runtime_error(server.text() + " cannot be connected to by the bare loop");
    }
    for (std::uint32_t i = 0; i < kRecords; ++i) {
      append(*connections_[0], Way::write, i);
      take(*connections_[0], Way::write);
    }
  }
  ~BareLoop() {
    for (std::uint32_t i = 0; i < kRecords; ++i) erase(name(i));
  }
  void erase(const std::string& name) {
    const FreeBareReply free;
    free(::redisCommand(connections_[0].get(), "DEL %s", name.c_str()));
  }

  // Bytes a second.
  double run(Way way, double seconds) {
    std::vector<std::uint32_t> under_way(connections_.size(), 0);
    std::uint64_t bytes = 0;
    const auto begin = std::chrono::steady_clock::now();
    bool any = true;
    while (std::exchange(any, false)) {
      for (std::size_t i = 0; i < connections_.size(); ++i) {
        while (under_way[i] < depth_ && seconds_since(begin) < seconds) {
          append(*connections_[i], way, next_++ % kRecords);
          ++under_way[i];
        }
        if (under_way[i] == 0) continue;
        take(*connections_[i], way);
        --under_way[i];
        bytes += payload_.size();
        any = true;
      }
    }
    return static_cast<double>(bytes) / seconds_since(begin);
  }

 private:
  static std::string name(std::uint32_t record) {
    return std::string(storage::kValuePrefix) + "bench:" + std::to_string(record);
  }
  void append(redisContext& connection, Way way, std::uint32_t record) {
    const std::string key = name(record);
    const char* const words[] = {way == Way::read ? "GET" : "SET", key.data(), payload_.data()};
    const std::size_t lengths[] = {3, key.size(), payload_.size()};
    ::redisAppendCommandArgv(&connection, way == Way::read ? 2 : 3, const_cast<const char**>(words),
                             lengths);
  }
  void take(redisContext& connection, Way way) {
    void* object = nullptr;
    const bool came = ::redisGetReply(&connection, &object) == REDIS_OK;
    const std::unique_ptr<redisReply, FreeBareReply> reply(static_cast<redisReply*>(object));
    const bool good = came && (way == Way::read ? reply->type == REDIS_REPLY_STRING &&
                                                      reply->len == payload_.size()
                                                : reply->type == REDIS_REPLY_STATUS);
    if (!good)
      throw std::runtime_error("the bare loop: " +
                               std::string(came ? reply->str : connection.errstr));
  }

  std::vector<std::unique_ptr<redisContext, FreeContext>> connections_;
  std::vector<char> payload_;
  std::uint32_t depth_;
  std::uint32_t next_ = 0;
};

// The store as the daemon has it, with as many operations accepted as keep its pipelines full.
class StoreLoop {
 public:
  // Its values are erased through `bare` at the end.
  StoreLoop(const RemoteBenchOptions& options, BareLoop& bare)
      : bare_(bare),
        ns_(namespace_of_records(options.record_bytes)),
        layout_(RecordLayout::of(ns_)),
        slots_(2 * options.connections * depth_of(options.record_bytes)) {
    const auto extents = storage::make_memfd_extents(Tier::host, {true, true});
    extent_ = need(extents->create(storage::ExtentId(1),
                                   {slots_ * layout_.record_bytes, layout_.record_bytes}));
    const auto payload = payload_of(layout_.record_bytes);
    for (std::uint32_t slot = 0; slot < slots_; ++slot)
      std::memcpy(extent_->slot(slot).data(), payload.data(), payload.size());
    for (std::uint32_t i = 0; i < kRecords; ++i) {
      tokens_.push_back(prompt(i, kBlockTokens));
      identities_.push_back({id_of(ns_), chain_key(id_of(ns_), Key{}, tokens_[i]), Key{}, 0});
    }
    storage::RemoteOptions remote;
    remote.url = options.url;
    remote.connections = options.connections;
    store_ = need(storage::open_remote_store(remote, [this](std::function<void()> task) {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
      posted_.notify_one();
    }));
    bool online = false;
    std::string why;
    store_->on_health([&](storage::RemoteState state, const std::string& reason) {
      online = state == storage::RemoteState::online;
      why = reason;
    });
    const auto begin = std::chrono::steady_clock::now();
    while (!online && seconds_since(begin) < 10) run_tasks(true);
    store_->on_health({});
    if (!online) throw std::runtime_error("the remote store is not online: " + why);
    need(store_->register_extent(*extent_));
    for (std::uint32_t i = 0; i < kRecords; ++i) {
      left_ = 1;
      write(0, i);
      while (left_ > 0) run_tasks(false);
    }
  }
  ~StoreLoop() {
    store_->close();
    for (const BlockIdentity& identity : identities_)
      bare_.erase(storage::value_name(identity.key));
  }

  double run(Way way, double seconds) {
    free_.clear();
    for (std::uint32_t slot = 0; slot < slots_; ++slot) free_.push_back(slot);
    std::uint64_t done = 0;
    const auto begin = std::chrono::steady_clock::now();
    const auto more = [&] { return seconds_since(begin) < seconds; };
    while (more() || free_.size() < slots_) {
      while (!free_.empty() && more()) {
        const std::uint32_t slot = free_.back();
        free_.pop_back();
        ++done;
        if (way == Way::read) {
          read(slot, next_++ % kRecords);
        } else {
          write(slot, next_++ % kRecords);
        }
      }
      if (free_.size() < slots_) run_tasks(false);
    }
    return static_cast<double>(done * layout_.record_bytes) / seconds_since(begin);
  }

 private:
  void landed(std::uint32_t slot, const Result<void>& result) {
    if (!result) throw std::runtime_error("the remote store: " + result.error().message);
    free_.push_back(slot);
    if (left_ > 0) --left_;
  }
  void read(std::uint32_t slot, std::uint32_t record) {
    need(store_->read({identities_[record].ns, identities_[record].key, extent_->id(), slot,
                       layout_.record_bytes, Clock::now() + kPatience},
                      [this, slot](const Result<void>& result) { landed(slot, result); }));
  }
  void write(std::uint32_t slot, std::uint32_t record) {
    write_header(extent_->slot(slot), layout_, identities_[record], tokens_[record]);
    need(store_->write({identities_[record], extent_->id(), slot, layout_.record_bytes},
                       [this, slot](const Result<void>& result) { landed(slot, result); }));
  }
  // One wait for tasks; `briefly`: a tenth of a second at most.
  void run_tasks(bool briefly) {
    std::deque<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      posted_.wait_for(lock, briefly ? std::chrono::milliseconds(100) : kPatience,
                       [this] { return !tasks_.empty(); });
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
  }

  BareLoop& bare_;
  const Namespace ns_;
  const RecordLayout layout_;
  const std::uint32_t slots_;
  std::vector<std::vector<Token>> tokens_;
  std::vector<BlockIdentity> identities_;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
  std::unique_ptr<storage::Extent> extent_;
  std::unique_ptr<storage::RemoteStore> store_;
  std::vector<std::uint32_t> free_;
  std::uint32_t left_ = 0, next_ = 0;
};

}  // namespace

void measure_remote(const RemoteBenchOptions& options, Report& report) {
  const auto url = need(storage::RemoteUrl::parse(options.url));
  if (url.kind != storage::RemoteUrl::Kind::redis || url.tls || !url.user.empty())
    throw std::runtime_error(
        "the bare loop needs a Redis without TLS and users: redis://host:port "
        "or redis+unix:///socket");
  BareLoop bare(url.servers.front(), options);
  StoreLoop store(options, bare);
  for (const Way way : {Way::read, Way::write}) {
    std::vector<double> bares, stores;
    for (std::uint32_t round = 0; round < options.turns.rounds; ++round) {
      bares.push_back(bare.run(way, options.turns.seconds));
      stores.push_back(store.run(way, options.turns.seconds));
    }
    constexpr double kMiB = 1U << 20;
    report.add(std::string("remote.") + (way == Way::read ? "read." : "write.") +
                   size_name(options.record_bytes),
               median(stores) / kMiB, "MiB/s", median(bares) / kMiB);
  }
}

}  // namespace kvtier::bench
