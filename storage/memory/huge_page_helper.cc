#include "storage/memory/huge_page_helper.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <span>

#include "core/base/thread_priority.h"
#include "core/base/units.h"

namespace kvtier::storage {
namespace {

// Between pieces the process looks whether it is still wanted. Each costs a flush of all
// processors' page lists, which can take a tenth of a second.
constexpr std::uint64_t kHelpedBytes = 1_GiB;

using Count = std::atomic<std::uint64_t>;
static_assert(Count::is_always_lock_free);

union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

// What is below runs in a process that was forked from one with threads: system calls alone.

struct Request {
  UniqueFd memory;
  std::uint64_t bytes = 0;
};

// What was given and not begun, the oldest first.
struct Queue {
  std::array<Request, HugePageHelper::kQueuedMax> requests;
  std::size_t count = 0;

  void add(Request request) {
    if (count < requests.size()) requests[count++] = std::move(request);
  }
  Request pop() {
    Request first = std::move(requests.front());
    std::move(requests.begin() + 1, requests.begin() + static_cast<std::ptrdiff_t>(count),
              requests.begin());
    --count;
    return first;
  }
  void clear() {
    while (count > 0) requests[--count] = {};
  }
};

// False when the daemon has gone.
bool receive(int socket, Request& request) {
  iovec bytes{&request.bytes, sizeof request.bytes};
  Control control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) return false;
  const cmsghdr* sent = CMSG_FIRSTHDR(&message);
  int fd = -1;
  if (sent != nullptr && sent->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&fd, CMSG_DATA(sent), sizeof fd);
  }
  request.memory = UniqueFd(fd);
  return true;
}

bool something_new(int socket) {
  pollfd fd{socket, POLLIN, 0};
  return ::poll(&fd, 1, 0) != 0;
}

enum class Heard { nothing, stop, gone };

// Waits for a message only where nothing is queued.
Heard listen(int socket, Queue& queue) {
  Heard heard = Heard::nothing;
  while (queue.count == 0 || something_new(socket)) {
    Request request;
    if (!receive(socket, request)) return Heard::gone;
    if (request.memory) {
      queue.add(std::move(request));
    } else {
      queue.clear();
      heard = Heard::stop;
      if (!something_new(socket)) break;
    }
  }
  return heard;
}

enum class Given { all, no, stopped, gone };

Given give_pages(const Request& request, int socket, Queue& queue) {
  auto mapping = Mapping::map(request.memory.get(), request.bytes, Mapping::Access::read_write);
  if (!mapping) return Given::no;
  for (std::uint64_t at = 0; at < request.bytes; at += kHelpedBytes) {
    if (something_new(socket)) {
      const Heard heard = listen(socket, queue);
      if (heard != Heard::nothing) return heard == Heard::gone ? Given::gone : Given::stopped;
    }
    fill_with_huge_pages(mapping->bytes().subspan(at, std::min(kHelpedBytes, request.bytes - at)));
  }
  return Given::all;
}

[[noreturn]] void serve(int socket, Count& finished) {
  // No signal handler of the daemon's, and none of its descriptors.
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::prctl(PR_SET_NAME, "kvtierd-pages");
  yield_to_others();  // pages ahead of their need; a lease is somebody's need now
  constexpr int kSocket = 3;
  if (socket != kSocket) ::dup2(socket, kSocket);
  ::syscall(SYS_close_range, kSocket + 1, ~0U, 0);
  Queue queue;
  for (Given given = Given::no; given != Given::gone;) {
    if (listen(kSocket, queue) == Heard::gone) break;
    if (queue.count == 0) continue;
    given = give_pages(queue.pop(), kSocket, queue);
    if (given == Given::all) finished.fetch_add(1);
  }
  ::_exit(0);
}

}  // namespace

HugePageHelper::HugePageHelper() {
  auto memory = make_memfd("kvtier-pages", 4096);
  if (!memory) return;
  auto shared = Mapping::map(memory->get(), 4096, Mapping::Access::read_write);
  int pair[2];
  if (!shared || ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return;
  UniqueFd ours(pair[0]);
  const UniqueFd theirs(pair[1]);
  auto* finished = new (shared->bytes().data()) Count(0);
  // A signal must not find the daemon's handlers in the other process.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t child = ::fork();
  if (child == 0) {
    // Nobody's child, so that nobody has to wait for its end.
    if (::fork() == 0) serve(theirs.get(), *finished);
    ::_exit(0);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) return;
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  socket_ = std::move(ours);
  shared_ = std::move(*shared);
}

void HugePageHelper::give(int memory, std::uint64_t bytes) noexcept {
  if (!socket_) return;
  iovec text{&bytes, sizeof bytes};
  Control control{};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  if (memory >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof memory);
    std::memcpy(CMSG_DATA(&control.header), &memory, sizeof memory);
  }
  // Where it is not taken, pages come on first use.
  (void)::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

std::uint64_t HugePageHelper::finished() const noexcept {
  if (!shared_) return 0;
  return std::launder(reinterpret_cast<const Count*>(shared_.bytes().data()))->load();
}

}  // namespace kvtier::storage
