// What a server may answer: right replies, mutated by chance. A connection takes what is right,
// ends on what is not, and writes nothing but the value that it asked for.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "storage/remote/redis/connection.h"
#include "tests/storage/remote/support/remote_parts.h"

namespace kvtier::storage::testing {
namespace {

constexpr std::size_t kValue = 300;
constexpr int kRuns = 20'000;

class HostileServer {
 public:
  HostileServer() : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un un{};
    un.sun_family = AF_UNIX;
    const std::string path = directory_.path() / "socket";
    std::copy(path.begin(), path.end(), un.sun_path);
    std::memcpy(&address_.bytes, &un, sizeof un);
    address_.length = sizeof un;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&un), sizeof un), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
  }

  // What comes of these bytes as answers to a GET, a STRLEN, the map, and a GET.
  std::size_t answer(const std::string& bytes) {
    Connection connection;
    EXPECT_TRUE(connection.open(address_, nullptr, "", Clock::now()));
    EXPECT_TRUE(connection.advance());
    const UniqueFd server(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::vector<std::byte> memory(3 * kValue, std::byte{0x5A});
    for (const auto kind : {Operation::Kind::get, Operation::Kind::exists, Operation::Kind::slots,
                            Operation::Kind::get}) {
      auto operation = std::make_shared<Operation>();
      operation->kind = kind;
      operation->name = "name";
      operation->memory = std::span(memory).subspan(kValue, kValue);
      connection.send(std::move(operation), Clock::now());
    }
    EXPECT_TRUE(connection.transmit(Clock::now()));
    EXPECT_EQ(::send(server.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    ::shutdown(server.get(), SHUT_WR);
    std::vector<Connection::Answered> answered;
    while (connection.receive(answered, Clock::now())) {
    }
    const auto untouched = [](std::span<const std::byte> part) {
      return std::ranges::all_of(part, [](std::byte b) { return b == std::byte{0x5A}; });
    };
    EXPECT_TRUE(untouched(std::span(memory).first(kValue)));
    EXPECT_TRUE(untouched(std::span(memory).last(kValue)));
    EXPECT_EQ(connection.close().size() + answered.size(), 4U);
    return answered.size();
  }

 private:
  TestDirectory directory_{TestDirectory::Where::memory};
  UniqueFd listener_;
  SocketAddress address_;
};

TEST(HostileServer, WhatItAnswersTouchesNothingButTheValueAskedFor) {
  const std::string value =
      "$" + std::to_string(kValue) + "\r\n" + std::string(kValue, 'v') + "\r\n";
  const std::string map = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n";
  const std::vector<std::string> right{
      value + ":300\r\n" + map + value, "$-1\r\n:0\r\n*0\r\n$-1\r\n",
      "-MOVED 1 127.0.0.1:7000\r\n-LOADING\r\n-ERR no\r\n-WRONGTYPE\r\n",
      "$3\r\nabc\r\n:3\r\n" + map + "$400\r\n" + std::string(400, 'w') + "\r\n"};
  HostileServer server;
  for (const std::string& bytes : right) EXPECT_EQ(server.answer(bytes), 4U);
  std::mt19937 random(7);
  const std::string alphabet = "$*:+-0123456789\r\n";
  for (int run = 0; run < kRuns && !::testing::Test::HasFailure(); ++run) {
    SCOPED_TRACE("run " + std::to_string(run));
    std::string bytes = right[random() % right.size()];
    for (unsigned n = 1 + random() % 4; n > 0 && !bytes.empty(); --n) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          bytes[at] = static_cast<char>(random());
          break;
        case 2:
          bytes.erase(at, 1 + random() % 20);
          break;
        case 3:
          bytes.insert(at, 1 + random() % 20, alphabet[random() % alphabet.size()]);
          break;
        default:
          bytes.resize(at);
      }
    }
    if (!bytes.empty()) server.answer(bytes);
  }
}

}  // namespace
}  // namespace kvtier::storage::testing
