// The plainest HTTP client, which can also misbehave, and a reader of Prometheus's text format.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/base/fd.h"

namespace kvtier::daemon::testing {

struct HttpAnswer {
  int status = 0;                              // 0: the peer closed without one
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

class HttpConnectionToTest {
 public:
  explicit HttpConnectionToTest(std::uint16_t port);
  bool send(const std::string& bytes);
  // `head`: no body follows.
  HttpAnswer answer(bool head = false);
  // Whether the peer closes without a further byte.
  bool closes();

 private:
  bool more();
  UniqueFd socket_;
  std::string read_;
  std::string ended_;  // how the connection did
};

HttpAnswer http_get(std::uint16_t port, const std::string& path,
                    const std::string& host = "127.0.0.1");

// By name and labels as served, such as kvtier_hit_blocks_total{tier="host"}.
using Metrics = std::map<std::string, double>;
Metrics parse_metrics(const std::string& text);
// The sum over all series of this name whose labels contain `label`.
double sum_of(const Metrics& metrics, const std::string& name, const std::string& label = "");

}  // namespace kvtier::daemon::testing
