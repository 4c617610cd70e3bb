// Numbers that must not be mistaken for one another.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>

namespace kvtier {

template <class Tag, class Rep>
struct Strong {
  Rep value{};

  constexpr Strong() = default;
  constexpr explicit Strong(Rep v) : value(v) {}
  friend constexpr bool operator==(const Strong&, const Strong&) = default;
  friend constexpr auto operator<=>(const Strong&, const Strong&) = default;
};

}  // namespace kvtier

template <class Tag, class Rep>
struct std::hash<kvtier::Strong<Tag, Rep>> {
  std::size_t operator()(const kvtier::Strong<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
