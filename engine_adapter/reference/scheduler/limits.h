// Every bound of the scheduler in one place.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvtier::engine {

// Beyond these submit() refuses: each branch keeps exact pages of its own, two while it goes on,
// and beams exist twice while the next are made of them.
inline constexpr std::uint32_t kSamplesMax = 128;
inline constexpr std::uint32_t kBeamsMax = 64;
inline constexpr std::uint32_t kExactPerBranch = 2;
inline constexpr std::uint32_t kBeamGenerations = 2;
// Exact pages whose memory is kept though nobody uses them.
inline constexpr std::uint32_t kExactKept = 64;
inline constexpr std::uint32_t kTopLogprobsMax = 20;
// Logits of a step that are looked at for the prompts' tokens, and the rows they are of.
inline constexpr std::size_t kToldBytesMax = std::size_t{64} << 20;
inline constexpr std::uint32_t kToldRowsMax = 1024;
inline constexpr std::uint32_t kStopTokensMax = 256;
// Tokens proposed for an answer in one step: with the one that is certain fewer than a block has,
// so that they can be taken back (Sequence::take_back).
inline constexpr std::uint32_t kProposalsMax = 14;
inline constexpr std::uint32_t kProposalsUsual = 8;
// Tokens that a draft model has of an answer, at most.
inline constexpr std::uint32_t kDraftContext = 1024;
// Of a step's rows this part may be proposals; the rest is for prompts.
inline constexpr std::uint32_t kProposedPart = 4;
inline constexpr std::uint32_t kRunningMax = 4096;
inline constexpr std::uint32_t kWaitingMax = 1U << 20;
// Clients whose share is remembered while they ask for nothing.
inline constexpr std::uint32_t kIdleClientsMax = 4096;
inline constexpr std::uint32_t kCacheSaltsMax = 1024;  // with a namespace of the cache

// Ranges of one request on their way at once, where it computes and loads at once.
inline constexpr std::uint32_t kPiecesInFlight = 2;
// A range takes at most this part of the request's deadline, as far as that can be told.
inline constexpr double kPieceDeadlinePart = 0.25;
// Blocks that are asked for to learn how fast the disk is: a slow one has given them by the time
// that the rest is computed.
inline constexpr std::uint32_t kBlocksToTellRate = 32;
// How often what a parked request leaves behind is offered to the cache, until all of it is held.
inline constexpr int kParkingOffersMax = 3;
// How often a computed block is offered to the cache, until it takes it; the first wait between two
// offers, each is twice the one before; and the write-backs that are remembered for it.
inline constexpr int kOffersMax = 5;
inline constexpr std::chrono::milliseconds kOfferAgain{150};
inline constexpr std::size_t kOffersOwedMax = 256;

// How soon the engine looks again, with nothing to compute, for blocks on their way; and where it
// only waits for somebody else: for another engine's blocks, say.
inline constexpr std::chrono::microseconds kPollInterval{100};
inline constexpr std::chrono::microseconds kIdlePollInterval{1000};
// How often a request looks for another engine's blocks: a look goes over its whole prompt, which
// takes some 0.1 ms for 32,768 tokens, and a chunk of a prompt takes far longer to compute.
inline constexpr std::chrono::milliseconds kAwaitedInterval{5};
// The same of a store that hosts share: the daemon itself does not ask it for the same again sooner
// than after a second.
inline constexpr std::chrono::milliseconds kAwaitedFurtherInterval{250};

static_assert(kPiecesInFlight >= 1 && kParkingOffersMax >= 1 && kOffersMax >= 2);

}  // namespace kvtier::engine
