// Commits: what makes a filled block visible. Owned by the control thread.
//
// A block is in the index only with a record that proves what it is: its key follows from its
// namespace, its parent and its tokens, and the record's header says the same. Where the daemon
// cannot read the slot, another tier must have proven it. What is in a tier is never replaced: a
// second writer's slots are freed. Whatever becomes of a commit, none of its slots stays lent.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/cache/catalogue/cache_counts.h"
#include "daemon/cache/loans/loans.h"

namespace kvtier::daemon {

class Commits {
 public:
  Commits(Catalogue& catalogue, MemoryTiers& memory, DiskTier& disk, RemoteTier& remote,
          Placements& placements, Room& room, Loans& loans, CacheCounts& counts) noexcept
      : catalogue_(catalogue),
        memory_(memory),
        disk_(disk),
        remote_(remote),
        placements_(placements),
        room_(room),
        loans_(loans),
        counts_(counts) {}

  struct NewBlock {
    Key key, parent;
    std::uint32_t block_index = 0;
    std::span<const std::byte> proof;
    std::span<const SlotName> slots;  // at most one a tier
    std::uint32_t prompt_blocks = 0;  // of the prompt that it is a block of; 0: not told
    std::uint32_t answer_tokens = 0;  // that are generated behind it; 0: not told
  };
  // A slot of a tier that has the block already is freed, and those after it too: what another
  // writer stored is what every tier is to have. False if it was refused (its slots, where the
  // session holds them, are freed). A slot that the daemon cannot address is taken only for a block
  // that is, by then, in another tier too.
  bool commit(SessionId session, std::uint16_t ns, const NewBlock& block);

 private:
  enum class Taken { yes, no, there_before };
  bool valid(const NewBlock& block, std::uint16_t ns) const;
  Taken take_slot(SlotName name, Tier tier, BlockId& id, std::uint16_t ns, const NewBlock& block,
                  bool good);
  BlockId add(std::uint16_t ns, const NewBlock& block);

  Catalogue& catalogue_;
  MemoryTiers& memory_;
  DiskTier& disk_;
  RemoteTier& remote_;
  Placements& placements_;
  Room& room_;
  Loans& loans_;
  CacheCounts& counts_;
};

}  // namespace kvtier::daemon
