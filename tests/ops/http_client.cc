#include "tests/ops/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "core/base/check.h"

namespace kvtier::daemon::testing {

HttpConnectionToTest::HttpConnectionToTest(std::uint16_t port)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{20, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const int connected =
      ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  KVTIER_CHECK(connected == 0);
}

bool HttpConnectionToTest::send(const std::string& bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const auto now = ::send(socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) return false;
    sent += static_cast<std::size_t>(now);
  }
  return true;
}

bool HttpConnectionToTest::more() {
  char bytes[16384];
  ssize_t got = 0;
  // With a timeout the kernel does not take up an interrupted call again by itself.
  do {
    got = ::recv(socket_.get(), bytes, sizeof bytes, 0);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    ended_ = got == 0 ? "closed" : std::strerror(errno);
    return false;
  }
  read_.append(bytes, static_cast<std::size_t>(got));
  return true;
}

bool HttpConnectionToTest::closes() {
  return read_.empty() && !more();
}

HttpAnswer HttpConnectionToTest::answer(bool head) {
  HttpAnswer answer;
  std::size_t end = 0;
  while ((end = read_.find("\r\n\r\n")) == std::string::npos) {
    if (!more()) {
      answer.body = "no answer: " + ended_;
      return answer;
    }
  }
  std::istringstream lines(read_.substr(0, end));
  read_.erase(0, end + 4);
  std::string version, line;
  int status = 0;
  lines >> version >> status;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const auto colon = line.find(": ");
    std::string name = line.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    answer.headers[name] = line.substr(colon + 2);
  }
  const std::size_t length = head ? 0 : std::stoul(answer.headers.at("content-length"));
  while (read_.size() < length) {
    if (!more()) return answer;
  }
  answer.status = status;
  answer.body = read_.substr(0, length);
  read_.erase(0, length);
  return answer;
}

HttpAnswer http_get(std::uint16_t port, const std::string& path, const std::string& host) {
  HttpConnectionToTest connection(port);
  connection.send("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
  return connection.answer();
}

Metrics parse_metrics(const std::string& text) {
  Metrics metrics;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#') continue;
    const auto space = line.rfind(' ');
    metrics[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return metrics;
}

double sum_of(const Metrics& metrics, const std::string& name, const std::string& label) {
  double sum = 0;
  for (const auto& [series, value] : metrics) {
    const bool named = series == name || series.starts_with(name + "{");
    if (named && series.find(label) != std::string::npos) sum += value;
  }
  return sum;
}

}  // namespace kvtier::daemon::testing
