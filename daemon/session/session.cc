#include "daemon/session/session.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/peers/rights.h"
#include "daemon/session/wire_values.h"

namespace kvtier::daemon {

Session::Session(SessionId id, ProcessId process, Peer peer, Socket socket, SessionContext& context,
                 Doomed doomed)
    : Connection(id, std::move(peer), std::move(socket), context, std::move(doomed)),
      context_(context),
      client_{id, process, 0, kNoDevice, false, false, false, context.welcomed.lease_time},
      namespaces_(context.cache),
      extents_(*this, context, namespaces_),
      requests_(*this, context, client_, namespaces_, extents_),
      administration_(*this, context) {}

Result<void> Session::handle(wire::Frame& frame) {
  Result<void> handled;
  const auto read = frame.read(
      [&](wire::Message::Reader message) { handled = dispatch(message, frame.bytes()); });
  if (!read) return read.error();
  return handled;
}

Result<void> Session::dispatch(wire::Message::Reader message, std::size_t frame_bytes) {
  const std::uint64_t id = message.getId();
  if (!greeted() && !message.isHello()) return malformed("the first message must be hello");
  const auto cost = cost_of(message, frame_bytes);
  if (!cost) return cost.error();
  charge(*cost);
  if (auto good = authorized(message.which()); !good) {
    if (good.error().code == Errc::malformed) return good;
    ++context_.counts.denied;
    warn("is refused: " + good.error().message);
    if (!rule_of(message.which()).answered) return good;
    reply_error(id, good.error());
    return {};
  }
  if (message.isHello()) return hello(id, message.getHello());
  if (AdminRequests::handles(message.which())) return administration_.handle(message);
  return requests_.handle(message);
}

// Errors: malformed (nothing that a client may send), refused.
Result<void> Session::authorized(wire::Message::Which message) const {
  switch (rule_of(message).right) {
    case Right::none:
      return malformed("not something a client may send");
    case Right::read:
      return {};
    case Right::write:
      if (!client_.read_only) return {};
      return make_error(Errc::refused, std::string(name_of(message)) +
                                           ": this session is read-only; it asked for that, or "
                                           "its user is in [access] read_only_users or _groups");
    case Right::admin:
      if (context_.access.is_admin(peer())) return {};
  }
  return make_error(Errc::refused, std::string(name_of(message)) +
                                       " needs an administrator: run it as root, as the daemon's "
                                       "user, or as a member of [access] admin_group");
}

Result<void> Session::hello(std::uint64_t id, wire::Hello::Reader hello) {
  // Each welcome carries a descriptor, so a peer could otherwise have us hold any number of them.
  if (greeted()) return malformed("a second hello");
  if (hello.getVersion() != wire::kProtocolVersion) {
    reply_error(id,
                make_error(Errc::version, "protocol version " + std::to_string(hello.getVersion()) +
                                              " is not spoken here: this kvtierd speaks version " +
                                              std::to_string(wire::kProtocolVersion) +
                                              "; install matching kvtierd and libkvtier"));
    end("protocol version " + std::to_string(hello.getVersion()));
    return {};
  }
  if (hello.getGpu().size() != 0 && hello.getGpu().size() != sizeof(GpuUuid))
    return malformed("a GPU's UUID of the wrong size");
  set_name(hello.getName().cStr());
  client_.read_only = hello.getReadOnly() || context_.access.read_only(peer());
  client_.device = device_of_gpu(hello.getGpu());
  if (client_.read_only && !context_.welcomed.device_for_readers) client_.device = kNoDevice;
  client_.id = hello.getClient();
  client_.answers_recalls = (hello.getFeatures() & wire::kAnswersRecalls) != 0;
  client_.knows_remote = (hello.getFeatures() & wire::kRemoteTier) != 0;
  extents_.set_read_only(client_.read_only);
  if (client_.id != 0) context_.ports.end_earlier(this->id(), client_.process, client_.id);
  if (auto good = extents_.recall(hello, client_.device); !good) return good;
  set_greeted();
  spdlog::info("session {}: {} (pid {}, uid {}, gid {}){}{}", this->id(), name(), peer().pid,
               peer().uid, peer().gid, client_.read_only ? ", read-only" : "",
               context_.access.is_admin(peer()) ? ", administrator" : "");
  client_.lease_time = context_.welcomed.lease_time;
  return welcome(id);
}

Result<void> Session::welcome(std::uint64_t id) {
  UniqueFd directory(::fcntl(context_.directory.fd(), F_DUPFD_CLOEXEC, 0));
  if (!directory) {
    return make_error(Errc::no_space,
                      "kvtierd has no file descriptor left for the directory: raise its limit of "
                      "open files");
  }
  const auto data_of = [](const auto& bytes) {
    return capnp::Data::Reader(reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size());
  };
  reply(
      id,
      [&](Builder root) {
        auto welcome = root.initWelcome();
        welcome.setVersion(wire::kProtocolVersion);
        const bool remote = context_.cache.remote().configured();
        welcome.setFeatures(remote ? wire::kFeatures : wire::kFeatures & ~wire::kRemoteTier);
        welcome.setBootId(data_of(context_.welcomed.boot_id));
        welcome.setLeaseMs(static_cast<std::uint32_t>(client_.lease_time.count()));
        welcome.setDirectoryBytes(context_.directory.bytes());
        welcome.setFrameBytesMax(wire::kFrameBytesMax);
        welcome.setDevice(static_cast<std::uint8_t>(client_.device));
        welcome.setReadOnly(client_.read_only);
        welcome.setLineage(data_of(context_.welcomed.lineage));
        auto extents = welcome.initExtents(static_cast<unsigned>(extents_.ids().size()));
        unsigned i = 0;
        for (const std::uint32_t extent : extents_.ids()) extents.set(i++, extent);
      },
      std::move(directory));
  return {};
}

std::uint32_t Session::device_of_gpu(capnp::Data::Reader uuid) const {
  const auto& gpus = context_.welcomed.gpus;
  if (uuid.size() == 0) return context_.welcomed.device_without_gpu;
  GpuUuid wanted;
  std::memcpy(wanted.data(), uuid.begin(), wanted.size());
  const auto found = std::ranges::find(gpus, wanted);
  if (found != gpus.end()) return static_cast<std::uint32_t>(found - gpus.begin());
  if (!gpus.empty()) {
    spdlog::info(
        "session {} ({}, pid {}) is on {}, where there is no device tier: see [device] gpus", id(),
        name(), client_.process.pid, to_string(wanted));
  }
  return kNoDevice;
}

void Session::send_ready(LeaseId lease, std::span<const BlockCache::Landed> landed) {
  for (const auto& block : landed) extents_.introduce(block.slot);
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

bool Session::send_recall(std::uint64_t number, const BlockCache::Recall& recall) {
  if (!client_.answers_recalls) return false;
  std::vector<std::pair<std::uint32_t, BlockCache::Recall::Keep>> keeps;  // by handle
  for (const auto& keep : recall.keeps) {
    for (const std::uint32_t handle : namespaces_.handles_of(keep.ns))
      keeps.emplace_back(handle, keep);
  }
  reply(0, [&](Builder root) {
    auto event = root.initRecall();
    event.setNumber(number);
    auto extents = event.initExtents(static_cast<unsigned>(recall.extents.size()));
    for (unsigned i = 0; i < extents.size(); ++i) extents.set(i, recall.extents[i].value);
    auto list = event.initKeeps(static_cast<unsigned>(keeps.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      list[i].setNs(keeps[i].first);
      list[i].setTier(static_cast<std::uint8_t>(keeps[i].second.tier));
      list[i].setSlots(keeps[i].second.slots);
    }
  });
  return true;
}

bool Session::send_namespace_closed(std::uint16_t ns) {
  const auto handles = namespaces_.handles_of(ns);
  tell_closed(handles);
  return !handles.empty();
}

bool Session::close_awaited(const NamespaceFilter& filter) {
  const auto handles = namespaces_.close_awaited(filter);
  tell_closed(handles);
  return !handles.empty();
}

void Session::tell_closed(std::span<const std::uint32_t> handles) {
  for (const std::uint32_t handle : handles)
    reply(0, [&](Builder root) { root.setNamespaceClosed(handle); });
}

}  // namespace kvtier::daemon
