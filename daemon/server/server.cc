#include "daemon/server/server.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "daemon/server/status/wire_status.h"

namespace kvtier::daemon {

namespace asio = boost::asio;
using std::chrono::steady_clock;

namespace {

constexpr std::chrono::seconds kTick{1};

}  // namespace

Server::Server(asio::io_context& io, const Config& config, PassedDescriptors& passed,
               storage::WrapDevice wrap_device)
    : io_(io),
      turns_(io),
      config_(config),
      tiers_({[this](std::function<void()> task) { post(std::move(task)); },
              [this](std::chrono::milliseconds time, std::function<void()> task) {
                after(time, std::move(task));
              },
              [this](const std::string& text) { progress(text); }, std::move(wrap_device)},
             passed),
      listener_(executor(),
                [this](Listener::Socket socket) { return sessions_->admit(std::move(socket)); }),
      stop_(executor(), tiers_,
            {[this](const std::string& text) { progress(text); },
             [this](bool closed) {
               left_behind_ = !closed;
               events_.reset();
               io_.stop();
             }}),
      tick_timer_(executor()),
      lending_timer_(executor()),
      started_(steady_clock::now()),
      last_tick_(started_) {}

Result<void> Server::start(std::optional<UniqueFd> listening) {
  auto access = Access::resolve(config_);
  if (!access) return access.error();
  access_ = std::move(*access);
  if (auto good = tiers_.open(config_); !good) return good;
  progress("Taking over what is in memory");
  const auto writers = tiers_.take_memory();
  if (!writers) return writers.error();
  make_parts();
  sessions_->watch_writers(*writers);
  if (auto good = tiers_.recover(); !good) return good;
  if (!config_.events.endpoint.empty()) {
    events_ = std::make_unique<events::EventPublisher>(
        config_.events, tiers_.cache(),
        [this](std::function<void()> task) { post(std::move(task)); });
  }
  auto opened = listening ? listener_.adopt(std::move(*listening), config_.socket.string())
                          : listener_.open(config_.socket.string(), config_.socket_mode);
  if (!opened) return opened;
  listener_.accept();
  tick();
  spdlog::info("serving on {}", listener_.path());
  return {};
}

void Server::make_parts() {
  BlockCache& cache = tiers_.cache();
  Scrubber::Options scrub;
  scrub.bytes_per_second = std::uint64_t{config_.disk.scrub_mib_per_s} << 20;
  scrubber_ = std::make_unique<Scrubber>(scrub, cache.disk(), cache.catalogue());
  admin_ = std::make_unique<AdminJobs>(
      cache, [this](std::function<void()> task) { post(std::move(task)); });
  lending_ = std::make_unique<Lending>(cache, lending_ports());
  sessions_ = std::make_unique<SessionRegistry>(
      executor(), SessionRegistry::Needs{cache, tiers_.directory(), *lending_, *admin_, access_,
                                         config_.limits, welcomed(), session_ports()});
  describer_ = std::make_unique<Describer>(
      Describer::Of{tiers_, *scrubber_, *sessions_, access_, turns_, events_,
                    config_.disk.capacity_bytes, config_.remote.url});
  reload_ =
      std::make_unique<Reload>(Reload::Of{config_, tiers_, *lending_, *scrubber_, *sessions_});

  admin_->on_closed = [this](std::uint16_t ns) { return sessions_->tell_namespace_closed(ns); };
  admin_->on_invalidated = [this](const NamespaceFilter& filter) {
    return sessions_->tell_invalidated(filter);
  };
  cache.on_room = [this] { lending_->came_home(); };
  cache.on_ready = [this](SessionId id, LeaseId lease, std::span<const BlockCache::Landed> landed) {
    if (const auto session = sessions_->find(id)) session->send_ready(lease, landed);
  };
  tiers_.on_extent_gone = [this](storage::ExtentId id) { sessions_->tell_extent_gone(id); };
}

Welcomed Server::welcomed() const {
  const bool emulated = config_.device.backend == DeviceBackend::memory;
  Welcomed all;
  all.boot_id = tiers_.boot_id();
  all.lineage = tiers_.lineage();
  all.lease_time = config_.lease_time;
  for (const auto& gpu : tiers_.backing().gpus()) all.gpus.push_back(gpu.uuid);
  // Where host memory stands in for GPUs, a client without one uses the first.
  all.device_without_gpu = emulated && !all.gpus.empty() ? 0 : kNoDevice;
  all.device_for_readers = emulated || config_.access.read_only_device;
  return all;
}

SessionPorts Server::session_ports() {
  SessionPorts ports;
  ports.fill_status = [this](const Peer& peer, wire::Status::Builder status) {
    render(describer_->for_peer(peer), status);
  };
  ports.fill_sessions = [this](wire::Message::Builder reply) {
    render(describer_->sessions(), reply);
  };
  ports.scrub = [this](bool start, wire::ScrubReport::Builder report) {
    if (start) scrubber_->start();
    render(describer_->scrub(), report);
  };
  ports.name_of_part = [this](Tier tier, std::uint32_t device) {
    return tiers_.backing().name_of_part(tier, device);
  };
  return ports;
}

Lending::Ports Server::lending_ports() {
  return {[this](const Lending::Request& request, std::vector<SlotName> slots) {
            // Which telling may end.
            if (const auto session = sessions_->find(request.to.session))
              return session->send_reserved(request.id, std::move(slots));
            for (const SlotName slot : slots) tiers_.cache().abandon(request.to.session, slot);
          },
          [this](SessionId id, std::uint64_t number, const BlockCache::Recall& recall) {
            const auto session = sessions_->find(id);
            return session && session->send_recall(number, recall);
          },
          [this] { post([this] { lend(); }); }};
}

void Server::lend() {
  if (stopping_) return;
  lending_->turn(steady_clock::now());
  const auto next = lending_->next(steady_clock::now());
  if (!next) return;
  lending_timer_.expires_at(*next);
  lending_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) lend();
  });
}

void Server::tick() {
  const auto now = steady_clock::now();
  // After a stall of our own (SIGSTOP, a frozen host) what clients sent meanwhile waits to be read.
  const bool stalled = now - last_tick_ > 3 * kTick;
  if (stalled) {
    spdlog::warn("kvtierd itself could not run for {} ms",
                 std::chrono::ceil<std::chrono::milliseconds>(now - last_tick_).count());
  }
  last_tick_ = now;
  sessions_->look_after(now, stalled);
  BlockCache& cache = tiers_.cache();
  cache.trim();
  cache.pass_time(1 +
                  static_cast<std::uint32_t>(
                      std::chrono::duration_cast<std::chrono::seconds>(now - started_).count()));
  cache.disk().pass_stamps();
  tiers_.backing().note_write_rates(now);
  scrubber_->tick();
  admin_->end_pins(now);
  cache.expire_hints(now);
  cache.forget_unused_namespaces();
  lending_->make_way();
  if (events_) events_->tick();
  spdlog::default_logger_raw()->flush();  // what nobody had read yet
  tick_timer_.expires_after(kTick);
  tick_timer_.async_wait([this](boost::system::error_code error) {
    if (!error && !stopping_) tick();
  });
}

void Server::stop() {
  if (std::exchange(stopping_, true)) return;
  const Turns::Scope turn(turns_);
  spdlog::info("stopping: {} blocks wait for the disk", tiers_.cache().disk().queued());
  describer_->set_stopping();
  listener_.close();
  tick_timer_.cancel();
  lending_timer_.cancel();
  sessions_->end_all("kvtierd stops");
  stop_.begin(config_.shutdown_timeout);
}

Reloaded Server::reload(const Config& fresh) {
  const Turns::Scope turn(turns_);
  return (*reload_)(fresh);
}

Snapshot Server::snapshot() {
  const Turns::Scope turn(turns_);
  return describer_->for_watchers();
}

void Server::post(std::function<void()> task) {
  asio::post(executor(), std::move(task));
}

void Server::after(std::chrono::milliseconds time, std::function<void()> task) {
  const auto timer = std::make_shared<asio::steady_timer>(executor(), time);
  timer->async_wait([timer, task = std::move(task)](boost::system::error_code error) {
    if (!error) task();
  });
}

}  // namespace kvtier::daemon
