// Leases, loads and write-backs, as Python holds them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "client/python/pool.h"
#include "kvtier/client.h"

namespace kvtier::python {

// One of the C++ handles, and the pool whose pages it reads or writes, which stays until it is
// done. Whoever calls it holds a reference, so nothing here ends under a call.
template <class Handle>
class Held {
 public:
  Held(Handle handle, nanobind::object keep)
      : handle_(std::make_unique<Handle>(std::move(handle))), keep_(std::move(keep)) {}
  Held(Held&&) noexcept = default;
  ~Held();

  // Without Python's lock: f(handle), by one thread at a time.
  template <class F>
  auto alone(F&& f);
  // For the functions that any thread may call.
  Handle& get() const noexcept { return *handle_; }

 private:
  std::unique_ptr<Handle> handle_;
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  nanobind::object keep_;
};

using LeaseHandle = Held<Lease>;
using LoadHandle = Held<Load>;
using WriteBackHandle = Held<WriteBack>;

// Of the blocks of a layer store; empty once it was committed or abandoned.
class LayerStoreHandle {
 public:
  LayerStoreHandle(LayerStore store, nanobind::object pool)
      : store_(std::make_unique<std::optional<LayerStore>>(std::move(store))),
        pool_(std::move(pool)) {}
  LayerStoreHandle(LayerStoreHandle&&) noexcept = default;
  ~LayerStoreHandle();

  std::uint32_t blocks();
  void layer(std::uint32_t layer, std::uintptr_t stream);
  WriteBackHandle commit();
  void abandon();

 private:
  template <class F>
  auto alone(F&& f);

  std::unique_ptr<std::optional<LayerStore>> store_;
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  nanobind::object pool_;
};

// An error as Python's: (name of its code, message).
using ErrorParts = std::tuple<std::string, std::string>;
std::optional<ErrorParts> parts_of(const std::optional<Error>& error);
// By reason, in the order of DropReason.
std::vector<std::uint64_t> counts_of(const Drops& drops);

// Pages of a pool for one call. Errors: invalid, where the pool lies elsewhere than the client's
// pages do.
class NamedPages {
 public:
  NamedPages(const PoolHandle& pool, nanobind::handle numbers,
             std::optional<std::uint32_t> cuda_device);

  Pages pages() const noexcept { return {.pool = pool_.get(), .numbers = numbers_}; }

 private:
  std::shared_ptr<const PagePool> pool_;
  std::vector<std::uint32_t> numbers_;
};

// Of the number that a stream has in C (0: the default stream, or none).
StreamView stream_of(std::uintptr_t stream) noexcept;

}  // namespace kvtier::python
