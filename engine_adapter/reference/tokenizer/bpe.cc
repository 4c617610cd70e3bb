#include "engine_adapter/reference/tokenizer/bpe.h"

#include <queue>
#include <tuple>

#include "core/base/check.h"

namespace kvtier::engine {
namespace {

constexpr std::uint32_t kNone = ~0U;

// A token of the word so far, in a list by place; `length` 0 once it was joined to its left
// neighbour.
struct Symbol {
  Token token;
  std::uint32_t previous;
  std::uint32_t next;
  std::uint32_t length;
};

struct Candidate {
  std::uint32_t rank;
  std::uint32_t place;
  Token joined;

  bool operator>(const Candidate& other) const noexcept {
    return std::tie(rank, place) > std::tie(other.rank, other.place);
  }
};

using Queue = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

constexpr std::uint64_t pair_of(Token left, Token right) noexcept {
  return std::uint64_t{left} << 32 | right;
}

}  // namespace

Bpe::Bpe(std::span<const Merge> merges) {
  merges_.reserve(merges.size());
  std::uint32_t rank = 0;
  for (const Merge& merge : merges) {
    merges_.insert_or_assign(pair_of(merge.left, merge.right), Ranked{rank++, merge.joined});
  }
}

const Bpe::Ranked* Bpe::find(Token left, Token right) const noexcept {
  const auto at = merges_.find(pair_of(left, right));
  return at == merges_.end() ? nullptr : &at->second;
}

void Bpe::encode(std::span<const Token> tokens, std::vector<Token>& out) const {
  KVTIER_CHECK(tokens.size() < kNone);
  const auto count = static_cast<std::uint32_t>(tokens.size());
  std::vector<Symbol> symbols(count);
  Queue queue;
  const auto offer = [&](std::uint32_t left) {
    if (left == kNone || symbols[left].next == kNone) return;
    const Ranked* merge = find(symbols[left].token, symbols[symbols[left].next].token);
    if (merge != nullptr) queue.push({merge->rank, left, merge->joined});
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols[i] = {tokens[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1, 1};
  }
  for (std::uint32_t i = 0; i < count; ++i) offer(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.place];
    if (left.length == 0 || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    const Ranked* merge = find(left.token, right.token);
    // A neighbour has changed since this candidate was queued; the pair it forms now has its own.
    if (merge == nullptr || merge->joined != best.joined || merge->rank != best.rank) continue;
    left.token = merge->joined;
    left.length += right.length;
    left.next = right.next;
    right.length = 0;
    if (left.next != kNone) symbols[left.next].previous = best.place;
    offer(left.previous);
    offer(best.place);
  }
  for (std::uint32_t i = count == 0 ? kNone : 0; i != kNone; i = symbols[i].next) {
    out.push_back(symbols[i].token);
  }
}

}  // namespace kvtier::engine
