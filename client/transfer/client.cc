#include <sys/eventfd.h>
#include <sys/un.h>

#include <system_error>

#include "client/session/limits.h"
#include "client/transfer/cache.h"
#include "kvtier/client.h"

namespace kvtier {
namespace {

Result<void> validate(const ClientOptions& options) {
  const auto invalid = [](const std::string& what) {
    return make_error(Errc::invalid, "client option " + what);
  };
  if (options.socket.empty() || options.socket.size() >= sizeof(sockaddr_un::sun_path)) {
    return invalid("socket is '" + options.socket + "'; it must have from 1 to " +
                   std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes");
  }
  if (options.verify_loads && options.cuda_device)
    return invalid("verify_loads is for engines without a cuda_device; leave out one of them");
  if (options.name.size() > 256) return invalid("name is longer than 256 bytes");
  if (options.slots_ahead > session::kSlotsAheadMax) {
    return invalid("slots_ahead is " + std::to_string(options.slots_ahead) +
                   "; it must be at most " + std::to_string(session::kSlotsAheadMax));
  }
  if (options.write_backs_queued_max > session::kWriteBacksQueuedMax) {
    return invalid("write_backs_queued_max is " + std::to_string(options.write_backs_queued_max) +
                   "; it must be at most " + std::to_string(session::kWriteBacksQueuedMax));
  }
  if (options.reconnect_delay_max < session::kReconnectDelayMin) {
    return invalid("reconnect_delay_max is " + std::to_string(options.reconnect_delay_max.count()) +
                   " ms; it must be at least " +
                   std::to_string(session::kReconnectDelayMin.count()));
  }
  if (options.slot_wait.count() < 0 || options.slot_wait > session::kSlotWaitMax) {
    return invalid("slot_wait is " + std::to_string(options.slot_wait.count()) +
                   " ms; it must be from 0 to " + std::to_string(session::kSlotWaitMax.count()));
  }
  return {};
}

class ClientImpl final : public Client {
 public:
  ClientImpl(ClientOptions options, UniqueFd wake_fd, std::shared_ptr<transfer::Gpu> gpu)
      : parts_{nullptr, std::make_shared<transfer::CopyQueue>(),
               std::make_shared<transfer::WriteBackBudget>(options.write_backs_queued_max), gpu,
               options.slot_wait} {
    parts_.session = std::make_shared<session::Session>(
        std::move(options), std::move(wake_fd), [copies = parts_.copies] { copies->wake(); },
        std::move(gpu), session::kAnswerMax);
  }
  // Throws std::system_error, as std::thread does.
  void start_threads() {
    parts_.copies->start();
    parts_.session->start();
  }

  // Copies first: slots in use are either committed or handed back with the others.
  ~ClientImpl() override {
    if (forked()) {
      parts_.keep_for_ever();
      return;
    }
    parts_.copies->stop();
    parts_.session->close();
  }

  bool connected() const noexcept override { return !forked() && parts_.session->connected(); }
  Result<void> wait_connected(Deadline deadline) override {
    if (forked()) return of_parent();
    return parts_.session->wait_connected(deadline);
  }

  Result<std::shared_ptr<Cache>> open(const Namespace& ns) override {
    if (auto good = ns.validate(); !good) return good.error();
    if (forked()) return of_parent();
    return transfer::make_cache(parts_, parts_.session->open(ns));
  }

  Result<void> flush(Deadline deadline) override {
    if (forked()) return of_parent();
    using Priority = transfer::CopyQueue::Priority;
    for (const Priority priority : {Priority::write_back, Priority::promotion}) {
      if (parts_.copies->drain(priority, deadline)) continue;
      session::Counters::add(parts_.session->counters().deadlines_missed);
      return make_error(Errc::deadline, "copies to the cache did not end in time");
    }
    return parts_.session->flush(deadline);
  }

  ClientStats stats() const noexcept override { return parts_.session->counters().stats(); }

 private:
  bool forked() const noexcept { return parts_.born.forked(); }
  static Error of_parent() {
    return make_error(
        Errc::unavailable,
        "this client is of the process that this one was forked from: start one here");
  }

  transfer::Parts parts_;
};

}  // namespace

Result<std::shared_ptr<Client>> Client::start(ClientOptions options) {
  if (auto good = validate(options); !good) return good.error();
  UniqueFd wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd) return errno_error(Errc::io, "cannot make an eventfd");
  std::shared_ptr<transfer::Gpu> gpu;
  if (options.cuda_device) {
    auto opened = transfer::open_gpu(*options.cuda_device);
    if (!opened) return opened.error();
    gpu = std::move(*opened);
  }
  auto client =
      std::make_shared<ClientImpl>(std::move(options), std::move(wake_fd), std::move(gpu));
  try {
    client->start_threads();
  } catch (const std::system_error& error) {
    return make_error(Errc::io, std::string("cannot start a thread: ") + error.what());
  }
  return std::shared_ptr<Client>(std::move(client));
}

Result<std::shared_ptr<Cache>> Client::open(const Namespace& ns, Deadline deadline) {
  auto cache = open(ns);
  if (!cache) return cache;
  if (auto good = (*cache)->wait_open(deadline); !good) return good.error();
  return cache;
}

}  // namespace kvtier
