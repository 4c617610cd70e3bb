// Learns when a client's process has ended, by pidfd, so that slots it may still have been writing
// can be used again. Lives on the control thread.
#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <map>
#include <memory>

#include "daemon/cache/loans/reservations.h"
#include "daemon/peers/peer.h"
#include "kvtier/result.h"

namespace kvtier::daemon {

class ProcessWatch {
 public:
  ProcessWatch(boost::asio::any_io_executor control, std::function<void(ProcessId)> ended)
      : control_(std::move(control)), ended_(std::move(ended)) {}

  // Names the peer's process and watches it until it ends. One in a PID namespace that the daemon
  // cannot see into (a container beside the daemon's) has no pid here: pid 0, and what names it in
  // place of a start time. Errors: io (it is gone), refused (it is in such a namespace, and the
  // kernel is too old to watch it there).
  Result<ProcessId> watch(const Peer& peer);
  // The same of a process that is visible from here.
  Result<ProcessId> watch(pid_t pid);
  // Of a process whose end is of no interest any more: each watch takes a descriptor.
  void forget(ProcessId process) { watched_.erase({process.pid, process.start_time}); }
  std::size_t watched() const noexcept { return watched_.size(); }

 private:
  void wait_for(ProcessId process, UniqueFd fd);
  boost::asio::any_io_executor control_;
  std::function<void(ProcessId)> ended_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, boost::asio::posix::stream_descriptor> watched_;
};

// Field 22 of /proc/PID/stat: clock ticks from the host's boot to the start of the process. Errors:
// io.
Result<std::uint64_t> start_time_of(pid_t pid);

}  // namespace kvtier::daemon
