// What all processes of a run count together: in memory that they share from the start.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "kvtier/result.h"

namespace kvtier::protocol {

// What a hostile client does beside sending whole messages, which are counted by their kind.
enum class Act : std::uint8_t {
  connect,
  disconnect,     // with all that it holds
  half_close,     // sends no more and reads on
  die,            // the process, at once
  mutated,        // a message with words of it changed
  broken_header,  // a frame whose header breaks a rule
  truncated,      // a frame that ends early, and the connection with it
  trickled,       // byte by byte
  descriptors,    // descriptors with what has none
  flood,          // requests whose answers are not read
  crowd,          // many connections that say nothing
  storm,          // many sessions one after the other
  scribble,       // over records in shared memory
  scribble_late,  // from a thread, while the daemon is asked to look at them
  punch,          // a hole into shared memory
  seal,           // shared memory against the daemon or others
  resize,         // shared memory
  advise,         // the kernel, about shared memory
  overreach,      // asks for access that the session may not have
  read_directory,
  idle,
};
inline constexpr std::array kActNames{
    "connect",   "disconnect",     "half close",  "die",   "mutated", "broken header",
    "truncated", "trickled",       "descriptors", "flood", "crowd",   "storm",
    "scribble",  "scribble late",  "punch",       "seal",  "resize",  "advise",
    "overreach", "read directory", "idle"};
inline constexpr std::size_t kActs = kActNames.size();
static_assert(kActs == static_cast<std::size_t>(Act::idle) + 1);

// By microseconds, sixteen buckets an octave: figures are right to a sixteenth.
class Latencies {
 public:
  void add(std::chrono::nanoseconds took) noexcept;
  std::uint64_t count() const noexcept { return count_.load(); }
  std::chrono::microseconds max() const noexcept { return std::chrono::microseconds(max_.load()); }
  // Which `part` (0 to 1) of all did not exceed.
  std::chrono::microseconds quantile(double part) const noexcept;

 private:
  static constexpr std::size_t kFine = 16;
  static constexpr std::size_t kBuckets = 40 * kFine;
  std::array<std::atomic<std::uint64_t>, kBuckets> buckets_{};
  std::atomic<std::uint64_t> count_{0}, max_{0};
};

// Things that must not be: what makes a run fail. Each kind is kept once.
struct Failures {
  static constexpr std::size_t kKept = 16, kBytes = 6500;
  static constexpr std::uint32_t kNone = 0, kBeingWritten = 1, kWritten = 2;
  struct Kind {
    std::atomic<std::uint32_t> state{kNone}, times{0};
    char text[kBytes] = {};
  };
  Kind kinds[kKept];
  std::atomic<std::uint64_t> others{0};

  void add(const std::string& what) noexcept;
  bool any() const noexcept;
  std::vector<std::string> all() const;
};

// Whose extents a session has: those of a tenant that is isolated never go to another's.
class ExtentOwners {
 public:
  // False where memory with this inode was seen by a client of another pool.
  bool seen(std::uint64_t inode, std::uint8_t pool) noexcept;
  void clear() noexcept;

 private:
  std::array<std::atomic<std::uint64_t>, 4096> by_inode_{};
};

struct Tally {
  static constexpr std::size_t kMessages = 96;  // the wire has fewer kinds
  static constexpr std::size_t kCodes = 16;     // and errors

  // Null where there is no memory. Shared with the processes that are forked after it.
  static Tally* share();

  std::array<std::atomic<std::uint64_t>, kMessages> sent{}, answered{};
  std::array<std::atomic<std::uint64_t>, kCodes> refused{};
  std::array<std::atomic<std::uint64_t>, kActs> acts{};
  std::atomic<std::uint64_t> ended{0};  // connections, by the daemon
  std::atomic<std::uint64_t> slots_given{0}, blocks_taken{0}, blocks_leased{0}, blocks_read{0};
  std::atomic<std::uint64_t> operations{0};
  std::atomic<bool> stop{false};        // the hostile
  std::atomic<bool> fuzzing{false};     // the hostile are there
  std::atomic<bool> round_over{false};  // everybody else
  Failures failures;
  ExtentOwners owners;
  // Slots and leases that somebody has or had, for those to name who have not.
  std::array<std::atomic<std::uint64_t>, 256> slots{}, leases{};
  std::atomic<std::uint64_t> any_slot{0}, any_lease{0};

  struct Honest {
    Latencies lease[2], memory[2], disk[2];  // alone, and beside the hostile
    std::atomic<std::uint64_t> blocks_right{0}, blocks_wrong{0}, blocks_missed{0},
        blocks_written{0};
    std::atomic<std::uint64_t> deadlines{0}, connects{0};
    std::atomic<bool> connected{false}, warm{false};
  } honest;
  struct Probe {
    Latencies round_trip[2];
    std::atomic<bool> connected{false};
    std::atomic<std::int64_t> asked_us{0};  // since when it waits for an answer; 0: it does not
  } probe;

  void did(Act act) noexcept;
  void sent_message(std::uint16_t kind) noexcept;
};

std::int64_t now_us() noexcept;

}  // namespace kvtier::protocol
