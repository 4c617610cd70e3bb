#include "engine_adapter/reference/server/client_watch.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <string_view>

#include "engine_adapter/reference/server/limits.h"

namespace kvtier::engine::server {

using tcp = boost::asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::string_view kProbe = "HTTP/1.1 100 Continue\r\n\r\n";

bool is_reset(int socket) noexcept {
  pollfd state{socket, 0, 0};
  return ::poll(&state, 1, 0) == 1 && (state.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

ClientWatch::ClientWatch(std::shared_ptr<boost::beast::tcp_stream> stream, bool may_probe)
    : stream_(std::move(stream)), timer_(stream_->get_executor()), may_probe_(may_probe) {}

void ClientWatch::begin(std::shared_ptr<Exchange> exchange) {
  exchange_ = std::move(exchange);
  await_input();
}

void ClientWatch::stop_probing() {
  may_probe_ = false;
  timer_.cancel();
}

void ClientWatch::end() {
  if (!exchange_) return;
  exchange_.reset();
  timer_.cancel();
  error_code ignored;
  stream_->socket().cancel(ignored);
}

void ClientWatch::gone() {
  if (exchange_) exchange_->abandon();
}

// The socket becomes readable when the client ends its side, or sends its next request early; of
// the latter nothing is read yet.
void ClientWatch::await_input() {
  stream_->socket().async_wait(
      tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
        if (error || !self->exchange_) return;
        char byte;
        const ssize_t got =
            ::recv(self->stream_->socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))) return;
        if (got < 0) return self->gone();
        self->await_reset();
        self->probe(kProbeAfter);
      });
}

void ClientWatch::await_reset() {
  stream_->socket().async_wait(tcp::socket::wait_error,
                               [self = shared_from_this()](error_code error) {
                                 if (error || !self->exchange_) return;
                                 if (is_reset(self->stream_->socket().native_handle()))
                                   self->gone();
                               });
}

void ClientWatch::probe(std::chrono::milliseconds after) {
  if (!may_probe_) return;
  timer_.expires_after(after);
  timer_.async_wait([self = shared_from_this(), after](error_code error) {
    if (error || !self->exchange_ || !self->may_probe_) return;
    const int socket = self->stream_->socket().native_handle();
    const ssize_t sent = ::send(socket, kProbe.data(), kProbe.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (is_reset(socket) || (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) {
      return self->gone();
    }
    // Part of a probe would spoil the answer; the buffer of a client that reads has room for it.
    if (sent != static_cast<ssize_t>(kProbe.size())) return self->gone();
    self->probe(2 * after);
  });
}

}  // namespace kvtier::engine::server
