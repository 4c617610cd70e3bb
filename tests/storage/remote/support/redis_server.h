// Servers of Redis that a test starts for itself, each in a scratch directory of its own, and ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "storage/remote/redis/reply_reader.h"
#include "tests/storage/support/helpers.h"

namespace kvtier::storage::testing {

// Why there is no redis-server to be tested with; empty: there is one.
std::string redis_is_missing();
#define KVTIER_NEEDS_REDIS()                                                         \
  if (const auto why = ::kvtier::storage::testing::redis_is_missing(); !why.empty()) \
  GTEST_SKIP() << why

// A port of the loopback interface that nobody has, up to 55,535.
std::uint16_t free_port();

// Waits until it holds, for half a minute. False: it does not.
bool comes_true(const std::function<bool()>& condition);

class RedisServer {
 public:
  struct Options {
    bool tcp = false;  // a port of the loopback interface, else a unix socket
    bool cluster = false;
    std::vector<std::string> more{};  // of its command line
    std::string user{}, password{};   // that ask() is to use
    // With TLS these are what ask() connects by: a unix socket is always there.
  };
  RedisServer() : RedisServer(Options{}) {}
  explicit RedisServer(Options options);
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;

  std::string url() const;
  std::uint16_t port() const noexcept { return port_; }
  const std::filesystem::path& directory() const noexcept { return directory_.path(); }

  void start();   // returns when it answers
  void launch();  // returns at once
  void kill();
  void stop();  // SIGSTOP
  void go_on();

  // A command on a connection of its own; fails the test where it cannot be asked.
  Reply ask(const std::vector<std::string>& arguments) const;
  // What it answers, as text; numbers too. Empty for nil.
  std::string say(const std::vector<std::string>& arguments) const;
  // Null: it does not answer.
  Reply try_to_ask(const std::vector<std::string>& arguments) const;

 private:
  Options options_;
  TestDirectory directory_{TestDirectory::Where::memory};
  std::uint16_t port_ = 0, bus_port_ = 0;
  pid_t pid_ = -1;
};

// Servers that are masters of a third of the slots each, or so.
class RedisCluster {
 public:
  explicit RedisCluster(std::size_t masters = 3, std::vector<std::string> more = {});

  std::string url() const;  // of the first
  RedisServer& operator[](std::size_t i) { return *servers_[i]; }
  std::size_t size() const noexcept { return servers_.size(); }
  std::string id(std::size_t i) { return servers_[i]->say({"CLUSTER", "MYID"}); }
  // The one that serves a key's slot, as it says itself.
  std::size_t owner(const std::string& name);
  // A replica of a master, in step with it. Returns its number.
  std::size_t add_replica(std::size_t of);
  // A slot with all its keys, from one to another; `half_way` runs when the slot is being moved and
  // its keys have not been.
  void move_slot(std::uint16_t slot, std::size_t from, std::size_t to,
                 const std::function<void()>& half_way = {});

 private:
  std::size_t add();

  std::vector<std::string> more_;
  std::vector<std::unique_ptr<RedisServer>> servers_;
};

}  // namespace kvtier::storage::testing
