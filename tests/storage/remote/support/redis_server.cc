#include "tests/storage/remote/support/redis_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "kvtier/deadline.h"
#include "storage/remote/redis/key_slot.h"

namespace kvtier::storage::testing {
namespace {

struct FreeContext {
  void operator()(redisContext* context) const noexcept { ::redisFree(context); }
};

std::string text_of(const redisReply& reply) {
  switch (reply.type) {
    case REDIS_REPLY_INTEGER:
      return std::to_string(reply.integer);
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_ERROR:
      return {reply.str, reply.len};
    default:
      return {};
  }
}

}  // namespace

std::string redis_is_missing() {
  static const bool there = std::system("redis-server --version >/dev/null 2>&1") == 0;
  return there ? "" : "there is no redis-server: scripts/bootstrap.sh installs it";
}

std::uint16_t free_port() {
  constexpr std::uint16_t kMax = 55'535;
  for (;;) {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    if (::bind(fd.get(), at, length) != 0 || ::getsockname(fd.get(), at, &length) != 0) continue;
    const std::uint16_t port = ntohs(address.sin_port);
    if (port <= kMax) return port;
  }
}

bool comes_true(const std::function<bool()>& condition) {
  const auto until = Clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (Clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

RedisServer::RedisServer(Options options) : options_(std::move(options)) {
  if (options_.tcp || options_.cluster) port_ = free_port();
  if (options_.cluster) bus_port_ = free_port();
  start();
}

RedisServer::~RedisServer() {
  kill();
}

std::string RedisServer::url() const {
  const std::string user = options_.user.empty() ? "" : options_.user + "@";
  if (port_ != 0) return "redis://" + user + "127.0.0.1:" + std::to_string(port_);
  return "redis+unix://" + user + (directory() / "socket").string();
}

void RedisServer::launch() {
  std::vector<std::string> arguments{"redis-server",
                                     "--bind",
                                     "127.0.0.1",
                                     "--dir",
                                     directory(),
                                     "--save",
                                     "",
                                     "--daemonize",
                                     "no",
                                     "--unixsocket",
                                     directory() / "socket",
                                     "--logfile",
                                     directory() / "log",
                                     "--port",
                                     std::to_string(port_)};
  if (options_.cluster) {
    for (const std::string& each :
         {std::string("--cluster-enabled"), std::string("yes"), std::string("--cluster-port"),
          std::to_string(bus_port_), std::string("--cluster-node-timeout"), std::string("1000")}) {
      arguments.push_back(each);
    }
  }
  arguments.insert(arguments.end(), options_.more.begin(), options_.more.end());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }
}

void RedisServer::start() {
  launch();
  const bool answers = comes_true([this] {
    const Reply reply = try_to_ask({"PING"});
    return reply && reply->type == REDIS_REPLY_STATUS;
  });
  EXPECT_TRUE(answers) << "redis-server does not start; see " << directory() / "log";
}

void RedisServer::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

void RedisServer::stop() {
  ::kill(pid_, SIGSTOP);
}
void RedisServer::go_on() {
  ::kill(pid_, SIGCONT);
}

Reply RedisServer::try_to_ask(const std::vector<std::string>& arguments) const {
  constexpr timeval kPatience{20, 0};
  const std::unique_ptr<redisContext, FreeContext> context(
      ::redisConnectUnixWithTimeout((directory() / "socket").c_str(), kPatience));
  if (!context || context->err != 0) return nullptr;
  ::redisSetTimeout(context.get(), kPatience);
  const auto command = [&](const std::vector<std::string>& words) {
    std::vector<const char*> pointers;
    std::vector<std::size_t> lengths;
    for (const std::string& word : words) {
      pointers.push_back(word.data());
      lengths.push_back(word.size());
    }
    return Reply(static_cast<redisReply*>(::redisCommandArgv(
        context.get(), static_cast<int>(words.size()), pointers.data(), lengths.data())));
  };
  if (!options_.password.empty()) {
    std::vector<std::string> auth{"AUTH"};
    if (!options_.user.empty()) auth.push_back(options_.user);
    auth.push_back(options_.password);
    command(auth);
  }
  return command(arguments);
}

Reply RedisServer::ask(const std::vector<std::string>& arguments) const {
  Reply reply = try_to_ask(arguments);
  EXPECT_TRUE(reply) << "redis-server does not answer " << arguments[0];
  if (!reply) std::abort();
  return reply;
}

std::string RedisServer::say(const std::vector<std::string>& arguments) const {
  return text_of(*ask(arguments));
}

RedisCluster::RedisCluster(std::size_t masters, std::vector<std::string> more)
    : more_(std::move(more)) {
  while (servers_.size() < masters) add();
  for (std::size_t i = 0; i < masters; ++i) {
    const std::size_t first = kClusterSlots * i / masters;
    const std::size_t last = kClusterSlots * (i + 1) / masters - 1;
    EXPECT_EQ(
        servers_[i]->say({"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(last)}),
        "OK");
  }
  for (const auto& server : servers_) {
    EXPECT_TRUE(comes_true([&] {
      return server->say({"CLUSTER", "INFO"}).find("cluster_state:ok") != std::string::npos;
    })) << "no cluster comes about";
  }
}

std::size_t RedisCluster::add() {
  servers_.push_back(
      std::make_unique<RedisServer>(RedisServer::Options{.cluster = true, .more = more_}));
  RedisServer& added = *servers_.back();
  const std::string number = std::to_string(servers_.size());
  EXPECT_EQ(added.say({"CLUSTER", "SET-CONFIG-EPOCH", number}), "OK");
  if (servers_.size() == 1) return 0;
  // The ports of the cluster's bus are not the usual ones.
  const std::string bus = [&] {
    const std::string nodes = servers_[0]->say({"CLUSTER", "NODES"});
    const std::size_t at = nodes.find('@');
    return nodes.substr(at + 1, nodes.find_first_of(" ,", at) - at - 1);
  }();
  EXPECT_EQ(added.say({"CLUSTER", "MEET", "127.0.0.1", std::to_string(servers_[0]->port()), bus}),
            "OK");
  return servers_.size() - 1;
}

std::string RedisCluster::url() const {
  return servers_[0]->url();
}

std::size_t RedisCluster::owner(const std::string& name) {
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    if (!servers_[i]->say({"STRLEN", name}).starts_with("MOVED")) return i;
  }
  ADD_FAILURE() << "nobody serves " << name;
  return 0;
}

std::size_t RedisCluster::add_replica(std::size_t of) {
  const std::size_t number = add();
  const std::string master = id(of);
  EXPECT_TRUE(comes_true([&] {
    return servers_[number]->say({"CLUSTER", "REPLICATE", master}) == "OK";
  }));
  EXPECT_TRUE(comes_true([&] {
    return servers_[number]->say({"INFO", "replication"}).find("master_link_status:up") !=
           std::string::npos;
  }));
  // All know of it, so that they can elect it.
  for (const auto& server : servers_) {
    EXPECT_TRUE(comes_true([&] {
      return server->say({"CLUSTER", "NODES"}).find("slave " + master) != std::string::npos;
    }));
  }
  return number;
}

void RedisCluster::move_slot(std::uint16_t slot, std::size_t from, std::size_t to,
                             const std::function<void()>& half_way) {
  const std::string number = std::to_string(slot);
  EXPECT_EQ(servers_[to]->say({"CLUSTER", "SETSLOT", number, "IMPORTING", id(from)}), "OK");
  EXPECT_EQ(servers_[from]->say({"CLUSTER", "SETSLOT", number, "MIGRATING", id(to)}), "OK");
  if (half_way) half_way();
  const Reply keys = servers_[from]->ask({"CLUSTER", "GETKEYSINSLOT", number, "1000"});
  for (std::size_t i = 0; i < keys->elements; ++i) {
    EXPECT_EQ(servers_[from]->say({"MIGRATE", "127.0.0.1", std::to_string(servers_[to]->port()),
                                   text_of(*keys->element[i]), "0", "5000"}),
              "OK");
  }
  for (const std::size_t each : {to, from})
    EXPECT_EQ(servers_[each]->say({"CLUSTER", "SETSLOT", number, "NODE", id(to)}), "OK");
}

}  // namespace kvtier::storage::testing
