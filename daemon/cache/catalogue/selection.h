// Which blocks an administrator means: those of some namespaces, one block, what comes before it in
// its prefix, or all that descends from it. And the walk that finds them, in steps that never keep
// the control thread for long, however many blocks there are.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/record/key_hash.h"
#include "daemon/cache/catalogue/catalogue.h"

namespace kvtier::daemon {

// "name@revision", as engines name their models (Namespace::model): up to the last '@', and after
// it. Without one there is no revision.
struct ModelName {
  std::string name, revision;
  static ModelName of(const std::string& model);
};

// Namespaces by what is given; nothing given: all.
struct NamespaceFilter {
  enum class Revision : std::uint8_t { any = 0, is = 1, is_not = 2 };
  std::optional<NamespaceId> id;
  std::string model;  // without its revision
  Revision revision_rule = Revision::any;
  std::string revision;
  bool orphans = false;  // those known by their id alone too, where a model is asked for

  bool is_everything() const noexcept { return !id && model.empty(); }
  bool matches(const KnownNamespace& known) const;
};

struct Selection {
  enum class Around : std::uint8_t { block = 0, ancestors = 1, descendants = 2 };
  NamespaceFilter in;
  std::optional<Key> key;  // none: every block of those namespaces
  Around around = Around::block;
};

// Goes through a selection once. A block that is there from the first step to the last and is not
// moved in its prefix is visited exactly once; one that comes meanwhile may be missed. Namespaces
// that are opened meanwhile are not part of it.
//
// Descendants are found by their parents' keys, so those behind a block that has been evicted are
// not: nothing could reach them either until that block is there again.
class SelectionWalk {
 public:
  // Errors: not_found (no namespace or no block of that name).
  static Result<SelectionWalk> over(const Catalogue& catalogue, Selection selection);

  // Calls `visit` for the next few blocks; it may remove the block that it is given, and nothing
  // else. False once all are visited.
  template <class Visit>
  bool step(Visit&& visit) {
    found_.clear();
    const bool more = next_step();
    for (const BlockId id : found_) visit(id);
    return more;
  }

 private:
  SelectionWalk(const Catalogue& catalogue, Selection selection)
      : catalogue_(&catalogue), selection_(std::move(selection)) {}
  bool selected(BlockId id) const noexcept;
  bool next_step();
  bool step_through_all();
  bool step_up();
  bool step_candidates();
  bool step_down();

  using Keys = std::unordered_set<Key, KeyHash>;

  const Catalogue* catalogue_;
  Selection selection_;
  std::vector<std::uint64_t> incarnations_;  // by namespace: 0 where it is not selected
  std::vector<BlockId> found_;               // by this step
  std::uint32_t at_ = 0;                     // the next number to look at
  // Of a walk along prefixes.
  std::uint16_t ns_ = 0;
  Key up_;  // the next ancestor
  std::uint32_t root_index_ = 0;
  bool candidates_complete_ = false;
  std::map<std::uint32_t, std::vector<BlockId>> candidates_;  // by their place in the prefix
  std::size_t at_candidate_ = 0;
  Keys parents_, children_;  // of the level under way and of the next
};

}  // namespace kvtier::daemon
