// One answer on its way to a client: its tokens as text, cut where a stop text begins. One thread.
#pragma once

#include <string>
#include <vector>

#include "engine_adapter/reference/scheduler/request.h"
#include "engine_adapter/reference/tokenizer/tokenizer.h"

namespace kvtier::engine::server {

class AnswerText {
 public:
  // Both outlive the answer.
  AnswerText(const Tokenizer& tokenizer, const std::vector<std::string>& stops)
      : stream_(tokenizer), stops_(stops) {}

  // What can be sent: valid UTF-8, and no beginning of a stop text. Nothing counts after stopped().
  std::string push(Token token);
  // The rest, at the answer's end.
  std::string finish();

  bool stopped() const noexcept { return stopped_; }
  std::uint32_t tokens() const noexcept { return tokens_; }

 private:
  std::string release(bool all);

  TextStream stream_;
  const std::vector<std::string>& stops_;
  std::string held_;
  bool stopped_ = false;
  std::uint32_t tokens_ = 0;
};

}  // namespace kvtier::engine::server
