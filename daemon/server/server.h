// The daemon's control thread: the socket, the sessions, the timers, and the order in which
// everything starts and stops.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <optional>

#include "core/base/cuda_driver.h"
#include "daemon/cache/block_cache.h"
#include "daemon/config/config.h"
#include "daemon/limits.h"
#include "daemon/peers/process_watch.h"
#include "daemon/restart/kept_memory.h"
#include "daemon/server/disposal.h"
#include "daemon/server/scrubber.h"
#include "daemon/server/snapshot.h"
#include "daemon/server/turns.h"
#include "daemon/server/write_rate.h"
#include "daemon/session/admin_jobs.h"
#include "daemon/session/session.h"

namespace kvtier::daemon {

class Server {
 public:
  // `passed`: what of it is the memory of an earlier daemon is taken back from it.
  Server(boost::asio::io_context& io, const Config& config, PassedDescriptors& passed);
  ~Server();

  // Opens the tiers and the socket, or serves on `listening`, which the service manager made and
  // keeps. Errors: invalid, io, version, refused; each names the setting to mend.
  Result<void> start(std::optional<UniqueFd> listening = {});

  // Ends every session, writes what waits for the disk (at most for `shutdown_timeout`), closes the
  // tiers (at most for limits::kCloseMax) and then stops the io_context.
  void stop();
  // A disk's thread that had not ended by then: the process can only be ended without it.
  bool left_behind() const noexcept { return left_behind_; }

  // Takes over from `fresh` what can change while it runs, and says in the log, key by key, what
  // changed and what waits for a restart (those keys keep the values that are in effect).
  struct Reloaded {
    std::vector<std::string> applied, waiting;  // keys: section.name
  };
  Reloaded reload(const Config& fresh);

  // Where clients connect; once it is started.
  const std::string& serving_on() const noexcept { return path_; }

  // What start() and stop() are about, now and then; on the thread that called them.
  std::function<void(const std::string&)> on_progress;

  // On the control thread, after start().
  Snapshot snapshot();

  // For handlers that are to run on the control thread, so that their time counts.
  boost::asio::any_io_executor executor() { return turns_.executor(); }

 private:
  Result<void> open_disks();
  Result<void> open_gpus();
  storage::RecordStoreOptions store_options(const std::filesystem::path& directory) const;
  Result<void> open_socket();
  Result<void> adopt_socket(UniqueFd listening);
  void make_cache();
  BlockCache::Options cache_options() const;
  // So that a slow disk cannot pin the host tier.
  std::uint64_t write_queue_bytes_max() const noexcept { return config_.host.capacity_bytes / 4; }
  void connect_memory(MemoryTier& memory);
  void register_with_disks(const storage::Extent& extent);
  void dispose(std::unique_ptr<storage::Extent> extent, std::function<void()> gone);
  void post(std::function<void()> task);
  // server_restart.cc
  Result<void> take_memory();
  void watch_writers(const std::vector<ProcessId>& writers);
  Result<void> set_quota(wire::QuotaRequest::Reader request);
  void tick();
  // server_stop.cc
  void report_stop();
  void finish_stop();
  bool close_stores();
  void progress(const std::string& text) const {
    if (on_progress) on_progress(text);
  }
  // server_sessions.cc
  void accept();
  void accept_later();
  void admit(Session::Socket socket);
  std::uint32_t namespace_closed(std::uint16_t ns);
  // The bound on sessions that one more of this peer would pass.
  std::optional<Error> turned_away(const Peer& peer) const;
  void end_earlier(SessionId but, ProcessId process, std::uint64_t client);
  void session_doomed(SessionId id);
  // The one place where sessions are closed: all that are at their end, but for `but`.
  void reap(SessionId but = 0);
  void close_session(SessionId id);
  void process_ended(ProcessId process);
  // server_cache.cc
  void make_lending();
  void lend();
  // server_reload.cc
  Result<void> take_log_level(const Config& fresh);
  Result<void> take_lease_time(const Config& fresh);
  Result<void> take_shutdown_timeout(const Config& fresh);
  Result<void> take_host_capacity(const Config& fresh);
  Result<void> take_device_capacity(const Config& fresh);
  Result<void> take_admission(const Config& fresh);
  Result<void> take_scrub_rate(const Config& fresh);
  void take_tenants(const Config& fresh, const Tenants& before, Reloaded& result);
  // server_status.cc
  void fill_status(const Peer& peer, wire::Status::Builder status) const;
  void fill_tenants(const Peer& peer, wire::Status::Builder status) const;
  void fill_tenant(wire::Tenant::Builder out, TenantId tenant) const;
  void fill_peers(const Peer& peer, wire::Status::Builder status) const;
  void fill_tier(wire::Status::Tier::Builder out, Tier tier) const;
  void fill_gpu(wire::Status::Gpu::Builder out, std::uint32_t device) const;
  std::uint64_t pinned_bytes_max(Tier tier) const;
  void fill_disk(wire::Status::Disk::Builder out, std::size_t number) const;
  void fill_scrub(wire::ScrubReport::Builder report) const;
  // server_snapshot.cc
  Snapshot::TierView tier_view(Tier tier) const;
  Snapshot::GpuView gpu_view(std::uint32_t device) const;
  Snapshot::DiskView disk_view(std::size_t number) const;
  void add_sessions(Snapshot& snapshot) const;
  void add_scrub(Snapshot& snapshot) const;
  void fill_sessions(wire::Message::Builder reply) const;
  std::string name_of_part(Tier tier, std::uint32_t device) const;

  boost::asio::io_context& io_;
  Turns turns_;
  Config config_;  // in effect
  PassedDescriptors& passed_;
  KeptMemory kept_;
  // One a GPU of the device tier, in the order that gives each its number in the daemon.
  struct Gpu {
    GpuUuid uuid;
    std::uint32_t number;
    std::string name;
    std::unique_ptr<storage::MemoryExtents> extents;
    std::uint64_t memory_bytes = 0;  // 0: not a GPU's
  };
  static Result<void> fits_gpu(std::uint64_t capacity_bytes, const Gpu& gpu);
  std::vector<Gpu> gpus_;
  std::unique_ptr<storage::MemoryExtents> host_extents_;
  std::vector<std::unique_ptr<storage::RecordStore>> stores_;  // as [disk] directories
  std::vector<WriteRate> write_rates_;
  std::unique_ptr<DirectoryWriter> directory_;
  std::unique_ptr<BlockCache> cache_;
  std::unique_ptr<Scrubber> scrubber_;
  std::unique_ptr<AdminJobs> admin_;
  std::unique_ptr<Lending> lending_;
  Access access_;
  Closings closings_;
  Farewells farewells_;
  Users users_;
  std::unique_ptr<SessionContext> context_;
  ProcessWatch processes_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer lending_timer_;
  boost::asio::steady_timer stop_timer_;
  boost::asio::steady_timer late_reads_timer_;  // of an earlier daemon
  std::map<SessionId, std::shared_ptr<Session>> sessions_;
  std::string path_;          // of the socket
  bool owns_socket_ = false;  // made it, and so removes it
  SessionId next_session_ = 1;
  std::vector<SessionId> doomed_;  // ended, not closed yet
  bool reap_posted_ = false;
  NamespaceLabels labels_{limits::kNamespaceLabelsMax};
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point last_tick_;
  std::uint64_t turned_away_ = 0;
  bool stopping_ = false;
  bool stopped_ = false;
  bool left_behind_ = false;
  Disposal disposal_;
};

}  // namespace kvtier::daemon
