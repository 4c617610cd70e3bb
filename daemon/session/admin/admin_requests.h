// What administrators ask for, as their messages say it: lists, drops, pins, invalidations, scrubs,
// quotas, sessions. Lists are for everybody, of what each may see.
//
// Each request of the wire is one method. An error is a malformed request and ends the session;
// what is refused is answered. What takes many blocks is AdminJobs's to do in steps; its answer
// comes later and finds the connection by a weak pointer. A list passes a bounded number of blocks
// a reply. Whether the peer may ask is found out before (Session). Owned by its session, on the
// control thread.
#pragma once

#include <cstdint>

#include "daemon/session/admin/inspection.h"
#include "daemon/session/connection.h"

namespace kvtier::daemon {

class AdminRequests {
 public:
  // Both outlive this.
  AdminRequests(Connection& connection, SessionContext& context)
      : connection_(connection), context_(context), inspection_(connection, context) {}

  // Whether this is the one that handles such messages.
  static bool handles(wire::Message::Which message) noexcept;
  Result<void> handle(wire::Message::Reader message);

 private:
  using Builder = wire::Message::Builder;

  Result<void> list(std::uint64_t id, wire::ListRequest::Reader request);
  Result<void> drop(std::uint64_t id, wire::DropRequest::Reader request);
  Result<void> pin(std::uint64_t id, wire::PinRequest::Reader request);
  Result<void> unpin(std::uint64_t id, wire::UnpinRequest::Reader request);
  Result<void> push(std::uint64_t id, wire::PushRequest::Reader request);
  Result<void> invalidate(std::uint64_t id, wire::NamespaceFilter::Reader filter);
  Result<void> set_quota(std::uint64_t id, wire::QuotaRequest::Reader request);
  bool visible(std::uint16_t ns) const;
  template <class T>
  std::function<void(const T&)> answer(std::uint64_t id,
                                       std::function<void(Builder, const T&)> fill);

  Connection& connection_;
  SessionContext& context_;
  Inspection inspection_;
};

}  // namespace kvtier::daemon
