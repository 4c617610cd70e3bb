// What lies in the EventQueue. Plain bytes of one process: they are read as they were written.
#pragma once

#include <cstdint>

#include "kvtier/key.h"
#include "kvtier/tier.h"

namespace kvtier::daemon::events {

enum class EntryKind : std::uint8_t {
  block,         // where a block can be found now; its tokens behind it, where they are known
  space,         // what a namespace's number means from here on; its model and adapter behind it
  walk_begun,    // all blocks are told once more: those that are not told until the end are gone
  walk_goes_on,  // the next step of the walk is to be asked for
  walk_ended,
};

struct BlockEntry {
  EntryKind kind = EntryKind::block;
  TierSet tiers{};  // none: it is found no more
  std::uint16_t ns = 0;
  std::uint32_t block_index = 0;
  Key key, parent;
};

struct SpaceEntry {
  EntryKind kind = EntryKind::space;
  std::uint16_t ns = 0;
  std::uint32_t block_tokens = 0;
  std::uint32_t model_bytes = 0;  // of what follows; the rest is the adapter
  NamespaceId id;
};

struct WalkEntry {
  EntryKind kind = EntryKind::walk_begun;
};

}  // namespace kvtier::daemon::events
