// A block whose bytes are in its slots, on its way to the daemon's commit.
#pragma once

#include <memory>
#include <vector>

#include "client/session/namespace_entry.h"

namespace kvtier::session {

struct FilledBlock {
  std::shared_ptr<NamespaceEntry> ns;
  Key key;
  Key parent;
  std::uint32_t block_index = 0;
  std::vector<std::byte> proof;
  std::vector<ReservedSlot> slots;  // one a tier, all of one connection
  std::uint32_t prompt_blocks = 0;  // of its sequence, as far as that had come; 0: not known
  std::uint32_t answer_tokens = 0;  // to be generated behind that; 0: not told
};

}  // namespace kvtier::session
