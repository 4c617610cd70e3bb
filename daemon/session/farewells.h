// Peers that are told why they are let go. Whoever closes a socket in which something lies unread,
// or to which its peer is about to write, may keep the peer from reading what it was told: so
// nothing more is said, and what the peer still says is dropped until it hangs up too, for a short
// while, and for a bounded number of peers. Owned by the control thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <map>
#include <memory>

#include "daemon/session/closings.h"

namespace kvtier::daemon {

class Farewells {
 public:
  Farewells(boost::asio::any_io_executor control, Closings& closings)
      : control_(std::move(control)), closings_(closings) {}
  ~Farewells();

  // What was to be said is in the socket. Past a bound it is closed at once.
  void see_off(uid_t user, UniqueFd socket);
  std::size_t under_way() const noexcept { return all_.size(); }

 private:
  struct One;
  void wait(const std::shared_ptr<One>& one);
  void readable(const std::shared_ptr<One>& one);
  void end(const std::shared_ptr<One>& one, std::vector<UniqueFd> descriptors = {});

  boost::asio::any_io_executor control_;
  Closings& closings_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, std::shared_ptr<One>> all_;
  std::map<uid_t, std::size_t> of_user_;
};

}  // namespace kvtier::daemon
