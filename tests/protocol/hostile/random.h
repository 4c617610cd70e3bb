// Choices that a seed decides.
#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <limits>

namespace kvtier::protocol {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  // Another stream of choices for each pair.
  Random(std::uint64_t seed, std::uint64_t stream) : state_(seed ^ stream * kStep) { next(); }

  std::uint64_t next() noexcept {
    std::uint64_t z = state_ += kStep;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
    return z ^ z >> 31;
  }
  // Below `n`, which is not 0.
  template <std::unsigned_integral T>
  T below(T n) noexcept {
    return static_cast<T>(next() % n);
  }
  bool one_in(std::uint32_t n) noexcept { return below(n) == 0; }
  template <class Container>
  auto& pick(Container&& from) noexcept {
    return from[below(std::size(from))];
  }
  // `value`, and now and then another: near it, at an end of its type, or any.
  template <std::unsigned_integral T>
  T odd(T value, std::uint32_t rarely = 40) noexcept {
    if (!one_in(rarely)) return value;
    switch (below(6U)) {
      case 0:
        return 0;
      case 1:
        return std::numeric_limits<T>::max();
      case 2:
        return static_cast<T>(value + 1);
      case 3:
        return static_cast<T>(value - 1);
      case 4:
        return static_cast<T>(T{1} << below(static_cast<unsigned>(sizeof(T) * 8)));
      default:
        return static_cast<T>(next());
    }
  }

 private:
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ULL;
  std::uint64_t state_;
};

}  // namespace kvtier::protocol
