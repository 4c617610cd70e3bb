// Every bound of the daemon in one place. A queue, table or message without an entry here is a
// mistake.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "core/wire/directory.h"
#include "core/wire/frame.h"
#include "kvtier/namespace.h"

namespace kvtier::daemon::limits {

inline constexpr std::uint32_t kSessionsMax = 4096;    // the most that sessions_max may be
inline constexpr std::uint32_t kAdminSessionsMax = 4;  // admins' on top, so that one can look
inline constexpr std::uint32_t kTenantsMax = 64;       // the default one included
inline constexpr std::uint32_t kTenantSaltsMax = 64;   // of one tenant
inline constexpr std::uint32_t kPrincipalsMax = 256;   // in one list of users or groups
inline constexpr std::uint32_t kBadKeysMax = 256;      // in one report
inline constexpr std::uint64_t kReportBytesMax = 16U
                                                 << 20;    // of their records, read in a loop turn
inline constexpr std::uint32_t kEvictionsForRoomMax = 64;  // for one slot, where sizes differ
inline constexpr std::uint32_t kTrimStep = 4096;       // blocks above a quota, evicted in one tick
inline constexpr std::uint32_t kPeersListedMax = 512;  // sessions in one status
inline constexpr std::uint32_t kNamespacesMax = 4096;  // known at a time
inline constexpr std::uint32_t kNamespacesPerTenantMax =
    kNamespacesMax / 4;  // where there are several
inline constexpr std::uint32_t kNamespacesPerUserMax = kNamespacesMax / 2;  // made by one
inline constexpr std::uint32_t kNamespacesPerSessionMax = 64;
inline constexpr std::uint32_t kLeasesPerSessionMax = 4096;
inline constexpr std::uint32_t kLeasesPerUserMax = 1U << 16;
inline constexpr std::size_t kBlocksLeasedPerSessionMax = 1U << 20;
inline constexpr std::size_t kBlocksLeasedPerUserMax = 1U << 22;
// Slots of one part of a tier, quarantined ones included; in bytes it is a share (LoanShares).
inline constexpr std::uint32_t kReservedPerProcessMax = 32768;
inline constexpr std::uint32_t kReservesWaitingMax = 1024;  // for slots to come home
inline constexpr std::chrono::milliseconds kReserveWaitMax{1000};
// A session that has not answered a recall for so long is lent nothing until it does.
inline constexpr std::chrono::milliseconds kRecallAnswerMax{500};
inline constexpr std::uint32_t kEmptyStep = 4096;  // blocks evicted from an extent in a loop turn
inline constexpr std::uint32_t kEmptyLookStep = 1U << 17;  // and slots passed
// Blocks whose age stands for that of all in their extent or segment, and segments in a disk's
// turn.
inline constexpr std::uint32_t kAgesLookedAt = 64;
inline constexpr std::uint32_t kSegmentsLookedAt = 16;
inline constexpr std::uint32_t kReleasesMax = kLeasesPerSessionMax;  // in one message
inline constexpr std::uint32_t kLookedUpMax = 1U << 24;              // blocks of one prompt
inline constexpr std::uint32_t kFlushesPerSessionMax = 16;
inline constexpr std::uint32_t kSessionOutputBytesMax = 16U << 20;
inline constexpr std::uint32_t kReadsWaitingMax = 16384;  // blocks on their way from disk
// The remote tier: questions under way, those who wait for one, and keys that were not there of
// late.
inline constexpr std::uint32_t kRemoteLookupsMax = 128;
inline constexpr std::uint32_t kRemoteWaitingMax = 256;
inline constexpr std::chrono::seconds kPushWaitMax{300};  // of a push by an administrator
inline constexpr std::uint32_t kRemoteAbsentMax = 1U << 16;
inline constexpr std::uint32_t kRemoteKnownMax = 1U << 24;    // blocks known to be there alone
inline constexpr std::uint32_t kRemoteWriteQueueMax = 4096;   // blocks waiting for it
inline constexpr std::uint32_t kWriteThroughQueueMax = 4096;  // blocks waiting for the disk
// Blocks that go to the disk, or to the remote tier, with one that follows them: a longer prefix
// waits until it is leased, whose blocks come one after the other.
inline constexpr std::size_t kTakenAlongMax = 64;
// Stamps of blocks on disk that were used: seconds between two rounds of handing them to the
// stores, how many are gathered until then, and how many are handed over in a turn.
inline constexpr std::uint32_t kStampsEvery = 60;
inline constexpr std::uint32_t kStampsGatheredMax = 1U << 18;
inline constexpr std::uint32_t kStampsBatchMax = 8192;
inline constexpr std::uint32_t kFramesPerTurn = 64;         // one session's share of a loop turn
inline constexpr std::uint32_t kUsersRememberedMax = 8192;  // what they owe, when they are gone
inline constexpr std::uint32_t kFarewellsMax = 256;         // peers that are told why, under way
inline constexpr std::uint32_t kFarewellsPerUserMax = 64;
inline constexpr std::uint32_t kFarewellTurnsMax = 64;  // in which such a peer sends something
inline constexpr std::chrono::milliseconds kFarewellTime{2000};
inline constexpr std::uint32_t kClosingsPerUserMax = 16;   // of ended sessions' sockets, under way
inline constexpr std::uint32_t kClosingsMax = 1024;        // in all, past which nobody is let in
inline constexpr std::uint32_t kPeerLinesPerSecond = 20;   // of the log, about what peers do
inline constexpr std::uint32_t kFramesHeardOutMax = 1024;  // of a peer that has gone, in one turn
inline constexpr std::uint32_t kHttpHostsMax = 16;         // names in [http] hosts
inline constexpr std::uint32_t kNamespaceLabelsMax = 32;   // in metrics; others are summed up
inline constexpr std::uint32_t kNamespacesShownMax = 64;   // on the status page
inline constexpr std::uint32_t kSessionsShownMax = 64;
inline constexpr std::uint32_t kExtentsMax = 65536;
inline constexpr std::uint64_t kHostFloorBytes = 256ULL << 20;  // of a capacity that is not given
inline constexpr std::uint32_t kDisksMax = 16;                  // directories of the disk tier
inline constexpr std::uint32_t kGpusMax = 16;                   // each a part of the device tier
// Of a place's container are a disk's segment or an extent; above them the number of the device.
inline constexpr std::uint32_t kDiskSegmentBits = 28;
inline constexpr std::uint32_t kExtentBits = kDiskSegmentBits;
inline constexpr std::uint32_t kRepublishStep =
    4096;                                          // slots of a device that went, in a loop turn
inline constexpr std::uint32_t kScrubStep = 4096;  // slots a scrub passes in a loop turn
inline constexpr std::uint32_t kWalkStep = 8192;   // blocks an admin command passes in a loop turn
inline constexpr std::uint32_t kVisitStep = 512;   // of them, those it does something to
inline constexpr std::uint32_t kShrinkStep =
    2048;  // slots emptied in a loop turn, as a cap is lowered
inline constexpr std::uint32_t kEndStep = 16384;  // blocks of ended leases let go of in a loop turn
inline constexpr std::uint32_t kFreeStep = 16384;  // disk slots that an erase frees in a loop turn
inline constexpr std::uint32_t kTellStep = 16;  // namespaces whose end sessions are told of in one
// What one session's frames take of a loop turn, and what a peer's last words may; then one frame
// more.
inline constexpr std::chrono::milliseconds kFramesTime{5};
inline constexpr std::chrono::milliseconds kLastWordsTime{30};
inline constexpr std::uint32_t kAdminJobsMax = 16;   // admin commands under way
inline constexpr std::uint32_t kPinsMax = 1U << 18;  // blocks pinned, once a tier
inline constexpr std::uint32_t kPinSecondsMax = 30 * 86'400;
inline constexpr std::uint64_t kInspectBytesMax = 4U << 20;  // of a record verified in a loop turn
inline constexpr std::uint32_t kHintedMax = 1U << 18;        // placements that hints raise
// Of a part of a memory tier, what the hints of all users together may raise.
inline constexpr std::uint32_t kHintedPercentMax = 50;
inline constexpr std::uint32_t kPrefetchesMax = 1U << 16;  // blocks that wait, or are being read
// Of those, what is read at a time: as much as a lease's own reads may have to wait for.
inline constexpr std::uint32_t kPrefetchReadsMax = 64;
inline constexpr std::uint64_t kPrefetchReadBytesMax = 32U << 20;
inline constexpr std::uint32_t kPrefetchStep = 1024;  // of the queue, looked at in a loop turn
inline constexpr std::uint32_t kOrphanNamespacesMax = kNamespacesMax / 2;  // known by id alone
// The cache's logical clock cannot have come so far: a later stamp is damage.
inline constexpr std::uint64_t kStampsMax = 1ULL << 56;
// The kernel may go on with a killed daemon's reads for as long as a device may take, which is 30
// seconds, and a reset after them. Slots they go to are nobody's until then.
inline constexpr std::chrono::seconds kLateReadsMax{60};
// A directory of which nothing is heard for so long while it is opened comes late.
inline constexpr std::chrono::seconds kOpenPatience{20};
// What a stop waits for the disks' threads: less than the unit's TimeoutStopSec=.
inline constexpr std::chrono::seconds kCloseMax{30};
inline constexpr std::uint16_t kHoldsMax = 0xFFFF;  // of one block in one tier
// Events (daemon/events).
inline constexpr std::size_t kEventTopicBytesMax = 255;
inline constexpr std::size_t kEventNamesMax = 64;  // in [events] tenants and models
inline constexpr std::uint64_t kEventQueueBytesMin = 256U << 10;
inline constexpr std::uint64_t kEventReplayBytesMin = 64U << 10;
inline constexpr std::uint32_t kEventSubscriberBatchesMax = 1U << 20;
inline constexpr std::size_t kEventBatchBytes = 64U << 10;  // about; a block's tokens come on top
inline constexpr std::uint32_t kEventWalkStep = 2048;       // blocks told again in a loop turn
inline constexpr std::size_t kEventChangesMax = 4096;       // blocks gathered before they are told
inline constexpr std::uint32_t kEventAnswersMax = 8;        // to subscribers that ask, under way
inline constexpr std::uint32_t kEventSnapshotsMax = 2;      // of the whole index, in memory
inline constexpr std::uint32_t kEventRequestBytesMax = 1024;  // of a subscriber's message
inline constexpr std::uint32_t kEventRequestsMax = 64;        // that wait to be read, of each
// A subscriber that reads nothing of its answer for so long gets no more of it.
inline constexpr std::chrono::seconds kEventAnswerStall{10};
// Where nothing is published for so long, an empty batch says which number is the next.
inline constexpr std::chrono::milliseconds kEventHeartbeat{1000};
// How long what comes is gathered for one batch.
inline constexpr std::chrono::milliseconds kEventGather{2};

// One reply must fit a session's output together with what may already wait there.
static_assert(kSessionOutputBytesMax >= 4 * wire::kFrameBytesMax);
// A lease as large as the wire allows must be grantable.
static_assert(kBlocksLeasedPerSessionMax >= wire::kLeaseBlocksMax);
static_assert(kReadsWaitingMax >= wire::kLeaseBlocksMax);
// A place on disk names device and segment in 32 bits, and a set of devices is one word.
static_assert(kDisksMax <= 1U << (32 - kDiskSegmentBits) && kDisksMax <= 32);
static_assert(kGpusMax <= 1U << (32 - kExtentBits) && kGpusMax <= kDirectoryDevicesMax);
// What is gathered in a minute is handed over in the next.
static_assert(kStampsGatheredMax <= std::uint64_t{kStampsBatchMax} * kStampsEvery);
static_assert(kReservedPerProcessMax >= wire::kReserveMax);
// A user is one hold of a block.
static_assert(kHoldsMax >= 2 * kSessionsMax);
static_assert(kUsersRememberedMax >= kSessionsMax + kAdminSessionsMax);
// Half of the queue has room for any block with its proof, and for a namespace before it.
static_assert(kEventQueueBytesMin / 2 >= 2 * kProofBytesMax + 4096);

}  // namespace kvtier::daemon::limits
