#include "daemon/session/session.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <iterator>

#include "core/base/check.h"
#include "core/record/digest.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Session::Session(SessionId id, ProcessId process, Peer peer, Socket socket, SessionContext& context,
                 Doomed doomed)
    : id_(id),
      process_(process),
      peer_(std::move(peer)),
      socket_(std::move(socket)),
      context_(context),
      doomed_(std::move(doomed)),
      lease_time_(context.lease_time),
      writer_(limits::kSessionOutputBytesMax),
      began_(std::chrono::steady_clock::now()),
      pause_(socket_.get_executor()),
      accepted_(began_),
      last_heard_(began_),
      frame_began_(began_),
      last_read_(began_) {}

void Session::start() {
  socket_.non_blocking(true);
  spdlog::debug("session {} begins: pid {}, uid {}, gid {}", id_, peer_.pid, peer_.uid, peer_.gid);
  wait_readable();
}

void Session::end(const std::string& why) {
  if (!open_) return;
  open_ = false;
  spdlog::debug("session {} ({}, pid {}, uid {}) ends: {}", id_, name_, peer_.pid, peer_.uid, why);
  pause_.cancel();
  doomed_(id_);
}

void Session::close() {
  KVTIER_CHECK(!open_);
  boost::system::error_code ignored;
  UniqueFd socket(socket_.release(ignored));
  auto descriptors = reader_.take_refused();
  if (refused_ && descriptors.empty()) {
    context_.farewells.see_off(peer_.uid, std::move(socket));
  } else {
    context_.closings.close(peer_.uid, std::move(socket), std::move(descriptors));
  }
  for (const std::uint16_t ns : namespaces_) {
    if (ns != kNotKnown) --context_.cache.catalogue().namespaces()[ns].opened;
  }
  namespaces_.clear();
}

void Session::hear_out(const std::string& why) {
  if (!open_) return;
  std::vector<wire::Frame> frames;
  const auto received =
      reader_.receive(socket_.native_handle(), frames, limits::kFramesHeardOutMax);
  if (!received) input_ended_ = received.error();
  std::ranges::move(frames, std::back_inserter(received_));
  const auto until = Clock::now() + limits::kLastWordsTime;
  while (open_ && !received_.empty() && !in_debt() && Clock::now() < until) {
    if (auto good = handle_next(); !good) return refuse(good.error());
    while (!reported_.empty()) look_at_reported();
  }
  if (received_.empty() && input_ended_) return input_over();
  end(why);
}

void Session::refuse(const Error& why) {
  warn("is ended: " + why.message);
  reply_error(0, why);
  refused_ = true;
  end(why.message);
}

void Session::warn(const std::string& what) {
  const auto left_out = context_.log_budget.take(Clock::now());
  if (!left_out) return;
  spdlog::warn("session {} ({}, pid {}, uid {}) {}{}", id_, name_, peer_.pid, peer_.uid, what,
               lines_left_out(*left_out));
}

void Session::excuse(Clock::time_point now) noexcept {
  accepted_ = last_heard_ = frame_began_ = last_read_ = now;
}

std::optional<Error> Session::overdue(Clock::time_point now) {
  const auto past = [&](Clock::time_point since, std::chrono::milliseconds bound,
                        const std::string& what, const char* setting) -> std::optional<Error> {
    if (now - since <= bound) return std::nullopt;
    return make_error(Errc::refused, what + " for " + std::to_string(bound.count()) +
                                         " ms: see [limits] " + setting);
  };
  const auto& limits = context_.limits;
  if (writer_.empty() || writer_.sent() != sent_seen_) {
    sent_seen_ = writer_.sent();
    last_read_ = now;
  }
  if (!greeted_) {
    if (auto late = past(accepted_, limits.hello_time, "no hello", "hello_time_ms")) return late;
  }
  if (reader_.in_progress() && !paused_) {
    if (auto late =
            past(frame_began_, limits.frame_time, "a frame was not complete", "frame_time_ms")) {
      return late;
    }
  }
  return past(last_read_, limits.unread_time, "the peer has read nothing of what waits",
              "unread_time_ms");
}

void Session::wait_readable() {
  socket_.async_wait(Socket::wait_read,
                     [self = shared_from_this()](boost::system::error_code error) {
                       if (!error && self->open_) self->take_frames();
                     });
}

void Session::take_frames() {
  std::vector<wire::Frame> frames;
  const auto received = reader_.receive(socket_.native_handle(), frames, limits::kFramesPerTurn);
  if (!frames.empty()) heard();
  if (!frames.empty() || !frame_under_way_) frame_began_ = Clock::now();
  frame_under_way_ = reader_.in_progress();
  std::ranges::move(frames, std::back_inserter(received_));
  if (!received) input_ended_ = received.error();
  work();
}

// Handles what has come, as far as its user's requests per second and its part of a turn allow,
// and then reads on.
void Session::work() {
  const auto until = Clock::now() + limits::kFramesTime;
  for (bool first = true; !reported_.empty() || !received_.empty(); first = false) {
    const bool enough = !first && Clock::now() >= until;
    if (enough || (!first && !reported_.empty())) {
      return boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
        if (self->open_) self->work();
      });
    }
    if (!reported_.empty()) {
      look_at_reported();
      continue;
    }
    if (in_debt()) return pause();
    if (auto good = handle_next(); !good) return refuse(good.error());
    if (!open_) return;
  }
  if (!input_ended_) return wait_readable();
  input_over();
}

void Session::input_over() {
  const Error why = *input_ended_;
  if (why.code != Errc::malformed) return end(why.message);
  ++context_.frame_errors;
  refuse(why);
}

Result<void> Session::handle_next() {
  wire::Frame frame = std::move(received_.front());
  received_.pop_front();
  constexpr double kBytesOfOneRequest = 4096;
  charge(static_cast<double>(frame.bytes()) / kBytesOfOneRequest);
  auto good = handle(frame);
  if (!good) ++context_.frame_errors;
  return good;
}

bool Session::in_debt() {
  return context_.users.in_debt_for(peer_.uid, Clock::now()) > Clock::duration::zero();
}

void Session::pause() {
  paused_ = true;
  pause_.expires_after(context_.users.in_debt_for(peer_.uid, Clock::now()));
  pause_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (error || !self->open_) return;
    self->paused_ = false;
    self->frame_began_ = Clock::now();
    self->work();
  });
}

void Session::wait_writable() {
  if (write_waiting_ || writer_.empty() || !open_) return;
  write_waiting_ = true;
  socket_.async_wait(Socket::wait_write,
                     [self = shared_from_this()](boost::system::error_code error) {
                       self->write_waiting_ = false;
                       if (error || !self->open_) return;
                       if (auto sent = self->writer_.send(self->socket_.native_handle()); !sent)
                         return self->output_failed(sent.error());
                       self->wait_writable();
                     });
}

bool Session::reply(std::uint64_t id, const std::function<void(Builder)>& fill,
                    UniqueFd descriptor) {
  if (!open_ || !peer_reads_) return false;
  capnp::MallocMessageBuilder message;
  Builder root = message.initRoot<wire::Message>();
  root.setId(id);
  fill(root);
  auto pushed = writer_.push(message, std::move(descriptor));
  if (pushed) pushed = writer_.send(socket_.native_handle());
  if (!pushed) {
    output_failed(pushed.error());
    return false;
  }
  wait_writable();
  return true;
}

// A peer that has gone may have said something before, which is still to be heard: the input's end
// ends the session.
void Session::output_failed(const Error& why) {
  if (why.code != Errc::unavailable) return end(why.message);
  peer_reads_ = false;
  writer_ = wire::FrameWriter(limits::kSessionOutputBytesMax);
}

void Session::reply_error(std::uint64_t id, const Error& error) {
  reply(id, [&](Builder root) {
    auto failure = root.initError();
    failure.setCode(static_cast<std::uint16_t>(error.code));
    failure.setMessage(error.message);
  });
}

// Tells the client of the slot's extent before anything names it.
void Session::introduce(SlotName slot) {
  const Place at = place_named(slot);
  if (slot == 0 || !open_ || !known_extents_.insert(at.container).second) return;
  for (const Tier tier : {Tier::device, Tier::host}) {
    const storage::Extent* extent = context_.cache.memory(tier, at).extent(ExtentId(at.container));
    if (extent == nullptr) continue;
    // Slots are granted in a tenant's pool alone, so whoever is told of one may use it.
    const Pool pool = context_.cache.memory(tier, at).pool_of(ExtentId(at.container));
    KVTIER_CHECK(pool == 0 || std::ranges::any_of(namespaces_, [&](std::uint16_t ns) {
                   const auto& catalogue = context_.cache.catalogue();
                   return ns != kNotKnown &&
                          catalogue.tenants().pool(catalogue.namespaces()[ns].tenant) == pool;
                 }));
    UniqueFd copy = memory_for_peer(*extent);
    if (!copy) {
      return refuse(make_error(Errc::no_space,
                               "kvtierd has no file descriptor left for an extent of memory: "
                               "raise its limit of open files"));
    }
    reply(
        0,
        [&](Builder root) {
          auto event = root.initExtent();
          event.setId(at.container);
          event.setTier(static_cast<std::uint8_t>(tier));
          event.setBytes(extent->shape().bytes);
          event.setSlotBytes(extent->shape().slot_bytes);
          event.setKind(static_cast<std::uint8_t>(extent->kind()));
        },
        std::move(copy));
    return;
  }
  KVTIER_CHECK(!"a slot of no extent");
}

// A read-only session's descriptor is of an opening of its own, for reading; that of a GPU's memory
// cannot be (see SessionContext::device_for_readers).
UniqueFd Session::memory_for_peer(const storage::Extent& extent) const {
  const int fd = extent.memory_fd();
  if (!read_only_ || extent.kind() != storage::Extent::Kind::memfd)
    return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

void Session::send_ready(LeaseId lease, std::span<const BlockCache::Landed> landed) {
  for (const auto& block : landed) introduce(block.slot);
  reply(0, [&](Builder root) {
    auto ready = root.initReady();
    ready.setLease(lease);
    auto blocks = ready.initBlocks(static_cast<unsigned>(landed.size()));
    auto slots = ready.initSlots(static_cast<unsigned>(landed.size()));
    for (unsigned i = 0; i < landed.size(); ++i) {
      blocks.set(i, landed[i].block);
      slots.set(i, landed[i].slot);
    }
  });
}

void Session::send_extent_gone(ExtentId id) {
  if (known_extents_.erase(id.value) == 0) return;
  reply(0, [&](Builder root) { root.setExtentGone(id.value); });
}

bool Session::send_namespace_closed(std::uint16_t ns) {
  bool open = false;
  for (std::uint32_t handle = 0; handle < namespaces_.size(); ++handle) {
    if (namespaces_[handle] != ns) continue;
    open = true;
    reply(0, [&](Builder root) { root.setNamespaceClosed(handle); });
    if (!open_) break;
  }
  return open;
}

// Whoever makes it now has other weights than this reader.
bool Session::close_awaited(const NamespaceFilter& filter) {
  std::vector<std::uint32_t> closed;
  for (const auto& [handle, encoded] : awaited_) {
    KnownNamespace known{};
    known.id = NamespaceId{xxh3_128(encoded)};
    known.encoded = encoded;
    if (const auto ns = decode_namespace(encoded)) known.ns = *ns;
    if (filter.matches(known)) closed.push_back(handle);
  }
  for (const std::uint32_t handle : closed) {
    awaited_.erase(handle);
    reply(0, [&](Builder root) { root.setNamespaceClosed(handle); });
  }
  return !closed.empty();
}

void Session::lease_time_over() {
  context_.cache.release_all(id_);
}

}  // namespace kvtier::daemon
