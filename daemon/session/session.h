// One client connection. Speaks the wire, keeps what belongs to the connection (namespaces opened,
// extents told of), and asks the cache for everything else. Lives on the control thread.
//
// A session never waits: what its peer does not read is queued up to a bound, past which the
// session ends. Whatever a peer sends can end its own session and nothing else.
//
// A session may be found to be at its end in the middle of anything that it or the cache does, so
// end() only marks it: it says and hears nothing more, and everything that it holds stays as it is
// until the server closes it, at the end of the turn.
#pragma once

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/cuda_driver.h"
#include "core/wire/frame.h"
#include "daemon/cache/block_cache.h"
#include "daemon/limits.h"
#include "daemon/peers/access.h"
#include "daemon/peers/log_budget.h"
#include "daemon/peers/peer.h"
#include "daemon/peers/users.h"
#include "daemon/restart/kept_state.h"
#include "daemon/session/admin_jobs.h"
#include "daemon/session/client_told.h"
#include "daemon/session/closings.h"
#include "daemon/session/farewells.h"
#include "daemon/session/lending.h"

namespace kvtier::daemon {

// What sessions need of the daemon around them.
struct SessionContext {
  BlockCache& cache;
  DirectoryWriter& directory;
  std::array<std::byte, 16> boot_id;
  Lineage lineage;
  std::chrono::milliseconds lease_time;
  std::vector<GpuUuid> gpus;         // of the device tier
  std::uint32_t device_without_gpu;  // what a client that names no GPU has of that tier
  const Access& access;
  const Config::Limits& limits;
  bool device_for_readers;  // whether the device tier's memory may go to read-only sessions
  // As much as `peer` may see.
  std::function<void(const Peer& peer, wire::Status::Builder)> fill_status;
  // Ends every other session of this client of the process.
  std::function<void(SessionId but, ProcessId, std::uint64_t client)> end_earlier;
  // Starts a scrub if asked to, and reports.
  std::function<void(bool start, wire::ScrubReport::Builder)> scrub;
  std::function<Result<void>(wire::QuotaRequest::Reader)> set_quota;
  AdminJobs& admin;
  std::function<void(wire::Message::Builder)> fill_sessions;
  // What a person calls the part of the tier that this place is in.
  std::function<std::string(Tier, std::uint32_t device)> name_of_part;
  Users& users;
  Closings& closings;
  Farewells& farewells;
  Lending& lending;
  std::uint64_t frame_errors = 0;
  std::uint64_t denied = 0;           // requests without the right to them
  std::uint64_t refused_reports = 0;  // of bad keys
  ClientTold told{};
  LogBudget log_budget{limits::kPeerLinesPerSecond};
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  using Clock = std::chrono::steady_clock;
  using Doomed = std::function<void(SessionId)>;

  Session(SessionId id, ProcessId process, Peer peer, Socket socket, SessionContext& context,
          Doomed doomed);

  void start();
  // Marks it; `doomed` is called once, from here or from the I/O that failed. close() is owed.
  void end(const std::string& why);
  // Closes the connection of a session that was ended. Never from within the session's own work.
  void close();
  bool open() const noexcept { return open_; }
  // The same, after what the peer had sent has been handled: for a peer that sends no more.
  void hear_out(const std::string& why);
  // Ends, and the peer is told why, if it reads.
  void refuse(const Error& why);

  SessionId id() const noexcept { return id_; }
  ProcessId process() const noexcept { return process_; }
  std::uint64_t client() const noexcept { return client_; }
  Clock::time_point last_heard() const noexcept { return last_heard_; }
  void heard() noexcept { last_heard_ = Clock::now(); }
  // The bound on time that the peer is past: to say hello, to complete a frame, to read.
  std::optional<Error> overdue(Clock::time_point now);
  // The daemon itself stood still: the peer gets its time again.
  void excuse(Clock::time_point now) noexcept;

  const Peer& peer() const noexcept { return peer_; }
  const std::string& name() const noexcept { return name_; }
  bool read_only() const noexcept { return read_only_; }
  std::size_t unsent_bytes() const noexcept { return writer_.bytes(); }
  // What the client was told in hello.
  std::chrono::milliseconds lease_time() const noexcept { return lease_time_; }
  std::span<const std::uint16_t> namespaces() const noexcept { return namespaces_; }
  Clock::time_point began() const noexcept { return accepted_; }
  void lease_time_over();

  void send_ready(LeaseId lease, std::span<const BlockCache::Landed> landed);
  void send_extent_gone(ExtentId id);
  void send_reserved(std::uint64_t id, std::vector<SlotName> slots);
  // False where the client knows no recalls.
  bool send_recall(std::uint64_t number, const BlockCache::Recall& recall);
  // Whether it has the namespace open.
  bool send_namespace_closed(std::uint16_t ns);
  // The same of what it waits for.
  bool close_awaited(const NamespaceFilter& filter);
  void fill(wire::SessionInfo::Builder info) const;

 private:
  using Builder = wire::Message::Builder;

  void wait_readable();
  void wait_writable();
  void take_frames();
  void output_failed(const Error& why);
  // To the log, as far as there is room for what peers do.
  void warn(const std::string& what);
  void work();
  Result<void> handle_next();
  void look_at_reported();
  void input_over();
  void charge(double cost) { context_.users.charge(peer_.uid, cost, Clock::now()); }
  bool in_debt();
  void pause();
  Result<void> authorized(wire::Message::Which message) const;
  Result<void> handle(wire::Frame& frame);
  Result<void> dispatch(wire::Message::Reader message, std::size_t frame_bytes);
  Result<void> on_hello(std::uint64_t id, wire::Hello::Reader hello);
  Result<void> recall_extents(wire::Hello::Reader hello);
  Result<void> on_open(std::uint64_t id, capnp::Data::Reader encoded);
  Result<void> on_lease(std::uint64_t id, wire::LeaseRequest::Reader request);
  Result<void> on_reserve(std::uint64_t id, wire::ReserveRequest::Reader request);
  Result<void> on_commit(std::uint64_t id, wire::Commit::Reader commit);
  Result<void> on_report(wire::Report::Reader report);
  Result<void> on_flush(std::uint64_t id);
  Result<void> on_set_quota(std::uint64_t id, wire::QuotaRequest::Reader request);
  void on_status(std::uint64_t id);
  bool visible(std::uint16_t ns) const;
  Result<std::uint16_t> number_of(std::uint32_t handle);
  static constexpr unsigned kPrefetched = 16;  // keys at once
  void prefetch_keys(capnp::List<wire::Commit::Block>::Reader blocks, unsigned first) const;
  // session_admin.cc, session_inspect.cc. What is malformed ends the session; what is refused is
  // answered.
  Result<void> admin(wire::Message::Reader message);
  Result<void> on_list(std::uint64_t id, wire::ListRequest::Reader request);
  Result<void> on_drop(std::uint64_t id, wire::DropRequest::Reader request);
  Result<void> on_pin(std::uint64_t id, wire::PinRequest::Reader request);
  Result<void> on_unpin(std::uint64_t id, wire::UnpinRequest::Reader request);
  Result<void> on_invalidate(std::uint64_t id, wire::NamespaceFilter::Reader filter);
  Result<void> on_inspect(std::uint64_t id, wire::InspectRequest::Reader request);
  void fill_namespace(wire::ListReply::Namespace::Builder out, std::uint16_t ns) const;
  void fill_block(wire::ListReply::Block::Builder out, BlockId id) const;
  void fill_inspected(wire::Inspected::Builder out, BlockId id, bool verify) const;
  void fill_placement(wire::Inspected::Placement::Builder out, BlockId id, Tier tier,
                      bool verify) const;
  template <class T>
  std::function<void(const T&)> answer(std::uint64_t id,
                                       std::function<void(Builder, const T&)> fill);

  // False where the peer will never hear of it.
  bool reply(std::uint64_t id, const std::function<void(Builder)>& fill, UniqueFd descriptor = {});
  void reply_error(std::uint64_t id, const Error& error);
  void introduce(SlotName slot);
  UniqueFd memory_for_peer(const storage::Extent& extent) const;
  std::uint32_t device_of_gpu(capnp::Data::Reader uuid) const;

  SessionId id_;
  ProcessId process_;
  Peer peer_;
  Socket socket_;
  SessionContext& context_;
  Doomed doomed_;
  std::string name_;
  std::uint64_t client_ = 0;          // what it calls itself in all its sessions
  std::uint32_t device_ = kNoDevice;  // its GPU's number
  bool greeted_ = false;
  bool read_only_ = false;
  bool answers_recalls_ = false;
  std::chrono::milliseconds lease_time_;
  bool open_ = true;
  bool write_waiting_ = false;
  std::uint32_t flushes_ = 0;
  // No request has descriptors.
  wire::FrameReader reader_{wire::FrameReader::Descriptors::refused};
  wire::FrameWriter writer_;
  bool peer_reads_ = true;
  // By the session's handle. kNotKnown: nobody has made it yet, and its encoding is in `awaited_`.
  static constexpr std::uint16_t kNotKnown = 0xFFFF;
  std::vector<std::uint16_t> namespaces_;
  std::map<std::uint32_t, std::vector<std::byte>> awaited_;
  std::set<std::uint32_t> known_extents_;
  std::deque<wire::Frame> received_;  // not handled yet; at most kFramesPerTurn
  std::optional<Error> input_ended_;  // after those
  std::vector<Key> reported_;         // by the last frame handled, and not looked at yet
  Clock::time_point began_;
  boost::asio::steady_timer pause_;
  bool paused_ = false;   // its user's requests per second are used up
  bool refused_ = false;  // ended by us, with a reason that the peer is to read
  bool frame_under_way_ = false;
  Clock::time_point accepted_, last_heard_;
  Clock::time_point frame_began_, last_read_;  // by the peer
  std::uint64_t sent_seen_ = 0;
};

}  // namespace kvtier::daemon
