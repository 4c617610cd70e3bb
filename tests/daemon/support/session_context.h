// What sessions need around them, without a daemon: a cache in memory, a loop that the test turns.
#pragma once

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>

#include "daemon/session/connection.h"
#include "tests/daemon/support/test_cache.h"

namespace kvtier::daemon::testing {

struct Surroundings {
  // Everything that is ready to run, and what follows from it.
  void turn() {
    io.restart();
    io.poll();
  }
  // Both ends of a connection; the peer's is blocking.
  static std::pair<UniqueFd, UniqueFd> connected() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  Connection::Socket socket(UniqueFd end) {
    return {io, boost::asio::local::stream_protocol(), end.release()};
  }

  boost::asio::io_context io{1};
  TestCache cache;
  DirectoryWriter directory{DirectoryWriter::create(16, std::array<std::byte, 16>{}).value()};
  Lending lending{
      *cache,
      {[](const Lending::Request&, std::vector<SlotName>) {},
       [](SessionId, std::uint64_t, const BlockCache::Recall&) { return false; }, [] {}}};
  AdminJobs admin{*cache, [](const std::function<void()>& task) { task(); }};
  Access access;
  Config::Limits limits;
  Users users{1'000'000};
  Closings closings;
  Farewells farewells{io.get_executor(), closings};
  SessionContext context{*cache, directory, lending,   admin,      access,        limits,
                         users,  closings,  farewells, Welcomed{}, SessionPorts{}};
};

}  // namespace kvtier::daemon::testing
