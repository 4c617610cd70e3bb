#include "storage/remote/redis/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <system_error>
#include <thread>

namespace kvtier::storage {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};

Result<std::vector<SocketAddress>> look_up(const RemoteAddress& server, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int failed =
      ::getaddrinfo(server.host.c_str(), std::to_string(server.port).c_str(), &hints, &list);
  const std::unique_ptr<addrinfo, FreeAddresses> owned(list);
  if (failed != 0) {
    return make_error(Errc::io,
                      "its name cannot be resolved: " + std::string(::gai_strerror(failed)) +
                          "; look at `url` and the name service");
  }
  std::vector<SocketAddress> found;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    SocketAddress address;
    address.length = std::min<socklen_t>(at->ai_addrlen, sizeof address.bytes);
    std::memcpy(&address.bytes, at->ai_addr, address.length);
    found.push_back(address);
  }
  return found;
}

Result<std::vector<SocketAddress>> socket_path(const std::string& path) {
  sockaddr_un un{};
  un.sun_family = AF_UNIX;
  if (path.size() >= sizeof un.sun_path)
    return make_error(Errc::io, "the path of its socket is longer than 107 bytes");
  std::copy(path.begin(), path.end(), un.sun_path);
  SocketAddress address;
  address.length = sizeof un;
  std::memcpy(&address.bytes, &un, sizeof un);
  return std::vector{address};
}

}  // namespace

void find_addresses(const RemoteAddress& server, const FoundAddresses& found) {
  if (server.is_socket()) return found(socket_path(server.host));
  if (auto numeric = look_up(server, AI_NUMERICHOST); numeric) return found(std::move(numeric));
  // Nobody waits for it: a name service may take a minute to give up.
  try {
    std::thread([server, found] { found(look_up(server, 0)); }).detach();
  } catch (const std::system_error& failed) {
    found(make_error(Errc::io, std::string("no thread for the name service: ") + failed.what()));
  }
}

Result<RedisSocket> RedisSocket::connect(const SocketAddress& to, SSL_CTX* tls, std::string host) {
  RedisSocket made;
  made.context_ = tls;
  made.host_ = std::move(host);
  const int family = to.bytes.ss_family;
  made.fd_.reset(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.fd_) return errno_error(Errc::io, "no socket");
  if (family != AF_UNIX) {
    const int on = 1;
    ::setsockopt(made.fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  const auto* const address = reinterpret_cast<const sockaddr*>(&to.bytes);
  if (::connect(made.fd_.get(), address, to.length) != 0 && errno != EINPROGRESS) {
    return errno_error(Errc::io, errno == EAGAIN ? "it has no room for another connection"
                                                 : "cannot be connected to");
  }
  return made;
}

Result<bool> RedisSocket::advance() {
  if (ready_) return true;
  if (!connected_) {
    pollfd poll{fd_.get(), POLLOUT, 0};
    if (::poll(&poll, 1, 0) == 0) return false;
    int failed = 0;
    socklen_t size = sizeof failed;
    ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &failed, &size);
    if (failed != 0) return errno_error(Errc::io, "cannot be connected to", failed);
    connected_ = true;
    if (context_ != nullptr) {
      auto begun = begin_tls(*context_, fd_.get(), host_);
      if (!begun) return begun.error();
      tls_ = std::move(*begun);
    }
  }
  if (tls_) {
    ::ERR_clear_error();
    const int done = ::SSL_do_handshake(tls_.get());
    const auto shaken = moved(done, writing_wants_, "TLS handshake");
    if (!shaken) return shaken.error();
    if (*shaken == 0) return false;
  }
  ready_ = true;
  return true;
}

// `bytes` is what a call of OpenSSL's returned just now.
Result<std::size_t> RedisSocket::moved(int bytes, Wants& wants, const char* doing) {
  wants = Wants::nothing;
  if (bytes > 0) return static_cast<std::size_t>(bytes);
  switch (::SSL_get_error(tls_.get(), bytes)) {
    case SSL_ERROR_WANT_READ:
      wants = Wants::input;
      return std::size_t{0};
    case SSL_ERROR_WANT_WRITE:
      wants = Wants::output;
      return std::size_t{0};
    case SSL_ERROR_ZERO_RETURN:
      return make_error(Errc::unavailable, "it closed the connection");
    default:
      return make_error(Errc::io, std::string(doing) + " failed: " +
                                      tls_failure(tls_.get(), "it closed the connection"));
  }
}

Result<std::size_t> RedisSocket::receive(std::span<const iovec> into) {
  if (tls_) {
    ::ERR_clear_error();
    const int bytes = ::SSL_read(tls_.get(), into[0].iov_base,
                                 static_cast<int>(std::min<std::size_t>(into[0].iov_len, INT_MAX)));
    return moved(bytes, reading_wants_, "TLS");
  }
  const ssize_t bytes = ::readv(fd_.get(), into.data(), static_cast<int>(into.size()));
  if (bytes > 0) return static_cast<std::size_t>(bytes);
  if (bytes == 0) return make_error(Errc::unavailable, "it closed the connection");
  if (errno == EAGAIN || errno == EINTR) return std::size_t{0};
  return errno_error(Errc::io, "the connection ended");
}

Result<std::size_t> RedisSocket::send(std::span<const iovec> from) {
  if (tls_) {
    ::ERR_clear_error();
    const int bytes =
        ::SSL_write(tls_.get(), from[0].iov_base,
                    static_cast<int>(std::min<std::size_t>(from[0].iov_len, INT_MAX)));
    return moved(bytes, writing_wants_, "TLS");
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(from.data());
  message.msg_iovlen = from.size();
  const ssize_t bytes = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  if (bytes >= 0) return static_cast<std::size_t>(bytes);
  if (errno == EAGAIN || errno == EINTR) return std::size_t{0};
  return errno_error(Errc::io, "the connection ended");
}

short RedisSocket::wanted(bool to_send) const noexcept {
  if (!connected_) return POLLOUT;
  short events = POLLIN;
  const bool sends = (ready_ && to_send && writing_wants_ != Wants::input) ||
                     writing_wants_ == Wants::output || reading_wants_ == Wants::output;
  if (sends) events |= POLLOUT;
  return events;
}

bool RedisSocket::has_more() const noexcept {
  return tls_ && ::SSL_pending(tls_.get()) > 0;
}

}  // namespace kvtier::storage
