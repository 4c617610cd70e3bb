// What a client asks for once it has said hello: namespaces, leases, slots, commits.
//
// Each request of the wire is one method. An error is a malformed request and ends the session;
// what is refused is answered. Nothing is asked of the cache for a handle that the session has not
// open, and no slot is named before its extent was told (ToldExtents). What a report calls bad is
// looked at in steps (has_more_to_do()), since it has records read. Whether the peer may ask is
// found out before (Session). Owned by its session, on the control thread; an answer that comes
// later finds the connection by a weak pointer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "daemon/session/client_of_session.h"
#include "daemon/session/connection.h"
#include "daemon/session/open_namespaces.h"
#include "daemon/session/told_extents.h"

namespace kvtier::daemon {

class ClientRequests {
 public:
  // All outlive this.
  ClientRequests(Connection& connection, SessionContext& context, const ClientOfSession& client,
                 OpenNamespaces& namespaces, ToldExtents& extents)
      : connection_(connection),
        context_(context),
        client_(client),
        namespaces_(namespaces),
        extents_(extents) {}

  Result<void> handle(wire::Message::Reader message);
  // The slots that a reserve request waited for.
  void granted(std::uint64_t id, std::vector<SlotName> slots);

  bool has_more_to_do() const noexcept { return !reported_.empty(); }
  void do_more();

 private:
  using Builder = wire::Message::Builder;

  Result<void> open(std::uint64_t id, capnp::Data::Reader encoded);
  struct LeaseAsked {
    std::uint64_t id = 0;      // of the request
    std::uint32_t handle = 0;  // of the namespace
    std::uint32_t looked_up = 0;
    bool ahead = false;
  };
  Result<void> lease(std::uint64_t id, wire::LeaseRequest::Reader request);
  void grant(const LeaseAsked& asked, std::uint16_t ns, std::span<const Key> keys);
  Result<void> look_up(std::uint64_t id, wire::LeaseRequest::Reader request);
  bool looks_further(const RemoteLookups::Prompt& prompt,
                     std::function<void(std::span<const Key>)> then);
  Result<void> reserve(std::uint64_t id, wire::ReserveRequest::Reader request);
  Result<void> commit(std::uint64_t id, wire::Commit::Reader commit);
  Result<void> report(wire::Report::Reader report);
  Result<void> hint(wire::Hint::Reader hint);
  Result<void> flush(std::uint64_t id);
  static constexpr unsigned kPrefetched = 16;  // keys at once
  void prefetch_keys(capnp::List<wire::Commit::Block>::Reader blocks, unsigned first) const;

  Connection& connection_;
  SessionContext& context_;
  const ClientOfSession& client_;
  OpenNamespaces& namespaces_;
  ToldExtents& extents_;
  std::vector<Key> reported_;  // by the last request, and not looked at yet
  // Under way; the answers to them outlive the session.
  std::shared_ptr<std::uint32_t> flushes_ = std::make_shared<std::uint32_t>(0);
};

}  // namespace kvtier::daemon
