#include "engine_adapter/reference/model/score.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/units.h"

namespace kvtier::engine {
namespace {

using namespace kvtier::units;

constexpr std::size_t kLogitBytesMax = 64_MiB;

// -log2 of the softmax probability of `token`.
double bits_of(std::span<const float> logits, Token token) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(logit - most);
  return (std::log(total) - (logits[token] - most)) / std::log(2.0);
}

}  // namespace

Result<Score> score(Model& model, PagePool& pool, const Tokenizer& tokenizer,
                    std::span<const Token> tokens, std::uint32_t context,
                    std::uint64_t part_tokens) {
  KVTIER_CHECK(context >= 2);
  const std::size_t vocab = model.config().vocab_size;
  const auto beyond = std::ranges::find_if(tokens, [vocab](Token token) { return token >= vocab; });
  if (beyond != tokens.end()) {
    return make_error(Errc::invalid, "the text has token " + std::to_string(*beyond) +
                                         ", which the model does not have: its tokens are those "
                                         "below vocab_size " +
                                         std::to_string(vocab));
  }
  const std::size_t rows_max =
      std::clamp<std::size_t>(kLogitBytesMax / (vocab * sizeof(float)), 1, model.rows_max());
  std::vector<float> logits(rows_max * vocab);
  Score found, before;
  for (std::size_t start = 0; start + 1 < tokens.size(); start += context) {
    const auto window =
        tokens.subspan(start, std::min<std::size_t>(context, tokens.size() - start));
    Sequence sequence(pool, NamespaceId{}, context);
    ++found.windows;
    while (sequence.length() + 1 < window.size()) {
      const std::size_t from = sequence.length();
      const std::size_t rows = std::min(rows_max, window.size() - 1 - from);
      const StepInput input{&sequence, window.subspan(from, rows),
                            static_cast<std::uint32_t>(rows)};
      if (auto done = model.step({&input, 1}, logits); !done) return done.error();
      sequence.forget(model.config().unseen_blocks(sequence.length()));
      for (std::size_t row = 0; row < rows; ++row) {
        const Token next = window[from + row + 1];
        found.bits += bits_of(std::span(logits).subspan(row * vocab, vocab), next);
        found.bytes += tokenizer.bytes_of(next).size();
        ++found.tokens;
        if (part_tokens == 0 || found.tokens % part_tokens != 0) continue;
        const auto bytes = static_cast<double>(found.bytes - before.bytes);
        found.parts.push_back((found.bits - before.bits) / std::max(bytes, 1.0));
        before.bits = found.bits;
        before.bytes = found.bytes;
      }
    }
  }
  if (found.bytes == 0) {
    return make_error(Errc::invalid, "the text is too short: nothing to score in " +
                                         std::to_string(tokens.size()) + " tokens");
  }
  return found;
}

}  // namespace kvtier::engine
