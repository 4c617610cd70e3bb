#include "daemon/server/server.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "daemon/limits.h"
#include "storage/store/late_store.h"

namespace kvtier::daemon {

namespace asio = boost::asio;
using asio::local::stream_protocol;
using std::chrono::steady_clock;

namespace {

constexpr std::chrono::seconds kTick{1};

// The path that a unix socket is bound to; empty where it has none.
std::string path_of_socket(int fd) {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      length <= offsetof(sockaddr_un, sun_path) || address.sun_path[0] == '\0') {
    return {};
  }
  return {address.sun_path, ::strnlen(address.sun_path, length - offsetof(sockaddr_un, sun_path))};
}

}  // namespace

Server::Server(asio::io_context& io, const Config& config, PassedDescriptors& passed)
    : io_(io),
      turns_(io),
      config_(config),
      passed_(passed),
      farewells_(executor(), closings_),
      users_(config.limits.requests_per_second),
      processes_(executor(), [this](ProcessId process) { process_ended(process); }),
      acceptor_(executor()),
      accept_timer_(executor()),
      timer_(executor()),
      lending_timer_(executor()),
      stop_timer_(executor()),
      late_reads_timer_(executor()),
      started_(steady_clock::now()),
      last_tick_(started_) {}

Server::~Server() = default;

Result<void> Server::start(std::optional<UniqueFd> listening) {
  auto access = Access::resolve(config_);
  if (!access) return access.error();
  access_ = std::move(*access);
  if (auto good = open_gpus(); !good) return good.error();
  if (auto good = open_disks(); !good) return good.error();
  std::array<std::byte, 16> boot_id;
  if (::getrandom(boot_id.data(), boot_id.size(), 0) != static_cast<ssize_t>(boot_id.size())) {
    return make_error(Errc::io, "no random bytes for the boot id");
  }
  auto directory = DirectoryWriter::create(config_.index_blocks_max, boot_id);
  if (!directory) return directory.error();
  directory_ = std::make_unique<DirectoryWriter>(std::move(*directory));
  make_cache();
  progress("Taking over what is in memory");
  if (auto good = take_memory(); !good) return good.error();
  std::vector<GpuUuid> gpus;
  for (const Gpu& gpu : gpus_) gpus.push_back(gpu.uuid);
  // Where host memory stands in for GPUs, a client without one uses the first.
  const bool emulated = !gpus_.empty() && config_.device.backend == DeviceBackend::memory;
  context_ = std::make_unique<SessionContext>(SessionContext{
      *cache_,
      *directory_,
      boot_id,
      kept_.lineage(),
      config_.lease_time,
      std::move(gpus),
      emulated ? 0 : kNoDevice,
      access_,
      config_.limits,
      config_.device.backend == DeviceBackend::memory || config_.access.read_only_device,
      [this](const Peer& peer, wire::Status::Builder status) { fill_status(peer, status); },
      [this](SessionId but, ProcessId process, std::uint64_t client) {
        end_earlier(but, process, client);
      },
      [this](bool start, wire::ScrubReport::Builder report) {
        if (start) scrubber_->start();
        fill_scrub(report);
      },
      [this](wire::QuotaRequest::Reader request) { return set_quota(request); },
      *admin_,
      [this](wire::Message::Builder reply) { fill_sessions(reply); },
      [this](Tier tier, std::uint32_t device) { return name_of_part(tier, device); },
      users_,
      closings_,
      farewells_,
      *lending_});

  if (auto good = cache_->recover(); !good) return good.error();
  auto opened = listening ? adopt_socket(std::move(*listening)) : open_socket();
  if (!opened) return opened.error();
  accept();
  tick();
  spdlog::info("serving on {}", path_);
  return {};
}

storage::RecordStoreOptions Server::store_options(const std::filesystem::path& directory) const {
  storage::RecordStoreOptions options;
  options.directory = directory;
  options.capacity_bytes = config_.disk.capacity_bytes;
  options.segment_bytes = config_.disk.segment_bytes;
  options.sqpoll = config_.disk.io == DiskIo::sqpoll;
  options.force_threads = config_.disk.io == DiskIo::threads;
  options.progress = [this](const std::string& text) { progress(text); };
  return options;
}

Result<void> Server::open_disks() {
  constexpr std::uint64_t kSegmentsMax = 1ULL << limits::kDiskSegmentBits;
  if (config_.disk.capacity_bytes / config_.disk.segment_bytes >= kSegmentsMax) {
    return make_error(Errc::invalid, "[disk] capacity is more than " +
                                         std::to_string(kSegmentsMax) +
                                         " segments: give a larger segment_size");
  }
  for (const auto& directory : config_.disk.directories) {
    progress("Opening the disk tier in " + directory.string());
    auto store = storage::open_record_store_now_or_late(
        store_options(directory), [this](std::function<void()> task) { post(std::move(task)); });
    if (!store) return store.error();
    stores_.push_back(std::move(*store));
  }
  write_rates_.resize(stores_.size());
  return {};
}

Result<void> Server::open_gpus() {
  const auto& device = config_.device;
  if (device.capacity_bytes == 0) return {};
  for (const std::uint32_t number : device.gpus) {
    if (device.backend == DeviceBackend::memory) {
      GpuUuid uuid{};
      uuid.back() = static_cast<std::byte>(number);
      gpus_.push_back(
          {uuid, number, "memory",
           storage::make_memfd_extents(Tier::device, {device.huge_pages, device.prefault, uuid})});
      continue;
    }
    auto extents = storage::make_cuda_extents(static_cast<int>(number));
    if (!extents) {
      return make_error(extents.error().code,
                        "[device] backend = \"cuda\", gpus: " + extents.error().message);
    }
    const auto gpu = CudaDriver::get().value()->device(static_cast<int>(number));
    if (!gpu) return gpu.error();
    gpus_.push_back({gpu->uuid, number, gpu->name, std::move(*extents), gpu->memory_bytes});
    if (auto good = fits_gpu(device.capacity_bytes, gpus_.back()); !good) return good.error();
    spdlog::info("device tier {}: GPU {} ({}, {})", gpus_.size() - 1, number, gpu->name,
                 to_string(gpu->uuid));
  }
  return {};
}

Result<void> Server::fits_gpu(std::uint64_t capacity_bytes, const Gpu& gpu) {
  if (gpu.memory_bytes == 0 || capacity_bytes <= gpu.memory_bytes) return {};
  return make_error(Errc::invalid, "[device] capacity is more than the " +
                                       std::to_string(gpu.memory_bytes >> 20) + " MiB of GPU " +
                                       std::to_string(gpu.number) + " (" + gpu.name +
                                       "): give less");
}

void Server::make_cache() {
  const auto& host = config_.host;
  host_extents_ = storage::make_memfd_extents(Tier::host, {host.huge_pages, host.prefault});
  const auto elsewhere = [this](std::function<void()> task) { disposal_.run(std::move(task)); };
  host_extents_->elsewhere = elsewhere;
  for (const Gpu& gpu : gpus_) gpu.extents->elsewhere = elsewhere;
  BlockCache::Ports ports{
      {}, host_extents_.get(), {}, directory_.get(), [this] { return kept_.next_extent(); }};
  for (const Gpu& gpu : gpus_) ports.devices.push_back(gpu.extents.get());
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    ports.disks.push_back({stores_[i].get(), config_.disk.directories[i].string()});
  }
  cache_ = std::make_unique<BlockCache>(cache_options(), std::move(ports));
  cache_->later = [this](std::function<void()> task) { post(std::move(task)); };
  cache_->disk().later = cache_->later;
  cache_->disk().on_recovering = [this](const std::string& directory, std::uint64_t blocks) {
    progress(fmt::format("Taking over what is on disk: {} blocks, in {}", blocks, directory));
  };
  cache_->on_ready = [this](SessionId id, LeaseId lease,
                            std::span<const BlockCache::Landed> landed) {
    if (const auto at = sessions_.find(id); at != sessions_.end())
      at->second->send_ready(lease, landed);
  };
  connect_memory(cache_->memory(Tier::host));
  for (std::uint32_t device = 0; device < cache_->devices(); ++device)
    connect_memory(cache_->memory(Tier::device, device));
  Scrubber::Options scrub;
  scrub.bytes_per_second = std::uint64_t{config_.disk.scrub_mib_per_s} << 20;
  scrubber_ = std::make_unique<Scrubber>(scrub, cache_->disk(), cache_->catalogue());
  admin_ = std::make_unique<AdminJobs>(*cache_, cache_->disk().later);
  admin_->on_closed = [this](std::uint16_t ns) { return namespace_closed(ns); };
  admin_->on_invalidated = [this](const NamespaceFilter& filter) {
    std::uint32_t told = 0;
    for (const auto& [id, session] : sessions_) told += session->close_awaited(filter) ? 1 : 0;
    return told;
  };
  make_lending();
}

void Server::connect_memory(MemoryTier& memory) {
  memory.on_created = [this](storage::Extent& extent) {
    kept_.created(extent);
    register_with_disks(extent);
  };
  memory.on_retired = [this](storage::Extent& extent) {
    kept_.retired(extent);
    // Later: who asks the cache for something may be about to tell of a slot in it.
    post([this, gone = extent.id()] {
      for (const auto& [id, session] : sessions_) session->send_extent_gone(gone);
    });
  };
  memory.dispose = [this](std::unique_ptr<storage::Extent> extent, std::function<void()> gone) {
    dispose(std::move(extent), std::move(gone));
  };
}

// An extent's memory is the disks' too until each disk's thread has said that it has let go of it,
// and then takes the kernel a while to give back. Nobody waits for either.
void Server::dispose(std::unique_ptr<storage::Extent> extent, std::function<void()> gone) {
  struct Leaving {
    std::shared_ptr<storage::Extent> extent;
    std::function<void()> gone;
    std::size_t users = 1;
  };
  const auto leaving = std::make_shared<Leaving>();
  leaving->extent = std::move(extent);
  leaving->gone = std::move(gone);
  const auto let_go = [this, leaving] {
    if (--leaving->users > 0) return;
    disposal_.run(
        [this, last = std::move(leaving->extent), gone = std::move(leaving->gone)]() mutable {
          last.reset();
          post(std::move(gone));
        });
  };
  const ExtentId id = leaving->extent->id();
  for (const auto& store : stores_) {
    if (leaving->extent->tier() != Tier::host) break;
    ++leaving->users;
    store->forget_extent(id, let_go);
  }
  let_go();
}

void Server::post(std::function<void()> task) {
  asio::post(executor(), std::move(task));
}

void Server::register_with_disks(const storage::Extent& extent) {
  if (extent.tier() != Tier::host) return;
  for (const auto& store : stores_) {
    if (auto good = store->register_extent(extent); !good) {
      spdlog::warn("extent {} is not registered for disk I/O: {}", extent.id().value,
                   good.error().message);
    }
  }
}

Result<void> Server::open_socket() {
  const std::string path = config_.socket.string();
  if (path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return make_error(Errc::invalid, "socket path " + path + " is too long: give one of at most " +
                                         std::to_string(sizeof(sockaddr_un{}.sun_path) - 1) +
                                         " bytes");
  }
  boost::system::error_code error;
  stream_protocol::socket probe(executor());
  probe.connect(stream_protocol::endpoint(path), error);
  if (!error) {
    return make_error(Errc::refused, "socket " + path +
                                         " is in use: another kvtierd serves there; "
                                         "stop it or set another `socket`");
  }
  // A socket that nobody listens on is left over from a daemon that was killed; anything else is
  // not ours.
  struct stat found;
  if (::lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode)) {
      return make_error(Errc::refused, path +
                                           " exists and is not a socket: move it away or set "
                                           "another `socket`");
    }
    ::unlink(path.c_str());
  }
  path_ = path;
  owns_socket_ = true;
  acceptor_.open(stream_protocol(), error);
  if (!error) acceptor_.bind(stream_protocol::endpoint(path), error);
  if (!error && ::chmod(path.c_str(), config_.socket_mode) != 0) {
    error = {errno, boost::system::system_category()};
  }
  if (!error) acceptor_.listen(128, error);
  if (error) {
    return make_error(Errc::io, "cannot listen on " + path + ": " + error.message() +
                                    "; the directory must exist and be writable");
  }
  return {};
}

Result<void> Server::adopt_socket(UniqueFd listening) {
  path_ = path_of_socket(listening.get());
  if (path_ != config_.socket) {
    spdlog::warn("the service manager's socket is {}: `socket` = {} is not used", path_,
                 config_.socket.string());
  }
  boost::system::error_code error;
  acceptor_.assign(stream_protocol(), listening.get(), error);
  if (error) {
    return make_error(Errc::io,
                      "the service manager's socket cannot be served: " + error.message());
  }
  (void)listening.release();
  return {};
}

Result<void> Server::set_quota(wire::QuotaRequest::Reader request) {
  const auto tenant = cache_->catalogue().tenants().find(request.getTenant().cStr());
  if (!tenant) {
    return make_error(Errc::not_found, "no tenant '" + std::string(request.getTenant().cStr()) +
                                           "': `kvtierctl status` lists them");
  }
  if (request.getTier() >= kTiers) return make_error(Errc::invalid, "no such tier");
  const Tier tier = static_cast<Tier>(request.getTier());
  const TenantLimits wanted{request.getQuotaBytes(), request.getGuaranteedBytes()};
  if (auto good = cache_->set_limits(*tenant, tier, wanted); !good) return good;
  spdlog::info("tenant '{}': quota of the {} tier is {} bytes, {} guaranteed",
               request.getTenant().cStr(), name(tier), wanted.quota, wanted.guaranteed);
  return {};
}

void Server::tick() {
  const auto now = steady_clock::now();
  // After a stall of our own (SIGSTOP, a frozen host) what clients sent meanwhile waits to be read:
  // they get their time again.
  const bool stalled = now - last_tick_ > 3 * kTick;
  if (stalled) {
    spdlog::warn("kvtierd itself could not run for {} ms",
                 std::chrono::ceil<std::chrono::milliseconds>(now - last_tick_).count());
  }
  last_tick_ = now;
  const auto sessions = sessions_;
  for (const auto& [id, session] : sessions) {
    if (stalled) session->excuse(now);
    if (const auto late = session->overdue(now)) {
      session->refuse(*late);
      continue;
    }
    if (now - session->last_heard() > session->lease_time()) session->lease_time_over();
  }
  cache_->trim();
  cache_->pass_time(1 +
                    static_cast<std::uint32_t>(
                        std::chrono::duration_cast<std::chrono::seconds>(now - started_).count()));
  cache_->disk().write_stamps();
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    write_rates_[i].note(now, stores_[i]->stats().bytes_written);
  }
  scrubber_->tick();
  admin_->end_pins(now);
  cache_->forget_unused_namespaces();
  lending_->make_way();
  spdlog::default_logger_raw()->flush();  // what nobody had read yet
  timer_.expires_after(kTick);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error && !stopping_) tick();
  });
}

}  // namespace kvtier::daemon
