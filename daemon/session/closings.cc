#include "daemon/session/closings.h"

#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/wire/frame.h"

namespace kvtier::daemon {

struct Closings::State {
  std::mutex mutex;
  std::map<uid_t, std::size_t> of_user;
  std::size_t all = 0;
};

Closings::Closings() : state_(std::make_shared<State>()) {}

void Closings::close(uid_t user, UniqueFd socket, std::vector<UniqueFd> descriptors) {
  ::shutdown(socket.get(), SHUT_RDWR);
  // Nothing comes any more, and what had come may have descriptors with it.
  wire::FrameReader rest(wire::FrameReader::Descriptors::refused);
  const bool all_read = rest.discard(socket.get());
  std::ranges::move(rest.take_refused(), std::back_inserter(descriptors));
  if (all_read && descriptors.empty()) return;
  descriptors.push_back(std::move(socket));
  close_elsewhere(user, std::move(descriptors));
}

void Closings::close_elsewhere(uid_t user, std::vector<UniqueFd> descriptors) {
  {
    const std::lock_guard lock(state_->mutex);
    ++state_->of_user[user];
    ++state_->all;
  }
  const auto held = std::make_shared<std::vector<UniqueFd>>(std::move(descriptors));
  const auto work = [state = state_, held, user] {
    held->clear();
    const std::lock_guard lock(state->mutex);
    const auto of_user = state->of_user.find(user);
    if (--of_user->second == 0) state->of_user.erase(of_user);
    --state->all;
  };
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) {
    work();  // no thread to be had: rather late than never
  }
}

std::size_t Closings::of_user(uid_t user) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->of_user.find(user);
  return found == state_->of_user.end() ? 0 : found->second;
}

std::size_t Closings::under_way() const {
  const std::lock_guard lock(state_->mutex);
  return state_->all;
}

}  // namespace kvtier::daemon
