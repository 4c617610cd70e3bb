#include "daemon/ops/log_lines.h"

#include <spdlog/details/log_msg.h>

#include <string>

#include "core/base/shown.h"

namespace kvtier::daemon::ops {
namespace {

class Escaping final : public spdlog::formatter {
 public:
  explicit Escaping(std::unique_ptr<spdlog::formatter> inner) : inner_(std::move(inner)) {}

  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& out) override {
    const std::string text = shown({line.payload.data(), line.payload.size()});
    spdlog::details::log_msg escaped = line;
    escaped.payload = text;
    inner_->format(escaped, out);
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return escaping(inner_->clone()); }

 private:
  std::unique_ptr<spdlog::formatter> inner_;
};

}  // namespace

std::unique_ptr<spdlog::formatter> escaping(std::unique_ptr<spdlog::formatter> inner) {
  return std::make_unique<Escaping>(std::move(inner));
}

}  // namespace kvtier::daemon::ops
