// What a block's last use says of the next one: the class of a use. How often blocks of a class are
// used again, and after how long, is learnt while the daemon runs (HitRates).
//
// Classes follow from what a prompt and the cache have in common. Of a prompt's blocks those that
// were known are used again; those behind them are fresh, or the conversation has grown by them:
// most of the prompt was known, up to the end of an earlier one. The last block of a prompt is only
// used again by one that is equal, or goes on from it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace kvtier::daemon {

using UseClass = std::uint8_t;

namespace use_class {

inline constexpr UseClass kUnknown = 0;  // as after a restart
// Fresh ones by the tokens that are fresh, and by those of the answer: not told, less than 32, less
// than 128, more.
inline constexpr std::array<std::uint32_t, 4> kFreshTokens{1024, 2048, 8192, 32'768};
inline constexpr UseClass kAnswers = 4;
inline constexpr UseClass kFresh = 1;
inline constexpr UseClass kLast = kFresh + kAnswers * (kFreshTokens.size() + 1);
// By the turn: 0, 1, 2, 3-4, 5-8, more.
inline constexpr UseClass kTurns = 6;
inline constexpr UseClass kGrown = kLast + 1;
inline constexpr UseClass kAgain = kGrown + kTurns;
inline constexpr UseClass kCount = kAgain + kTurns;
static_assert(kCount <= 64, "a set of classes is one word");

constexpr UseClass turns(std::uint32_t turn) noexcept {
  if (turn <= 2) return static_cast<UseClass>(turn);
  return static_cast<UseClass>(std::min<int>(2 + std::bit_width((turn - 1) / 2), kTurns - 1));
}
static_assert(turns(2) == 2 && turns(3) == 3 && turns(4) == 3 && turns(5) == 4 && turns(8) == 4 &&
              turns(9) == 5 && turns(255) == 5);

constexpr UseClass answer(std::uint32_t tokens) noexcept {
  return static_cast<UseClass>(tokens == 0 ? 0 : tokens < 32 ? 1 : tokens < 128 ? 2 : 3);
}

constexpr UseClass fresh(std::uint64_t tokens, UseClass answer) noexcept {
  std::size_t size = 0;
  while (size < kFreshTokens.size() && tokens >= kFreshTokens[size]) ++size;
  return static_cast<UseClass>(kFresh + kAnswers * size + answer);
}
constexpr UseClass grown(std::uint32_t turn) noexcept {
  return static_cast<UseClass>(kGrown + turns(turn));
}
constexpr UseClass again(std::uint32_t turn) noexcept {
  return static_cast<UseClass>(kAgain + turns(turn));
}

}  // namespace use_class

// What is remembered of a block's last use.
struct UseMark {
  static constexpr std::uint8_t kTurnMax = 15;

  UseClass use = use_class::kUnknown;
  std::uint8_t turn = 0;     // so often it has been used again, or what it has grown from has
  bool ends_prompt = false;  // nothing but a prompt's last block has come behind it
};

// The same in two bytes.
class PackedMark {
 public:
  PackedMark() = default;
  explicit constexpr PackedMark(const UseMark& mark) noexcept
      : bits_(static_cast<std::uint16_t>(mark.use | std::uint32_t{mark.turn} << 8 |
                                         (mark.ends_prompt ? kEndsPrompt : 0))) {}
  constexpr UseMark unpacked() const noexcept {
    return {use(), static_cast<std::uint8_t>(turn()), (bits_ & kEndsPrompt) != 0};
  }
  constexpr UseClass use() const noexcept { return static_cast<UseClass>(bits_ & 0xFF); }
  // Of a block that has been used again now, as often as what is behind it at least, which has been
  // `behind` times. It is in words from end to end: of a mark that was put together byte by byte a
  // processor waits to read two at once.
  constexpr PackedMark used_again(std::uint32_t behind) const noexcept {
    const std::uint32_t turn =
        std::min(std::max(behind, turn_of(bits_) + 1), std::uint32_t{UseMark::kTurnMax});
    PackedMark mark;
    mark.bits_ = static_cast<std::uint16_t>(kAgain[turn] | (bits_ & kEndsPrompt));
    return mark;
  }
  constexpr std::uint32_t turn() const noexcept { return turn_of(bits_); }

 private:
  static constexpr std::uint32_t kEndsPrompt = 1 << 12;
  static_assert(UseMark::kTurnMax == 15);
  static constexpr auto kAgain = [] {
    std::array<std::uint16_t, UseMark::kTurnMax + 1> marks{};
    for (std::uint32_t turn = 0; turn < marks.size(); ++turn)
      marks[turn] = static_cast<std::uint16_t>(use_class::again(turn) | turn << 8);
    return marks;
  }();
  static constexpr std::uint32_t turn_of(std::uint32_t bits) noexcept {
    return bits >> 8 & UseMark::kTurnMax;
  }
  std::uint16_t bits_ = 0;
};

}  // namespace kvtier::daemon
