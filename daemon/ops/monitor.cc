#include "daemon/ops/monitor.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/base/shown.h"
#include "core/base/thread_priority.h"
#include "daemon/config/listen_address.h"
#include "daemon/ops/status_page.h"

namespace kvtier::daemon::ops {

namespace asio = boost::asio;
using std::chrono::steady_clock;

namespace {

std::int64_t seconds_since_epoch(std::chrono::system_clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::seconds>(at.time_since_epoch()).count();
}

HttpReply text(unsigned status, const std::string& line) {
  HttpReply reply;
  reply.status = status;
  reply.body = line + "\n";
  return reply;
}

std::string seconds_of(steady_clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

// The page's script and style are allowed by a number that is new each time: nothing else can run.
HttpReply page() {
  std::array<std::byte, 16> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return text(500, "no random bytes");
  const std::string nonce = to_hex(bytes);
  HttpReply reply;
  reply.type = "text/html; charset=utf-8";
  reply.content_policy = "default-src 'none'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" +
                         nonce +
                         "'; connect-src 'self'; img-src data:; base-uri 'none'; "
                         "form-action 'none'; frame-ancestors 'none'";
  reply.body = kStatusPage;
  constexpr std::string_view kPlace = "@NONCE@";
  for (std::size_t at = 0; (at = reply.body.find(kPlace, at)) != std::string::npos;)
    reply.body.replace(at, kPlace.size(), nonce);
  return reply;
}

}  // namespace

Monitor::Monitor(const Config::Http& config, asio::io_context& control, Take take,
                 Problems problems)
    : config_(config),
      control_(control),
      take_(std::move(take)),
      problems_(std::move(problems)),
      server_(io_, config.hosts,
              [this](const std::string& path, const std::function<void(HttpReply)>& reply) {
                answer(path, reply);
              }) {}

Monitor::~Monitor() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
}

void Monitor::start() {
  if (config_.listen.empty()) return;
  const auto at = parse_listen(config_.listen).value();  // the configuration has been checked
  if (!at.address().is_loopback()) {
    spdlog::warn(
        "http: {} can be reached from other hosts: whoever reaches it reads the names of "
        "models and sessions; [http] listen = \"127.0.0.1:9470\" is for this host alone",
        to_string(at));
  }
  if (auto good = server_.listen(at); !good) {
    spdlog::warn(
        "http: cannot listen on {}: {}; tried again every {} s. Set [http] listen to a "
        "free address, or to \"\" for none",
        to_string(at), good.error().message, kListenAgain.count());
  } else {
    address_ = server_.address();
    spdlog::info("http: listening on {}", to_string(address_));
  }
  next_listen_ = steady_clock::now() + kListenAgain;
  thread_ = std::thread([this] {
    yield_to_others();
    turn();
    io_.run();
  });
}

asio::ip::tcp::endpoint Monitor::address() const {
  const std::lock_guard lock(address_mutex_);
  return address_;
}

void Monitor::turn() {
  const auto now = steady_clock::now();
  if (!server_.listening() && now >= next_listen_) listen();
  if (!pinged_ && now - last_ping_ >= kPingEvery) ping(now);
  expire(now);
  if (!asking_ && !waiting_.empty()) ask(now);
  if (loaded_ && now >= next_point_) {
    next_point_ = now + kHistoryEvery;
    with_snapshot([this](const Latest& latest) {
      if (latest) history_.add(seconds_since_epoch(std::chrono::system_clock::now()), *latest);
    });
  }
  timer_.expires_after(kTurn);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) turn();
  });
}

void Monitor::listen() {
  next_listen_ = steady_clock::now() + kListenAgain;
  if (!server_.listen(parse_listen(config_.listen).value())) return;
  const std::lock_guard lock(address_mutex_);
  address_ = server_.address();
}

void Monitor::ping(Time now) {
  pinged_ = last_ping_ = now;
  asio::post(control_, [this, now] {
    const auto ran = steady_clock::now();
    asio::post(io_, [this, now, ran] { ponged(now, ran); });
  });
}

void Monitor::ponged(Time sent, Time ran) {
  pinged_.reset();
  // What the first one waited for was the loading.
  if (std::exchange(loaded_, true)) lag_.add(ran, ran - sent);
}

void Monitor::with_snapshot(Use use) {
  const auto now = steady_clock::now();
  waiting_.push_back({std::move(use), now + kSnapshotTime});
  if (!asking_) ask(now);
}

// Whoever comes while a request is under way waits for the next: its snapshot may be older than
// they are.
void Monitor::ask(Time now) {
  if (!loaded_) return;  // turn() will, once it is
  if (const auto next = last_asked_ + kSnapshotEvery; now < next) {
    if (std::exchange(soon_waits_, true)) return;
    soon_.expires_at(next);
    return soon_.async_wait([this](boost::system::error_code error) {
      soon_waits_ = false;
      if (!error && !asking_ && !waiting_.empty()) ask(steady_clock::now());
    });
  }
  asking_ = true;
  last_asked_ = now;
  asked_.insert(asked_.end(), std::make_move_iterator(waiting_.begin()),
                std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  asio::post(control_, [this] {
    auto snapshot = std::make_shared<const Snapshot>(take_());
    const auto taken = steady_clock::now();
    asio::post(io_, [this, snapshot = std::move(snapshot), taken]() mutable {
      arrived(std::move(snapshot), taken);
    });
  });
}

void Monitor::arrived(Latest snapshot, Time taken) {
  asking_ = false;
  latest_ = std::move(snapshot);
  taken_ = taken;
  for (const Waiting& waiting : std::exchange(asked_, {})) waiting.use(latest_);
  if (!waiting_.empty()) ask(steady_clock::now());
}

void Monitor::expire(Time now) {
  std::vector<Waiting> late;
  for (auto* list : {&asked_, &waiting_}) {
    const auto in_time = std::stable_partition(
        list->begin(), list->end(), [&](const Waiting& waiting) { return now < waiting.until; });
    late.insert(late.end(), std::make_move_iterator(in_time), std::make_move_iterator(list->end()));
    list->erase(in_time, list->end());
  }
  for (const Waiting& waiting : late) waiting.use(latest_);
}

std::optional<std::string> Monitor::sick(const Latest& latest) const {
  const auto now = steady_clock::now();
  if (loaded_ && pinged_ && now - *pinged_ >= config_.stall_after)
    return "the control loop has not turned for " + seconds_of(now - *pinged_);
  if (!latest) return std::nullopt;
  for (const auto& disk : latest->disks) {
    if (disk.stuck_for >= kDiskStuckAfter)
      return "the disk thread of " + shown(disk.directory, kTextMax) + " has not moved for " +
             seconds_of(disk.stuck_for);
  }
  return std::nullopt;
}

void Monitor::answer(const std::string& path, const std::function<void(HttpReply)>& reply) {
  if (path == "/") return reply(page());
  if (path == "/healthz") {
    // What is known already is said at once.
    if (const auto why = sick(latest_)) return reply(text(503, *why));
    if (!loaded_) return reply(text(200, "loading"));
    return with_snapshot([this, reply](const Latest& latest) {
      const auto why = sick(latest);
      reply(why ? text(503, *why) : text(200, "ok"));
    });
  }
  const bool known = path == "/metrics" || path == "/status" || path == "/readyz";
  if (!known) {
    return reply(text(404, "there are /, /metrics, /healthz, /readyz and /status"));
  }
  if (!loaded_) return reply(text(503, "loading"));
  with_snapshot([this, path, reply](const Latest& latest) {
    if (!latest) return reply(text(503, "the control loop has not answered yet"));
    if (path == "/readyz") {
      if (latest->stopping) return reply(text(503, "stopping"));
      const auto why = sick(latest);
      return reply(why ? text(503, *why) : text(200, "ready"));
    }
    HttpReply served;
    if (path == "/metrics") {
      served.type = "text/plain; version=0.0.4; charset=utf-8";
      served.body = metrics_text(scrape(latest));
    } else {
      served.type = "application/json";
      served.body = status_json(scrape(latest));
    }
    reply(std::move(served));
  });
}

Scrape Monitor::scrape(Latest latest) {
  Scrape s;
  s.sick = sick(latest);
  s.ready = loaded_ && !latest->stopping && !s.sick;
  s.age = steady_clock::now() - taken_;
  s.snapshot = std::move(latest);
  s.lag = lag_;
  s.http = server_.counts();
  s.process = process_stats();
  s.history = history_.points();
  if (!problems_) return s;
  for (const auto& line : problems_->last_raw(kProblemsMax)) {
    const auto level = spdlog::level::to_string_view(line.level);
    s.problems.push_back({seconds_since_epoch(line.time),
                          {level.data(), level.size()},
                          shown({line.payload.data(), line.payload.size()}, 4 * kTextMax)});
  }
  return s;
}

}  // namespace kvtier::daemon::ops
