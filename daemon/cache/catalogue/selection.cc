#include "daemon/cache/catalogue/selection.h"

#include <utility>

#include "daemon/limits.h"

namespace kvtier::daemon {

ModelName ModelName::of(const std::string& model) {
  const auto at = model.rfind('@');
  if (at == std::string::npos) return {model, {}};
  return {model.substr(0, at), model.substr(at + 1)};
}

bool NamespaceFilter::matches(const KnownNamespace& known) const {
  if (known.vacant || (id && known.id != *id)) return false;
  if (model.empty()) return true;
  if (known.is_orphan()) return orphans;
  const ModelName name = ModelName::of(known.ns.model);
  if (name.name != model) return false;
  return revision_rule == Revision::any ||
         (name.revision == revision) == (revision_rule == Revision::is);
}

Result<SelectionWalk> SelectionWalk::over(const Catalogue& catalogue, Selection selection) {
  SelectionWalk walk(catalogue, std::move(selection));
  const NamespaceFilter& in = walk.selection_.in;
  const Namespaces& known = catalogue.namespaces();
  bool any = false;
  for (std::uint16_t ns = 0; ns < known.size(); ++ns) {
    const bool match = in.matches(known[ns]);
    any = any || match;
    walk.incarnations_.push_back(match ? known[ns].incarnation : 0);
  }
  if (!any && !in.is_everything()) {
    return make_error(Errc::not_found,
                      "no namespace is known that matches; `kvtierctl ls` lists those that are");
  }
  if (!walk.selection_.key) return walk;
  const BlockId root = catalogue.find_any(*walk.selection_.key);
  if (root == kNoBlock || !walk.selected(root)) {
    return make_error(Errc::not_found, "no block " + to_hex(*walk.selection_.key) + " is cached");
  }
  walk.ns_ = catalogue.block(root).ns;
  walk.up_ = *walk.selection_.key;
  walk.root_index_ = catalogue.block(root).block_index;
  return walk;
}

bool SelectionWalk::selected(BlockId id) const noexcept {
  const std::uint16_t ns = catalogue_->block(id).ns;
  return ns < incarnations_.size() && incarnations_[ns] != 0 &&
         incarnations_[ns] == catalogue_->namespaces()[ns].incarnation;
}

bool SelectionWalk::next_step() {
  if (!selection_.key) return step_through_all();
  switch (selection_.around) {
    case Selection::Around::block:
      found_.push_back(catalogue_->find_any(*selection_.key));
      if (found_.back() == kNoBlock) found_.clear();
      return false;
    case Selection::Around::ancestors:
      return step_up();
    case Selection::Around::descendants:
      return candidates_complete_ ? step_down() : step_candidates();
  }
  return false;
}

bool SelectionWalk::step_through_all() {
  const std::uint32_t end = catalogue_->numbers_used();
  for (std::uint32_t passed = 0; at_ < end; ++passed) {
    if (passed == limits::kWalkStep || found_.size() == limits::kVisitStep) return true;
    const BlockId id(at_++);
    if (!catalogue_->block(id).tiers.empty() && selected(id)) found_.push_back(id);
  }
  return false;
}

bool SelectionWalk::step_up() {
  while (!up_.is_zero() && found_.size() < limits::kVisitStep) {
    const BlockId id = catalogue_->find_any(up_);
    if (id == kNoBlock || catalogue_->block(id).ns != ns_ || !selected(id)) return false;
    found_.push_back(id);
    up_ = catalogue_->parent(id);
    // A prefix is finite; keys that name each other in a circle would have to be made on purpose.
    if (at_++ == catalogue_->capacity()) return false;
  }
  return !up_.is_zero();
}

bool SelectionWalk::step_candidates() {
  const std::uint32_t end = catalogue_->numbers_used();
  for (std::uint32_t passed = 0; at_ < end; ++passed) {
    if (passed == limits::kWalkStep) return true;
    const BlockId id(at_++);
    const Block& block = catalogue_->block(id);
    if (!block.tiers.empty() && block.ns == ns_ && block.block_index > root_index_)
      candidates_[block.block_index].push_back(id);
  }
  candidates_complete_ = true;
  const BlockId root = catalogue_->find_any(*selection_.key);
  if (root != kNoBlock && selected(root)) found_.push_back(root);
  parents_.insert(*selection_.key);
  return true;
}

// Level by level: a block belongs if its parent, one level up, does.
bool SelectionWalk::step_down() {
  std::uint32_t passed = 0;
  while (!candidates_.empty() && candidates_.begin()->first == root_index_ + 1) {
    const std::vector<BlockId>& level = candidates_.begin()->second;
    for (; at_candidate_ < level.size(); ++at_candidate_) {
      if (passed++ == limits::kWalkStep || found_.size() == limits::kVisitStep) return true;
      const BlockId id = level[at_candidate_];
      const Block& block = catalogue_->block(id);
      if (block.tiers.empty() || !selected(id) || block.block_index != root_index_ + 1) continue;
      if (!parents_.contains(catalogue_->parent(id))) continue;
      children_.insert(block.key);
      found_.push_back(id);
    }
    candidates_.erase(candidates_.begin());
    at_candidate_ = 0;
    ++root_index_;
    parents_ = std::exchange(children_, {});
    if (parents_.empty()) return false;
  }
  return false;
}

}  // namespace kvtier::daemon
