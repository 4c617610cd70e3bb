#include "daemon/session/farewells.h"

#include <sys/socket.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "core/wire/frame.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

using boost::asio::posix::stream_descriptor;

struct Farewells::One {
  std::uint64_t number;
  uid_t user;
  stream_descriptor socket;
  boost::asio::steady_timer deadline;
  std::uint32_t turns = 0;
  bool ended = false;
};

// Their handlers run no more: the io_context has no work left for them.
Farewells::~Farewells() = default;

void Farewells::see_off(uid_t user, UniqueFd socket) {
  ::shutdown(socket.get(), SHUT_WR);
  const auto of = of_user_.find(user);
  if (all_.size() >= limits::kFarewellsMax ||
      (of != of_user_.end() && of->second >= limits::kFarewellsPerUserMax)) {
    return closings_.close(user, std::move(socket));
  }
  ++of_user_[user];
  const auto one =
      std::make_shared<One>(One{next_++, user, stream_descriptor(control_, socket.release()),
                                boost::asio::steady_timer(control_)});
  all_.emplace(one->number, one);
  one->deadline.expires_after(limits::kFarewellTime);
  one->deadline.async_wait([this, one](boost::system::error_code cancelled) {
    if (!cancelled) end(one);
  });
  wait(one);
}

void Farewells::wait(const std::shared_ptr<One>& one) {
  one->socket.async_wait(stream_descriptor::wait_read,
                         [this, one](boost::system::error_code error) {
                           if (!error) readable(one);
                         });
}

void Farewells::readable(const std::shared_ptr<One>& one) {
  if (one->ended) return;
  wire::FrameReader rest(wire::FrameReader::Descriptors::refused);
  const bool all_read = rest.discard(one->socket.native_handle());
  auto descriptors = rest.take_refused();
  std::byte next;
  const bool hung_up =
      all_read && ::recv(one->socket.native_handle(), &next, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  if (hung_up || !descriptors.empty() || ++one->turns >= limits::kFarewellTurnsMax)
    return end(one, std::move(descriptors));
  wait(one);
}

void Farewells::end(const std::shared_ptr<One>& one, std::vector<UniqueFd> descriptors) {
  if (std::exchange(one->ended, true)) return;
  one->deadline.cancel();
  closings_.close(one->user, UniqueFd(one->socket.release()), std::move(descriptors));
  if (const auto of = of_user_.find(one->user); --of->second == 0) of_user_.erase(of);
  all_.erase(one->number);
}

}  // namespace kvtier::daemon
