// The daemon's socket: what it takes the place of, what it leaves alone, and how peers are let in.
#include "daemon/server/listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <boost/asio/io_context.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/daemon/support/kvtierd_process.h"

namespace kvtier::daemon::testing {
namespace {

class ListenerTest : public ::testing::Test {
 protected:
  std::string path() const { return (scratch / "s").string(); }
  Listener::Admit admit() {
    return [this](Listener::Socket socket) {
      peers.push_back(std::move(socket));
      return lets_in;
    };
  }
  UniqueFd connect() const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path().c_str(), sizeof address.sun_path - 1);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      fd.reset();
    return fd;
  }
  void turn() {
    io.restart();
    io.poll();
  }

  Scratch scratch;
  boost::asio::io_context io{1};
  bool lets_in = true;
  std::vector<Listener::Socket> peers;
};

TEST_F(ListenerTest, the_socket_has_the_mode_that_was_asked_for_and_goes_when_it_is_closed) {
  Listener listener(io.get_executor(), admit());
  ASSERT_TRUE(listener.open(path(), 0620));
  EXPECT_EQ(listener.path(), path());
  struct stat found {};
  ASSERT_EQ(::stat(path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0620U);
  listener.close();
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(ListenerTest, a_socket_that_is_in_use_and_what_is_no_socket_stay_as_they_are) {
  Listener first(io.get_executor(), admit()), second(io.get_executor(), admit());
  ASSERT_TRUE(first.open(path(), 0600));
  EXPECT_EQ(second.open(path(), 0600).error().code, Errc::refused);
  second.close();
  EXPECT_TRUE(connect()) << "the first still listens";
  first.close();
  std::ofstream(path()) << "mine";
  Listener third(io.get_executor(), admit());
  EXPECT_EQ(third.open(path(), 0600).error().code, Errc::refused);
  third.close();
  EXPECT_TRUE(std::filesystem::is_regular_file(path()));
}

TEST_F(ListenerTest, a_socket_of_the_service_manager_is_served_and_left_to_it) {
  UniqueFd listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path().c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);
  ASSERT_EQ(::listen(listening.get(), 8), 0);
  Listener listener(io.get_executor(), admit());
  ASSERT_TRUE(listener.adopt(std::move(listening), "/another"));
  EXPECT_EQ(listener.path(), path());
  listener.accept();
  const UniqueFd peer = connect();
  ASSERT_TRUE(peer);
  turn();
  EXPECT_EQ(peers.size(), 1U);
  listener.close();
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(ListenerTest, nobody_more_is_let_in_while_that_is_not_to_be_gone_on_with) {
  Listener listener(io.get_executor(), admit());
  ASSERT_TRUE(listener.open(path(), 0600));
  listener.accept();
  lets_in = false;
  const UniqueFd first = connect(), second = connect();
  ASSERT_TRUE(first && second);
  turn();
  EXPECT_EQ(peers.size(), 1U) << "the other waits";
  lets_in = true;
  io.restart();
  while (peers.size() < 2) io.run_one();
  listener.close();
  turn();
}

}  // namespace
}  // namespace kvtier::daemon::testing
