#include "client/session/thread/conversation.h"

#include <algorithm>

#include "client/session/limits.h"

namespace kvtier::session {

void Conversation::begin(UniqueFd socket, Clock::time_point now) {
  socket_ = ControlSocket(std::move(socket));
  last_received_ = now;
}

Result<void> Conversation::welcomed(DirectoryView directory, milliseconds lease_time,
                                    Clock::time_point hello_sent) {
  auto socket = socket_.copy();
  if (!socket) return socket.error();
  connection_ = std::make_shared<Connection>(std::move(*socket), std::move(directory), lease_time,
                                             hello_sent);
  return {};
}

void Conversation::hang_up(const Error& why) {
  socket_ = {};
  for (auto& [id, waiting] : std::exchange(waiting_, {})) {
    [[maybe_unused]] const auto ignored = waiting.done(why);
  }
}

void Conversation::forget() {
  connection_.reset();
  broken_.reset();
}

void Conversation::tell(const Fill& fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<wire::Message>());
  if (auto good = socket_.push(message); !good) note_broken(good.error());
}

void Conversation::ask(const Fill& fill, Done done, Patience patience) {
  if (waiting_.size() >= kPendingMax) {
    [[maybe_unused]] const auto ignored =
        done(make_error(Errc::unavailable, "too many requests wait for kvtierd"));
    return;
  }
  const std::uint64_t id = ++last_id_;
  waiting_.emplace(id, Waiting{std::move(done), patience, Clock::now()});
  tell([&](wire::Message::Builder m) {
    m.setId(id);
    fill(m);
  });
}

void Conversation::send() {
  if (!socket_.unsent()) return;
  const auto before = Clock::now();
  if (auto good = socket_.send(); !good) {
    note_broken(good.error());
  } else if (connection_ && !socket_.unsent()) {
    connection_->sent_all(before);
  }
}

Result<void> Conversation::receive(std::vector<wire::Frame>& frames) {
  const auto received = socket_.receive(frames);
  if (!frames.empty()) last_received_ = Clock::now();
  return received;
}

std::optional<Conversation::Done> Conversation::take_waiting(std::uint64_t id) {
  auto node = waiting_.extract(id);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped().done);
}

bool Conversation::is_overdue() const {
  const auto owed = std::ranges::find_if(
      waiting_, [](const auto& w) { return w.second.patience == Patience::bounded; });
  return owed != waiting_.end() &&
         Clock::now() - std::max(owed->second.asked, last_received_) >= answer_max_;
}

Error Conversation::silence() const {
  return make_error(Errc::unavailable, "kvtierd at " + path_ + " has not answered for " +
                                           std::to_string(answer_max_.count()) + " ms");
}

}  // namespace kvtier::session
