// What a hostile session has been given: namespaces, slots, leases, memory. It is kept so that most
// of what the session asks makes sense, and the rest misses by little. Owned by the session.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tests/protocol/hostile/seen_memory.h"
#include "tests/protocol/hostile/universe.h"
#include "tests/protocol/tally.h"

namespace kvtier::protocol {

struct Who {
  const char* kind;
  uid_t user = kWriter;
  std::uint8_t pool = kSharedPool;
  bool reader = false;  // the daemon lets it do no more
  bool administrator = false;
};

class Belongings {
 public:
  struct Opened {
    std::uint32_t handle = 0;
    std::size_t ns = 0;  // of the universe
  };
  struct Held {
    std::uint64_t slot = 0;
    std::size_t ns = 0;
    Tier tier = Tier::host;
  };

  // All outlive it.
  Belongings(const Who& who, const Universe& universe, Tally& tally, Random& random);
  Belongings(const Belongings&) = delete;
  Belongings& operator=(const Belongings&) = delete;

  // The connection has gone, and with it all but what the next hello may claim.
  void clear();

  void opened_namespace(const Opened& opened) { opened_.push_back(opened); }
  void given_slot(const Held& held);
  void given_lease(std::uint64_t lease);

  // One that it has, now and then a little off; or one of the universe's that it may have.
  Opened pick_opened();
  // One to commit to: of a namespace of which it holds slots, mostly.
  Opened pick_to_commit();
  // Of a block of such a namespace; now and then none.
  std::optional<Key> pick_key();
  // A lease of its own, which it then forgets, or any.
  std::uint64_t lease_to_name();
  // A slot that it once had, or any.
  std::uint64_t slot_to_name();
  // The same, or one that it holds, which it then forgets.
  std::uint64_t slot_to_abandon();
  // Slots for a record in each tier, `block` written to them, which it then forgets; now and then
  // others with them.
  std::vector<std::uint64_t> slots_to_commit(const TestBlock& block, std::size_t ns);
  std::vector<std::uint64_t> own_slots() const;

  SeenMemory memory;
  bool read_only = false;  // as the daemon said
  // It knows what it has said: nothing was garbled, and it has not claimed what it has not.
  bool certain = true;
  // For a hello that follows another connection.
  std::vector<std::byte> lineage;
  const std::vector<std::uint32_t>& earlier_extents() const noexcept { return earlier_extents_; }

 private:
  const Who& who_;
  const Universe& universe_;
  Tally& tally_;
  Random& random_;
  std::vector<Opened> opened_;
  std::vector<Held> held_;
  std::vector<std::uint64_t> spent_, leases_;
  std::vector<std::uint32_t> earlier_extents_;
};

}  // namespace kvtier::protocol
