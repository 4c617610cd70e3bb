// What is behind RemoteFront: the part of a remote store that moves bytes on threads of its own.
//
// The control thread calls; each call returns at once. What is asked is answered exactly once,
// through Answers, on the control thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/remote/remote_store.h"

namespace kvtier::storage {

struct RemoteCounters {
  std::atomic<std::uint64_t> corrupt = 0, late = 0, memory_faults = 0;
  std::atomic<std::uint32_t> connections = 0;
};

// How a backend's threads reach the control thread.
struct RemoteShared {
  RemoteStore::Post post;
  RemoteCounters counters;
  // On the control thread, for post.
  std::function<void(RemoteState, std::string)> changed;
};

class RemoteBackend {
 public:
  virtual ~RemoteBackend() = default;

  struct Find {
    std::vector<Key> keys;
    Deadline deadline;
    RemoteStore::Done<std::size_t> done;
  };
  struct Read {
    NamespaceId ns;
    Key key;
    std::span<std::byte> memory;  // shared; its size is the record's
    Deadline deadline;
    RemoteStore::Done<void> done;
  };
  struct Write {
    BlockIdentity identity;
    std::span<const std::byte> memory;  // shared
    RemoteStore::Done<void> done;
  };
  struct Erase {
    std::vector<Key> keys;
    std::function<void(std::vector<Key> failed)> done;
  };

  virtual void find(Find find) = 0;
  virtual void read(Read read) = 0;
  virtual void write(Write write) = 0;
  virtual void erase(Erase erase) = 0;
  virtual void close() = 0;
};

inline Error remote_late() {
  return make_error(Errc::deadline, "the remote store did not answer in time");
}
inline Error remote_closing() {
  return make_error(Errc::unavailable, "the remote store is closed");
}

}  // namespace kvtier::storage
