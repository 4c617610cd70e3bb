// What became of the blocks that hints named: each is counted once, when it is known.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvtier/hint.h"

namespace kvtier::daemon {

enum class HintOutcome : std::uint8_t {
  taken,    // it was done
  already,  // it was so before
  absent,   // not there, or not in that tier
  shared,   // not done: others use the block too
  budget,   // past what hints of its user, or of all, may have
  failed,   // a prefetch whose read did not begin or did not hold
  denied,   // a reader's hint that only writers may give
};
inline constexpr std::size_t kHintOutcomes = 7;
inline constexpr std::array<const char*, kHintOutcomes> kHintOutcomeNames{
    "taken", "already", "absent", "shared", "budget", "failed", "denied"};

inline const char* name(HintOutcome outcome) noexcept {
  return kHintOutcomeNames[static_cast<std::size_t>(outcome)];
}
inline const char* name(HintKind kind) noexcept {
  return kHintKindNames[static_cast<std::size_t>(kind)];
}

class HintCounts {
 public:
  void add(HintKind kind, HintOutcome outcome, std::uint64_t blocks = 1) noexcept {
    counts_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(outcome)] += blocks;
  }
  std::uint64_t of(HintKind kind, HintOutcome outcome) const noexcept {
    return counts_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(outcome)];
  }

 private:
  std::array<std::array<std::uint64_t, kHintOutcomes>, kHintKinds> counts_{};
};

// Calls visit(kind, outcome, blocks) for each of the counts.
template <class Visit>
void each_hint_count(const HintCounts& counts, Visit&& visit) {
  for (std::size_t k = 0; k < kHintKinds; ++k) {
    for (std::size_t o = 0; o < kHintOutcomes; ++o) {
      const auto kind = static_cast<HintKind>(k);
      const auto outcome = static_cast<HintOutcome>(o);
      visit(kind, outcome, counts.of(kind, outcome));
    }
  }
}

}  // namespace kvtier::daemon
