#include "engine_adapter/server/path.h"

namespace kvtier::engine::server {
namespace {

int digit_of(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

std::string path_of(std::string_view target) {
  if (!target.starts_with('/')) {
    const std::size_t scheme = target.find("://");
    if (scheme != std::string_view::npos) {
      const std::size_t path = target.find_first_of("/?#", scheme + 3);
      target = path == std::string_view::npos ? "/" : target.substr(path);
    }
  }
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool escaped = target[i] == '%' && i + 2 < target.size() &&
                         digit_of(target[i + 1]) >= 0 && digit_of(target[i + 2]) >= 0;
    if (!escaped) {
      path += target[i];
      continue;
    }
    path += static_cast<char>(digit_of(target[i + 1]) * 16 + digit_of(target[i + 2]));
    i += 2;
  }
  return path;
}

}  // namespace kvtier::engine::server
