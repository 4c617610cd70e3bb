// Every bound of the client in one place.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "core/wire/control_socket.h"
#include "core/wire/frame.h"

namespace kvtier::session {

using std::chrono::milliseconds;

inline constexpr milliseconds kReconnectDelayMin{10};
// A session that ends sooner after its welcome has achieved nothing, and the next attempt waits as
// if there had been none.
inline constexpr milliseconds kSessionProven{1000};
// A daemon that owes an answer (other than to flush, which waits for disks) and sends nothing at
// all for this long is taken for dead: the session drops the connection and makes a new one.
inline constexpr milliseconds kAnswerMax{5000};
// How long closing may take to hand unused slots back.
inline constexpr milliseconds kCloseMax{500};
inline constexpr std::size_t kPendingMax = 4096;
inline constexpr std::size_t kExtentsMax = 65536;
// Without a connection for this long, the memory of the last daemon is given up.
inline constexpr milliseconds kMappingsKeptMax{60'000};
// Hints that wait for the session thread.
inline constexpr std::uint32_t kHintsQueuedMax = 256;
inline constexpr std::size_t kBadKeysMax = 256;

// After the daemon granted no slot of a tier, it is not asked again for this long.
inline constexpr milliseconds kSlotBackoff{100};
// Of slots that nobody has taken for so long, a part is kept and the others are given back.
inline constexpr milliseconds kSlotsIdleMax{5000};
// How long a flush waits for slots that were asked for before it. The daemon answers sooner.
inline constexpr milliseconds kSlotsSettleMax{2000};
// A write-back that nobody waits for may stay this long without a slot while slots are on their
// way.
inline constexpr milliseconds kSlotLinger{50};
inline constexpr milliseconds kSlotWaitMax{3'600'000};
inline constexpr std::uint32_t kSlotsAheadMax = wire::kReserveMax;

// Beyond it the caller of load_into() copies by itself.
inline constexpr std::size_t kLoadsQueuedMax = 64;
inline constexpr std::size_t kPromotionsQueuedMax = 64;
inline constexpr std::size_t kPromotionBlocksMax = 256;
// A promotion keeps a lease for at most this long after its load.
inline constexpr milliseconds kPromotionMax{100};
// And what is brought closer ahead of a request, for so long from when it has come to memory, which
// it may take as long to do.
inline constexpr milliseconds kPrefetchPromotionMax{2000};
inline constexpr milliseconds kPrefetchLeaseMax{30'000};
inline constexpr std::uint32_t kPrefetchesMax = 8;  // of one Cache, under way to its GPU
inline constexpr std::uint32_t kWriteBacksQueuedMax = 1U << 20;

static_assert(kUnsentBytesMax >= 2ULL * kSlotsAheadMax * (1024 * 4 + 256),
              "all slots' commits fit");
static_assert(kUnsentBytesMax >= 4ULL * wire::kFrameBytesMax);
static_assert(kSlotLinger < kSlotBackoff);

}  // namespace kvtier::session
