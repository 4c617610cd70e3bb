// A namespace that the engine opened: what it is, its slots at hand, and its handle on the current
// connection.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "client/session/slot_pool.h"
#include "kvtier/client.h"

namespace kvtier::session {

struct NamespaceEntry {
  NamespaceEntry(const Namespace& n, std::uint32_t slots_ahead)
      : ns(n),
        id(id_of(n)),
        layout(RecordLayout::of(n)),
        layers(layer_layouts(n)),
        pools{SlotPool(slots_ahead), SlotPool(slots_ahead)} {}

  const Namespace ns;
  const NamespaceId id;
  const RecordLayout layout;
  const std::vector<LayerLayout> layers;
  std::array<SlotPool, 2> pools;  // device and host
  // The daemon has closed it: nothing is found or kept under it any more. Any thread may ask.
  std::atomic<bool> invalidated{false};
  // Those who may write under it (Cache): with the last of them its slots go back. Any thread.
  std::atomic<std::uint32_t> users{0};
  SlotPool& pool(Tier tier) noexcept { return pools[index_of(tier)]; }

  // Blocks looked up without asking for a lease, all of them misses; not reported yet. Any thread
  // adds.
  std::atomic<std::uint64_t> missed{0};

  // The session thread writes, any thread reads.
  enum class State : std::uint8_t { closed, opening, open, refused };
  std::atomic<State> state{State::closed};
  void refuse(Error why) {
    {
      const std::lock_guard lock(mutex_);
      refusal_ = std::move(why);
    }
    state = State::refused;
  }
  Error refusal() const {
    const std::lock_guard lock(mutex_);
    return refusal_;
  }

  // The rest belongs to the session thread.
  std::uint32_t handle = 0;
  std::vector<std::function<void(Result<std::uint32_t>)>> waiting;  // for the handle

 private:
  mutable std::mutex mutex_;
  Error refusal_{Errc::refused, {}};
};

inline constexpr std::array<Tier, 2> kMemoryTiers{Tier::device, Tier::host};

}  // namespace kvtier::session
