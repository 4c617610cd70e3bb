#include "engine_adapter/reference/server/answer_text.h"

#include <algorithm>

namespace kvtier::engine::server {

std::string AnswerText::push(Token token) {
  if (stopped_) return {};
  ++tokens_;
  held_ += stream_.push(token);
  return release(false);
}

std::string AnswerText::finish() {
  if (stopped_) return {};
  held_ += stream_.finish();
  return release(true);
}

std::string AnswerText::release(bool all) {
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, first);
    held_.clear();
    return out;
  }
  // Whatever could be the beginning of a stop text waits.
  std::size_t waiting = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t size = std::min(stop.size() - 1, held_.size()); size > waiting && !all;
         --size) {
      if (held_.ends_with(std::string_view(stop).substr(0, size))) waiting = size;
    }
  }
  std::string out = held_.substr(0, held_.size() - waiting);
  held_.erase(0, out.size());
  // A stop text may begin within a character's bytes only if it is no text; parse_request() took
  // texts, so `out` ends where a character does.
  return out;
}

}  // namespace kvtier::engine::server
