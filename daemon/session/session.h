// One client's session: who the client is, what it may ask for, and what it is told of its own
// accord. The connection under it has the frames (Connection), what is asked for is handled by
// ClientRequests and AdminRequests, and everything that is kept about blocks is the cache's.
//
// Nothing but hello is handled before hello. Every request is charged to its user and checked
// against the peer's rights here, in one place, before anything looks at what it asks for. What
// belongs to the session (namespaces open, extents told of) stays as it is until it is closed.
// Lives on the control thread.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "daemon/session/admin/admin_requests.h"
#include "daemon/session/client_of_session.h"
#include "daemon/session/client_requests.h"
#include "daemon/session/connection.h"
#include "daemon/session/open_namespaces.h"
#include "daemon/session/told_extents.h"

namespace kvtier::daemon {

class Session final : public Connection {
 public:
  Session(SessionId id, ProcessId process, Peer peer, Socket socket, SessionContext& context,
          Doomed doomed);

  ProcessId process() const noexcept { return client_.process; }
  std::uint64_t client() const noexcept { return client_.id; }
  bool read_only() const noexcept { return client_.read_only; }
  // What the client was told in hello.
  std::chrono::milliseconds lease_time() const noexcept { return client_.lease_time; }
  std::size_t namespaces() const noexcept { return namespaces_.numbers().size(); }
  void lease_time_over() { context_.cache.release_all(id()); }

  void send_ready(LeaseId lease, std::span<const BlockCache::Landed> landed);
  void send_extent_gone(ExtentId extent) { extents_.gone(extent); }
  // The answer to a reserve request that waited.
  void send_reserved(std::uint64_t id, std::vector<SlotName> slots) {
    requests_.granted(id, std::move(slots));
  }
  // False where the client knows no recalls.
  bool send_recall(std::uint64_t number, const BlockCache::Recall& recall);
  // Whether it has the namespace open.
  bool send_namespace_closed(std::uint16_t ns);
  // The same of what it waits for.
  bool close_awaited(const NamespaceFilter& filter);

 private:
  Result<void> handle(wire::Frame& frame) override;
  bool has_more_to_do() const override { return requests_.has_more_to_do(); }
  void do_more() override { requests_.do_more(); }
  void closed() override { namespaces_.close(); }

  Result<void> dispatch(wire::Message::Reader message, std::size_t frame_bytes);
  Result<void> authorized(wire::Message::Which message) const;
  Result<void> hello(std::uint64_t id, wire::Hello::Reader hello);
  Result<void> welcome(std::uint64_t id);
  std::uint32_t device_of_gpu(capnp::Data::Reader uuid) const;
  void tell_closed(std::span<const std::uint32_t> handles);

  SessionContext& context_;
  ClientOfSession client_;
  OpenNamespaces namespaces_;
  ToldExtents extents_;
  ClientRequests requests_;
  AdminRequests administration_;
};

}  // namespace kvtier::daemon
