#include "storage/remote/redis/connection.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "storage/remote/redis/server_error.h"

namespace kvtier::storage {
namespace {

constexpr std::size_t kInBytes = 64U << 10;
// Before other connections have their turn.
constexpr std::size_t kTurnBytes = 1U << 20;
// A value of another length is received and dropped up to here; beyond, the connection is.
constexpr long long kDroppedBytesMax = 4 << 20;
constexpr std::size_t kPiecesAtOnce = 16;
constexpr std::size_t kLineEnd = 2;

Error not_a_reply() {
  return make_error(Errc::malformed, "it does not answer as a Redis does");
}

}  // namespace

Result<void> Connection::open(const SocketAddress& to, SSL_CTX* tls, const std::string& host,
                              Clock::time_point now) {
  auto socket = RedisSocket::connect(to, tls, host);
  if (!socket) return socket.error();
  socket_.emplace(std::move(*socket));
  reader_ = ReplyReader();
  in_.resize(kInBytes);
  heard_ = now;
  was_heard_ = false;
  return {};
}

bool Connection::awaits(const Operation& operation) const noexcept {
  return std::ranges::any_of(
      awaited_, [&](const OperationPtr& awaited) { return awaited.get() == &operation; });
}

std::vector<OperationPtr> Connection::close() {
  socket_.reset();
  std::vector<OperationPtr> left;
  for (OperationPtr& operation : awaited_) {
    if (operation) left.push_back(std::move(operation));
  }
  awaited_.clear();
  bytes_ = 0;
  out_.clear();
  out_sent_ = 0;
  body_.reset();
  in_begin_ = in_end_ = 0;
  more_ = false;
  return left;
}

Result<bool> Connection::advance() {
  return socket_->advance();
}

void Connection::await(OperationPtr operation, Clock::time_point now) {
  if (awaited_.empty()) heard_ = now;
  if (operation) bytes_ += operation->value_bytes;
  awaited_.push_back(std::move(operation));
}

std::string& Connection::text() {
  if (out_.empty() || out_.back().own.empty() || out_.back().own.size() > kInBytes)
    out_.emplace_back();
  return out_.back().own;
}

void Connection::put(std::span<const std::byte> body) {
  if (!body.empty()) out_.push_back({{}, body});
}

void Connection::send_auth(OperationPtr operation, std::string_view user, std::string_view password,
                           Clock::time_point now) {
  if (user.empty()) {
    append_command(text(), {"AUTH", password});
  } else {
    append_command(text(), {"AUTH", user, password});
  }
  await(std::move(operation), now);
}

void Connection::send(OperationPtr operation, Clock::time_point now) {
  if (operation->asking) {
    append_command(text(), {"ASKING"});
    await(nullptr, now);
  }
  const std::string& name = operation->name;
  switch (operation->kind) {
    using enum Operation::Kind;
    case exists:
      append_command(text(), {"STRLEN", name});
      break;
    case get:
    case probe_get:
      append_command(text(), {"GET", name});
      break;
    case del:
    case probe_del:
      append_command(text(), {"DEL", name});
      break;
    case probe_set:
      append_command(text(), {"SET", name, "1", "EX", "60"});
      break;
   case slots:
      append_command(text(), {"CLUSTER", "SLOTS"});
      break;
    case ping:
    case auth:
      append_command(text(), {"PING"});
      break;
    case set: {
      std::string& head = text();
      append_array(head, expiry_s_ == 0 ? 3 : 5);
      append_bulk(head, "SET");
      append_bulk(head, name);
      const ValueForm::Value& value = operation->value;
      append_bulk_head(head, value.first.size() + value.rest.size());
      put(value.first);
      put(value.rest);
      std::string& tail = text();
      tail += "\r\n";
      if (expiry_s_ > 0) {
        append_bulk(tail, "EX");
        append_bulk(tail, std::to_string(expiry_s_));
      }
      break;
    }
  }
  await(std::move(operation), now);
}

Result<void> Connection::transmit(Clock::time_point now) {
  while (!out_.empty()) {
    std::array<iovec, kPiecesAtOnce> pieces;
    std::size_t count = 0;
    for (const Piece& piece : out_) {
      if (count == pieces.size()) break;
      const auto bytes = piece.own.empty() ? piece.body : std::as_bytes(std::span(piece.own));
      const auto rest = bytes.subspan(count == 0 ? out_sent_ : 0);
      pieces[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
    }
    auto sent = socket_->send(std::span(pieces).first(count));
    if (!sent) return sent.error();
    if (*sent == 0) return {};
    heard_ = now;  // it takes what it is sent
    out_sent_ += *sent;
    while (!out_.empty()) {
      const Piece& piece = out_.front();
      const std::size_t bytes = piece.own.empty() ? piece.body.size() : piece.own.size();
      if (out_sent_ < bytes) break;
      out_sent_ -= bytes;
      out_.pop_front();
    }
  }
  return {};
}

Result<void> Connection::receive(std::vector<Answered>& answered, Clock::time_point now) {
  for (std::size_t turn = 0; turn < kTurnBytes;) {
    if (in_begin_ == in_end_) in_begin_ = in_end_ = 0;
    if (in_end_ == in_.size()) {
      std::copy(in_.begin() + static_cast<long>(in_begin_), in_.end(), in_.begin());
      in_end_ -= std::exchange(in_begin_, 0);
    }
    std::array<iovec, 2> into;
    std::size_t count = 0;
    if (body_ && !body_->into.empty()) into[count++] = {body_->into.data(), body_->into.size()};
    into[count++] = {in_.data() + in_end_, in_.size() - in_end_};
    auto came = socket_->receive(std::span(into).first(count));
    if (!came) return came.error();
    more_ = *came > 0;
    if (!more_) return {};
    heard_ = now;
    was_heard_ = true;
    turn += *came;
    if (count == 2) {
      const std::size_t in_place = std::min(*came, body_->into.size());
      body_->into = body_->into.subspan(in_place);
      body_->left -= in_place;
      *came -= in_place;
    }
    in_end_ += *came;
    if (auto good = consume(answered); !good) return good;
  }
  return {};
}

Result<void> Connection::consume(std::vector<Answered>& answered) {
  while (in_begin_ < in_end_) {
    if (body_) {
      if (auto good = take_body(answered); !good) return good;
      continue;
    }
    const std::string_view unread(reinterpret_cast<const char*>(in_.data()) + in_begin_,
                                  in_end_ - in_begin_);
    std::size_t length = unread.find('\n');
    if (length != std::string_view::npos) {
      ++length;
    } else if (unread.size() == in_.size()) {
      length = unread.size();
    } else {
      return {};
    }
    in_begin_ += length;
    if (auto good = take_line(unread.substr(0, length), answered); !good) return good;
  }
  return {};
}

Result<void> Connection::take_line(std::string_view line, std::vector<Answered>& answered) {
  if (awaited_.empty()) {
    // What a server says before it closes a connection that it does not want.
    if (line[0] != '-') return not_a_reply();
    return make_error(Errc::unavailable, classify_error(line.substr(1)).why);
  }
  const Operation* const operation = awaited_.front().get();
  const bool value =
      operation != nullptr && operation->kind == Operation::Kind::get && reader_.between_replies();
  if (value && line[0] == '$') {
    const auto length = bulk_length(line);
    if (!length) return length.error();
    if (*length >= 0) return begin_body(*length, answered);
    answer({.what = Answer::What::nil}, answered);
    return {};
  }
  if (value && line[0] != '-') return not_a_reply();
  auto reply = reader_.take(line);
  if (!reply) return reply.error();
  if (!*reply) return {};
  Answer found;
  switch ((*reply)->type) {
    case REDIS_REPLY_NIL:
      found.what = Answer::What::nil;
      break;
    case REDIS_REPLY_INTEGER:
      found.what = Answer::What::integer;
      found.integer = (*reply)->integer;
      break;
    case REDIS_REPLY_ERROR:
      found.what = Answer::What::error;
      found.text.assign((*reply)->str, (*reply)->len);
      break;
    case REDIS_REPLY_ARRAY:
      found.what = Answer::What::array;
      found.array = std::move(*reply);
      break;
    default:
      found.what = Answer::What::status;
  }
  answer(std::move(found), answered);
  return {};
}

Result<void> Connection::begin_body(long long length, std::vector<Answered>& answered) {
  const auto bytes = static_cast<std::uint64_t>(length);
  const auto into = awaited_.front()->landing();
  if (bytes == into.size()) {
    body_ = Body{into, bytes + kLineEnd, true};
    return {};
  }
  answer({.what = Answer::What::wrong_length}, answered);
  if (length > kDroppedBytesMax)
    return make_error(Errc::malformed, "it has a value that is far longer than a record");
  body_ = Body{{}, bytes + kLineEnd, false};
  return {};
}

// Of the body, what has come with something else.
Result<void> Connection::take_body(std::vector<Answered>& answered) {
  const auto came = std::span(in_).subspan(in_begin_, in_end_ - in_begin_);
  const std::size_t copied = std::min(came.size(), body_->into.size());
  if (copied > 0) std::memcpy(body_->into.data(), came.data(), copied);
  body_->into = body_->into.subspan(copied);
  body_->left -= copied;
  in_begin_ += copied;
  while (in_begin_ < in_end_ && body_->left > kLineEnd) {
    const std::size_t dropped = std::min<std::size_t>(in_end_ - in_begin_, body_->left - kLineEnd);
    body_->left -= dropped;
    in_begin_ += dropped;
  }
  while (in_begin_ < in_end_ && body_->left > 0) {
    const auto expected = std::byte(body_->left == kLineEnd ? '\r' : '\n');
    if (in_[in_begin_++] != expected) return not_a_reply();
    --body_->left;
  }
  if (body_->left > 0) return {};
  const bool wanted = body_->wanted;
  body_.reset();
  if (wanted) answer({.what = Answer::What::value}, answered);
  return {};
}

void Connection::answer(Answer answer, std::vector<Answered>& answered) {
  OperationPtr operation = std::move(awaited_.front());
  awaited_.pop_front();
  if (!operation) return;
  bytes_ -= operation->value_bytes;
  answered.push_back({std::move(operation), std::move(answer)});
}

std::optional<Clock::time_point> Connection::silent_since() const noexcept {
  if (awaited_.empty()) return std::nullopt;
  return heard_;
}

}  // namespace kvtier::storage
