#include "kvtier/client.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>

#include "client/python/errors.h"
#include "client/python/gil.h"
#include "client/python/handles.h"
#include "client/python/log_lines.h"
#include "client/python/module.h"
#include "client/python/prefix.h"

namespace kvtier::python {

namespace nb = nanobind;

namespace {

// A reference that is let go of without Python's lock, since the last one of a client ends threads.
template <class T>
class Reference {
 public:
  Reference(std::shared_ptr<T> to, const char* closed) : to_(std::move(to)), closed_(closed) {}
  Reference(Reference&&) noexcept = default;
  ~Reference() { close(); }

  // Errors: unavailable, after close().
  std::shared_ptr<T> get() const {
    if (!to_) throw Raised{make_error(Errc::unavailable, closed_)};
    return to_;
  }
  bool closed() const noexcept { return to_ == nullptr; }
  void close() noexcept {
    if (auto last = std::move(to_)) without_gil([&] { last.reset(); });
  }
  // f(what it refers to), without Python's lock, and alive until then.
  template <class F>
  auto use(F&& f) const {
    auto held = get();
    const WithoutGil released;
    const auto used = std::move(held);
    return f(*used);
  }

 private:
  std::shared_ptr<T> to_;
  const char* closed_;
};

struct CacheHandle : Reference<Cache> {
  CacheHandle(std::shared_ptr<Cache> cache, std::optional<std::uint32_t> device)
      : Reference(std::move(cache), "this cache was closed"), cuda_device(device) {}
  std::optional<std::uint32_t> cuda_device;
};

struct ClientHandle : Reference<Client> {
  ClientHandle(std::shared_ptr<Client> client, std::optional<std::uint32_t> device,
               std::shared_ptr<LogLines> said)
      : Reference(std::move(client), "this client was closed"),
        cuda_device(device),
        lines(std::move(said)) {}
  ClientHandle(ClientHandle&&) noexcept = default;
  ~ClientHandle() { end(); }

  void end() noexcept {
    close();
    if (lines) lines->end();
  }

  std::optional<std::uint32_t> cuda_device;
  std::shared_ptr<LogLines> lines;  // null: nobody reads them
};

std::chrono::milliseconds milliseconds(double seconds, const char* what) {
  if (!(seconds >= 0 && seconds < 1e6))
    throw Raised{make_error(Errc::invalid, std::string("client option ") + what +
                                               " must be from 0 to 1000000 seconds")};
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

ClientHandle start(std::string socket, std::string name, std::optional<std::uint32_t> cuda_device,
                   std::uint32_t slots_ahead, std::uint32_t write_backs_queued_max,
                   double reconnect_delay_max, bool read_only, bool verify_loads, double slot_wait,
                   std::optional<LogLevel> log_level) {
  auto lines = log_level ? std::make_shared<LogLines>() : nullptr;
  ClientOptions options{
      .cuda_device = cuda_device,
      .socket = std::move(socket),
      .name = std::move(name),
      .slots_ahead = slots_ahead,
      .write_backs_queued_max = write_backs_queued_max,
      .reconnect_delay_max = milliseconds(reconnect_delay_max, "reconnect_delay_max"),
      .read_only = read_only,
      .verify_loads = verify_loads,
      .slot_wait = milliseconds(slot_wait, "slot_wait")};
  if (lines) {
    options.log = [lines](LogLevel level, std::string_view line) { lines->add(level, line); };
    options.log_level = *log_level;
  }
  auto client = without_gil([&] { return Client::start(std::move(options)); });
  return {value(std::move(client)), cuda_device, std::move(lines)};
}

// In the order of the fields of kvtier.Stats.
using Count = std::uint64_t;
using StatsParts = std::tuple<Count, std::array<Count, kTiers>, Count, Count, Count, Count, Count,
                              std::vector<Count>, Count, Count>;

StatsParts stats(const ClientHandle& self) {
  const ClientStats s = self.get()->stats();
  return {s.blocks_looked_up, s.hits,           s.misses,         s.faults,
          s.leases_lost,      s.blocks_written, s.blocks_dropped, counts_of(s.dropped),
          s.deadlines_missed, s.connects};
}

// blocks, of those by tier; what is left is in the remote one.
using Found = std::tuple<std::uint32_t, std::array<std::uint32_t, kTiers>>;

Found match(const CacheHandle& self, const PrefixHandle& prefix) {
  const auto as_it_is = prefix.read();
  const Match found = self.use([&](Cache& cache) { return cache.match(*as_it_is); });
  return {found.blocks, found.per_tier};
}

Found look_up(const CacheHandle& self, const PrefixHandle& prefix, std::optional<double> timeout) {
  const Deadline deadline = deadline_in(timeout);
  const auto as_it_is = prefix.read();
  const Match found = self.use([&](Cache& cache) { return cache.look_up(*as_it_is, deadline); });
  return {found.blocks, found.per_tier};
}

LeaseHandle lease(const CacheHandle& self, const PrefixHandle& prefix, std::uint32_t first,
                  std::uint32_t end, std::optional<double> timeout) {
  const Deadline deadline = deadline_in(timeout);
  const auto as_it_is = prefix.read();
  auto granted = self.use([&](Cache& cache) {
    return cache.lease(*as_it_is, {first, end}, deadline);
  });
  return {value(std::move(granted)), nb::none()};
}

LeaseHandle lease_async(const CacheHandle& self, const PrefixHandle& prefix, std::uint32_t first,
                        std::uint32_t end, std::optional<double> timeout) {
  const Deadline deadline = deadline_in(timeout);
  const auto as_it_is = prefix.read();
  auto asked = self.use([&](Cache& cache) {
    return cache.lease_async(*as_it_is, {first, end}, deadline);
  });
  return {value(std::move(asked)), nb::none()};
}

// Until when a write-back waits for slots; none: as long as the client's option says.
std::optional<Deadline> slots_by(std::optional<double> slot_wait) {
  return slot_wait ? std::optional(deadline_in(*slot_wait)) : std::nullopt;
}

WriteBackHandle write_back(const CacheHandle& self, const PrefixHandle& prefix,
                           std::uint32_t first_block, nb::object pool, nb::handle numbers,
                           std::uintptr_t stream, std::optional<double> slot_wait) {
  const NamedPages named(nb::cast<const PoolHandle&>(pool), numbers, self.cuda_device);
  const auto by = slots_by(slot_wait);
  const auto as_it_is = prefix.read();
  auto writing = self.use([&](Cache& cache) {
    return cache.write_back(*as_it_is, first_block, named.pages(), stream_of(stream), by);
  });
  return {std::move(writing), std::move(pool)};
}

LayerStoreHandle begin_store(const CacheHandle& self, const PrefixHandle& prefix,
                             std::uint32_t first_block, nb::object pool, nb::handle numbers,
                             std::optional<double> slot_wait) {
  const NamedPages named(nb::cast<const PoolHandle&>(pool), numbers, self.cuda_device);
  const auto by = slots_by(slot_wait);
  const auto as_it_is = prefix.read();
  auto begun = self.use(
      [&](Cache& cache) { return cache.begin_store(*as_it_is, first_block, named.pages(), by); });
  return {value(std::move(begun)), std::move(pool)};
}

// Why it is not open; none: it is.
std::optional<ErrorParts> cache_error(const CacheHandle& self) {
  const auto state = self.use([](Cache& cache) { return cache.state(); });
  return state ? std::nullopt : parts_of(state.error());
}

void hint(const CacheHandle& self, const PrefixHandle& prefix, std::uint32_t first,
          std::uint32_t end, HintKind kind, Tier tier, std::uint8_t priority, double keep_for) {
  constexpr double kLongest = std::chrono::duration<double>(kHintKeepMax).count();
  if (!(keep_for >= 0)) throw Raised{make_error(Errc::invalid, "keep_for is less than 0")};
  const std::chrono::seconds keep(std::llround(std::ceil(std::min(keep_for, kLongest))));
  const auto as_it_is = prefix.read();
  value(self.use([&](Cache& cache) {
    return cache.hint(*as_it_is, {first, end}, {kind, tier, priority, keep});
  }));
}

void register_cache(nb::module_& m) {
  nb::enum_<HintKind>(m, "HintKind")
      .value("prefetch", HintKind::prefetch)
      .value("keep", HintKind::keep)
      .value("demote", HintKind::demote)
      .value("ended", HintKind::ended);
  nb::class_<CacheHandle>(m, "Cache")
      .def_ro("cuda_device", &CacheHandle::cuda_device)
      .def("match", &match, nb::arg("prefix"))
      .def("look_up", &look_up, nb::arg("prefix"), nb::arg("timeout").none())
      .def("lease", &lease, nb::arg("prefix"), nb::arg("first"), nb::arg("end"),
           nb::arg("timeout").none())
      .def("write_back", &write_back, nb::arg("prefix"), nb::arg("first_block"), nb::arg("pool"),
           nb::arg("pages"), nb::arg("stream"), nb::arg("slot_wait").none())
      .def("lease_async", &lease_async, nb::arg("prefix"), nb::arg("first"), nb::arg("end"),
           nb::arg("timeout").none())
      .def("begin_store", &begin_store, nb::arg("prefix"), nb::arg("first_block"), nb::arg("pool"),
           nb::arg("pages"), nb::arg("slot_wait").none())
      .def("hint", &hint, nb::arg("prefix"), nb::arg("first"), nb::arg("end"), nb::arg("kind"),
           nb::arg("tier"), nb::arg("priority"), nb::arg("keep_for"))
      .def_prop_ro("error", &cache_error)
      .def(
          "wait_open",
          [](const CacheHandle& self, std::optional<double> timeout) {
            const Deadline deadline = deadline_in(timeout);
            value(self.use([&](Cache& cache) { return cache.wait_open(deadline); }));
          },
          nb::arg("timeout").none())
      .def("close", [](CacheHandle& self) { self.close(); });
}

}  // namespace

void register_client(nb::module_& m) {
  nb::enum_<LogLevel>(m, "LogLevel")
      .value("error", LogLevel::error)
      .value("warning", LogLevel::warning)
      .value("info", LogLevel::info)
      .value("debug", LogLevel::debug);
  register_cache(m);
  nb::class_<LogLines>(m, "LogLines").def("next", [](std::shared_ptr<LogLines> self) {
    return without_gil([&] { return self->next(); });
  });
  nb::class_<ClientHandle>(m, "Client")
      .def(nb::new_(&start), nb::kw_only(), nb::arg("socket"), nb::arg("name"),
           nb::arg("cuda_device").none(), nb::arg("slots_ahead"), nb::arg("write_backs_queued_max"),
           nb::arg("reconnect_delay_max"), nb::arg("read_only"), nb::arg("verify_loads"),
           nb::arg("slot_wait"), nb::arg("log_level").none())
      .def_prop_ro(
          "connected",
          [](const ClientHandle& self) { return !self.closed() && self.get()->connected(); })
      .def(
          "wait_connected",
          [](const ClientHandle& self, std::optional<double> timeout) {
            const Deadline deadline = deadline_in(timeout);
            value(self.use([&](Client& client) { return client.wait_connected(deadline); }));
          },
          nb::arg("timeout").none())
      .def(
          "open",
          [](const ClientHandle& self, const Namespace& ns) {
            auto cache = self.use([&](Client& client) { return client.open(ns); });
            return CacheHandle(value(std::move(cache)), self.cuda_device);
          },
          nb::arg("ns"))
      .def(
          "flush",
          [](const ClientHandle& self, std::optional<double> timeout) {
            const Deadline deadline = deadline_in(timeout);
            value(self.use([&](Client& client) { return client.flush(deadline); }));
          },
          nb::arg("timeout").none())
      .def("stats", &stats)
      .def_prop_ro("lines", [](const ClientHandle& self) { return self.lines; })
      .def("close", [](ClientHandle& self) { self.end(); });
}

}  // namespace kvtier::python
