#include "daemon/control/session.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include "client/base/check.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

Session::Session(SessionId id, ProcessId process, bool admin, Socket socket,
                 SessionContext& context, Ended ended)
    : id_(id),
      process_(process),
      admin_(admin),
      socket_(std::move(socket)),
      context_(context),
      ended_(std::move(ended)),
      writer_(limits::kSessionOutputBytesMax),
      began_(std::chrono::steady_clock::now()),
      last_heard_(began_) {}

void Session::start() {
  socket_.non_blocking(true);
  wait_readable();
}

void Session::end(const std::string& why) {
  if (!open_) return;
  open_ = false;
  spdlog::debug("session {} ({}, pid {}) ends: {}", id_, name_, process_.pid, why);
  boost::system::error_code ignored;
  socket_.close(ignored);
  for (const std::uint16_t ns : namespaces_) --context_.cache.catalogue().namespaces()[ns].opened;
  namespaces_.clear();
  ended_(id_);
}

void Session::wait_readable() {
  socket_.async_wait(Socket::wait_read,
                     [self = shared_from_this()](boost::system::error_code error) {
                       if (!error && self->open_) self->readable();
                     });
}

void Session::readable() {
  std::vector<wire::Frame> frames;
  const auto received = reader_.receive(socket_.native_handle(), frames, limits::kFramesPerTurn);
  if (!frames.empty()) heard();
  for (wire::Frame& frame : frames) {
    if (auto good = handle(frame); !good) {
      ++context_.frame_errors;
      spdlog::warn("session {} ({}, pid {}) is ended: {}", id_, name_, process_.pid,
                   good.error().message);
      return end(good.error().message);
    }
    if (!open_) return;
  }
  if (!received) {
    if (received.error().code == Errc::malformed) {
      ++context_.frame_errors;
      spdlog::warn("session {} ({}, pid {}) is ended: {}", id_, name_, process_.pid,
                   received.error().message);
    }
    return end(received.error().message);
  }
  wait_readable();
}

void Session::wait_writable() {
  if (write_waiting_ || writer_.empty() || !open_) return;
  write_waiting_ = true;
  socket_.async_wait(Socket::wait_write,
                     [self = shared_from_this()](boost::system::error_code error) {
                       self->write_waiting_ = false;
                       if (error || !self->open_) return;
                       if (auto sent = self->writer_.send(self->socket_.native_handle()); !sent) {
                         return self->end(sent.error().message);
                       }
                       self->wait_writable();
                     });
}

void Session::reply(std::uint64_t id, const std::function<void(Builder)>& fill,
                    UniqueFd descriptor) {
  if (!open_) return;
  capnp::MallocMessageBuilder message;
  Builder root = message.initRoot<wire::Message>();
  root.setId(id);
  fill(root);
  auto pushed = writer_.push(message, std::move(descriptor));
  if (pushed) pushed = writer_.send(socket_.native_handle());
  if (!pushed) return end(pushed.error().message);
  wait_writable();
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
  if (slot == 0 || !known_extents_.insert(at.container).second) return;
  for (const Tier tier : {Tier::device, Tier::host}) {
    const storage::Extent* extent = context_.cache.memory(tier, at).extent(ExtentId(at.container));
    if (extent == nullptr) continue;
    UniqueFd copy(::fcntl(extent->memory_fd(), F_DUPFD_CLOEXEC, 0));
    if (!copy) return end("no file descriptor left for an extent");
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

void Session::lease_time_over() {
  context_.cache.release_all(id_);
}

}  // namespace kvtier::daemon
