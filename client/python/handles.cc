#include "client/python/handles.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>

#include "client/python/errors.h"
#include "client/python/gil.h"
#include "client/python/module.h"
#include "client/python/numbers.h"

namespace kvtier::python {

namespace nb = nanobind;

template <class Handle>
Held<Handle>::~Held() {
  if (handle_) without_gil([&] { handle_.reset(); });
}

template <class Handle>
template <class F>
auto Held<Handle>::alone(F&& f) {
  const WithoutGil released;
  const std::lock_guard lock(*mutex_);
  return f(*handle_);
}

template class Held<Lease>;
template class Held<Load>;
template class Held<WriteBack>;

NamedPages::NamedPages(const PoolHandle& pool, nb::handle numbers,
                       std::optional<std::uint32_t> cuda_device)
    : pool_(pool.pool), numbers_(numbers_of(numbers, "page")) {
  if (pool.cuda_device == cuda_device) return;
  const auto place = [](std::optional<std::uint32_t> device) {
    return device ? "on CUDA device " + std::to_string(*device) : std::string("in host memory");
  };
  throw Raised{make_error(Errc::invalid, "the pool is " + place(pool.cuda_device) +
                                             ", and the client's pages are " + place(cuda_device) +
                                             " (Client(cuda_device=...))")};
}

LayerStoreHandle::~LayerStoreHandle() {
  if (store_) without_gil([&] { store_.reset(); });
}

// The value of f(store), which is a Result: by one thread at a time, without Python's lock. Errors:
// stale, where it is empty.
template <class F>
auto LayerStoreHandle::alone(F&& f) {
  return value(without_gil([&]() -> decltype(f(**store_)) {
    const std::lock_guard lock(*mutex_);
    if (!*store_) return make_error(Errc::stale, "this store was committed or abandoned before");
    return f(**store_);
  }));
}

std::uint32_t LayerStoreHandle::blocks() {
  return alone([](LayerStore& store) { return Result<std::uint32_t>(store.blocks()); });
}

void LayerStoreHandle::layer(std::uint32_t layer, std::uintptr_t stream) {
  alone([&](LayerStore& store) { return store.layer(layer, stream_of(stream)); });
}

WriteBackHandle LayerStoreHandle::commit() {
  WriteBack writing = alone([&](LayerStore& store) {
    Result<WriteBack> committed(store.commit());
    store_->reset();
    return committed;
  });
  return {std::move(writing), pool_};
}

void LayerStoreHandle::abandon() {
  without_gil([&] {
    const std::lock_guard lock(*mutex_);
    store_->reset();
  });
}

std::optional<ErrorParts> parts_of(const std::optional<Error>& error) {
  if (!error) return std::nullopt;
  return ErrorParts(name(error->code), error->message);
}

std::vector<std::uint64_t> counts_of(const Drops& drops) {
  return {drops.blocks.begin(), drops.blocks.end()};
}

StreamView stream_of(std::uintptr_t stream) noexcept {
  return StreamView(reinterpret_cast<CUstream_st*>(stream));
}

namespace {

// block, name of the error's code, message.
using Fault = std::tuple<std::uint32_t, std::string, std::string>;

std::vector<Fault> faults_of(Load& load) {
  std::vector<Fault> faults;
  for (const BlockFault& fault : load.faults())
    faults.emplace_back(fault.block, name(fault.error.code), fault.error.message);
  return faults;
}

LoadHandle load(LeaseHandle& lease, nb::object pool, nb::handle numbers, std::uintptr_t stream,
                std::optional<std::uint32_t> cuda_device) {
  const NamedPages named(nb::cast<const PoolHandle&>(pool), numbers, cuda_device);
  auto loading =
      lease.alone([&](Lease& l) { return l.load_into(named.pages(), stream_of(stream)); });
  return {value(std::move(loading)), std::move(pool)};
}

void register_lease(nb::module_& m) {
  nb::class_<LeaseHandle>(m, "Lease")
      .def_prop_ro("blocks", [](LeaseHandle& self) { return self.get().blocks(); })
      .def(
          "source",
          [](LeaseHandle& self, std::uint32_t block) {
            if (block >= self.get().blocks()) throw nb::index_error("no such block in the lease");
            return self.get().source(block);
          },
          nb::arg("block"))
      .def(
          "wait",
          [](LeaseHandle& self, std::optional<double> timeout) {
            const Deadline deadline = deadline_in(timeout);
            // By its descriptor, whose wait a signal interrupts; where there is none left, without.
            const Result<int> event = self.alone([](Lease& l) { return l.event_fd(); });
            if (event) (void)wait_readable(*event, deadline);
            return without_gil([&] { return self.get().wait_ready(deadline); });
          },
          nb::arg("timeout").none())
      .def_prop_ro("settled", [](LeaseHandle& self) { return self.get().settled_at().has_value(); })
      .def_prop_ro("state", [](LeaseHandle& self) { return self.get().state(); })
      .def_prop_ro("error", [](LeaseHandle& self) { return parts_of(self.get().error()); })
      .def("fileno",
           [](LeaseHandle& self) {
             return value(self.alone([](Lease& l) { return l.event_fd(); }));
           })
      .def_prop_ro("held", [](LeaseHandle& self) { return self.get().held(); })
      .def("load", &load, nb::arg("pool"), nb::arg("pages"), nb::arg("stream"),
           nb::arg("cuda_device").none())
      .def("release", [](LeaseHandle& self) { self.alone([](Lease& l) { l.release(); }); });
}

void register_load(nb::module_& m) {
  nb::class_<LoadHandle>(m, "Load")
      .def_prop_ro("blocks", [](LoadHandle& self) { return self.get().blocks(); })
      .def_prop_ro("faults", [](LoadHandle& self) { return self.alone(faults_of); })
      .def(
          "wait_layer",
          [](LoadHandle& self, std::uint32_t layer, std::uintptr_t stream) {
            self.alone([&](Load& l) { l.wait_layer(layer, stream_of(stream)); });
          },
          nb::arg("layer"), nb::arg("stream"))
      .def_prop_ro("ended", [](LoadHandle& self) { return self.get().ended(); })
      .def(
          "wait",
          [](LoadHandle& self, std::optional<double> timeout) {
            const Deadline deadline = deadline_in(timeout);
            return without_gil([&] { return self.get().wait(deadline); });
          },
          nb::arg("timeout").none())
      .def("finish",
           [](LoadHandle& self) { return self.alone([](Load& l) { return l.finish(); }); });
}

void register_write_back(nb::module_& m) {
  nb::class_<WriteBackHandle>(m, "WriteBack")
      .def("wait", [](WriteBackHandle& self) { self.alone([](WriteBack& w) { w.wait(); }); })
      .def(
          "wait_until",
          [](WriteBackHandle& self, double timeout) {
            const Deadline deadline = deadline_in(timeout);
            return without_gil([&] { return self.get().wait(deadline); });
          },
          nb::arg("timeout"))
      .def("hurry", [](WriteBackHandle& self) { self.get().hurry(); })
      .def_prop_ro("ended", [](WriteBackHandle& self) { return self.get().ended(); })
      .def_prop_ro("accepted", [](WriteBackHandle& self) { return self.get().accepted(); })
      .def_prop_ro("cached", [](WriteBackHandle& self) { return self.get().cached(); })
      .def_prop_ro("dropped", [](WriteBackHandle& self) { return counts_of(self.get().dropped()); })
      .def_prop_ro("error", [](WriteBackHandle& self) {
        return parts_of(self.alone([](WriteBack& w) { return w.error(); }));
      });
  nb::class_<LayerStoreHandle>(m, "LayerStore")
      .def_prop_ro("blocks", &LayerStoreHandle::blocks)
      .def("layer", &LayerStoreHandle::layer, nb::arg("layer"), nb::arg("stream"))
      .def("commit", &LayerStoreHandle::commit)
      .def("abandon", &LayerStoreHandle::abandon);
}

}  // namespace

void register_handles(nb::module_& m) {
  nb::enum_<Tier>(m, "Tier")
      .value("device", Tier::device)
      .value("host", Tier::host)
      .value("disk", Tier::disk)
      .value("remote", Tier::remote);
  nb::enum_<LeaseState>(m, "LeaseState")
      .value("asked", LeaseState::asked)
      .value("arriving", LeaseState::arriving)
      .value("settled", LeaseState::settled)
      .value("lost", LeaseState::lost);
  register_lease(m);
  register_load(m);
  register_write_back(m);
}

}  // namespace kvtier::python
