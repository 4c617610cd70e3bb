#include "client/session/thread/commits.h"

#include <algorithm>

#include "client/session/limits.h"
#include "client/session/thread/wire_values.h"

namespace kvtier::session {

void Commits::send(std::vector<FilledBlock> blocks) {
  const auto& connection = conversation_.connection();
  const auto gone = std::erase_if(blocks, [&](const FilledBlock& b) {
    return !connection || b.slots.front().connection != connection;
  });
  if (gone > 0) counters_.drop(DropReason::disconnected, gone);
  std::ranges::stable_sort(blocks, {}, [](const FilledBlock& b) { return b.ns.get(); });
  for (std::size_t at = 0; at < blocks.size();) {
    std::size_t end = at;
    while (end < blocks.size() && end - at < wire::kCommitBlocksMax &&
           blocks[end].ns == blocks[at].ns)
      ++end;
    send_frame(std::span(blocks).subspan(at, end - at));
    at = end;
  }
}

void Commits::send_frame(std::span<const FilledBlock> blocks) {
  bool refused = false;
  for (SlotPool& pool : blocks.front().ns->pools) refused = pool.committed() || refused;
  if (refused) slots_changed_();
  const auto done = [](Result<wire::Message::Reader> reply) -> Result<void> {
    if (reply && !reply->isCommitted()) return malformed("something else than commits");
    return {};
  };
  conversation_.ask(
      [&](wire::Message::Builder m) {
        auto commit = m.initCommit();
        commit.setNs(blocks.front().ns->handle);
        auto list = commit.initBlocks(static_cast<unsigned>(blocks.size()));
        for (unsigned i = 0; i < list.size(); ++i) {
          const FilledBlock& from = blocks[i];
          auto to = list[i];
          to.setKey(data(from.key));
          to.setParent(data(from.parent));
          to.setBlockIndex(from.block_index);
          to.setPromptBlocks(from.prompt_blocks);
          to.setAnswerTokens(from.answer_tokens);
          to.setProof(data(from.proof.data(), from.proof.size()));
          auto slots = to.initSlots(static_cast<unsigned>(from.slots.size()));
          for (unsigned s = 0; s < slots.size(); ++s) slots.set(s, from.slots[s].ref.name);
        }
      },
      done);
}

}  // namespace kvtier::session
