#include "client/session/thread/hints.h"

#include <algorithm>

#include "client/session/thread/wire_values.h"

namespace kvtier::session {

void Hints::send(std::uint32_t handle, std::uint32_t first, std::span<const Key> keys,
                 const Hint& hint) {
  while (taken_ && !keys.empty()) {
    const auto piece = keys.first(std::min<std::size_t>(keys.size(), wire::kHintBlocksMax));
    keys = keys.subspan(piece.size());
    send_piece(handle, first, piece, hint);
    first += static_cast<std::uint32_t>(piece.size());
  }
}

void Hints::send_piece(std::uint32_t handle, std::uint32_t first, std::span<const Key> keys,
                       const Hint& hint) {
  const auto seconds = std::clamp(hint.keep_for, std::chrono::seconds(0), kHintKeepMax);
  conversation_.tell([&](wire::Message::Builder m) {
    auto out = m.initHint();
    out.setNs(handle);
    out.setKeys(data(keys.data(), keys.size() * sizeof(Key)));
    out.setKind(static_cast<std::uint8_t>(hint.kind));
    out.setTier(static_cast<std::uint8_t>(hint.tier));
    out.setPriority(hint.priority);
    out.setFirst(first + 1);
    out.setSeconds(static_cast<std::uint32_t>(seconds.count()));
  });
}

}  // namespace kvtier::session
