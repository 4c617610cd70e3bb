// What measuring a client on a GPU begins with: a daemon, a client of it, and one plain copy over
// the same link.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <string>

#include "bench/support/daemon_child.h"
#include "bench/support/records.h"
#include "core/base/units.h"
#include "kernels/cuda/memory.h"
#include "kvtier/client.h"

namespace kvtier::bench {

inline Deadline soon() {
  return Clock::now() + std::chrono::seconds(60);
}

// One cudaMemcpyAsync of memory that the daemon's extents are of, in bytes per second.
class PlainCopy {
 public:
  PlainCopy() : host_(kBytes), device_(kBytes) { std::memset(host_.host(), 1, kBytes); }
  double run(cudaMemcpyKind kind) {
    void* to = kind == cudaMemcpyHostToDevice ? device_.get() : host_.host();
    const void* from = kind == cudaMemcpyHostToDevice ? host_.host() : device_.get();
    const auto begin = Clock::now();
    kernels::cuda::check(cudaMemcpyAsync(to, from, kBytes, kind, nullptr), "cudaMemcpyAsync");
    kernels::cuda::check(cudaStreamSynchronize(nullptr), "cudaMemcpyAsync");
    return static_cast<double>(kBytes) / seconds_since(begin);
  }

 private:
  static constexpr std::size_t kBytes = 1_GiB;
  kernels::cuda::PinnedMemfd host_;
  kernels::cuda::DeviceArray<std::byte> device_;
};

struct ClientSetup {
  std::string kvtierd;
  std::filesystem::path directory;
  std::uint32_t device = 0;
  std::uint32_t slots_ahead = 1024;
};

// A daemon of its own, a client and its cache for `ns`. Throws std::runtime_error.
struct ClientOfDaemon {
  ClientOfDaemon(const ClientSetup& setup, const DaemonChild::Options& daemon, const Namespace& ns)
      : child(setup.kvtierd, setup.directory, daemon) {
    ClientOptions options;
    options.cuda_device = setup.device;
    options.socket = child.socket();
    options.slots_ahead = setup.slots_ahead;
    options.write_backs_queued_max = setup.slots_ahead;
    client = need(Client::start(std::move(options)));
    cache = need(client->open(ns));
    need(client->wait_connected(soon()));
    need(client->flush(soon()));
  }
  DaemonChild child;
  std::shared_ptr<Client> client;
  std::shared_ptr<Cache> cache;
};

}  // namespace kvtier::bench
