// Sends filled blocks to the daemon's commit, many of one namespace in a frame.
//
// Owned by the session, on its thread. A block whose slots are of an earlier connection is dropped
// and counted: its slots are the daemon's business again. Nobody waits for the answers.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "client/session/counters.h"
#include "client/session/filled_block.h"
#include "client/session/thread/conversation.h"

namespace kvtier::session {

class Commits {
 public:
  // `slots_changed`: slots that were refused may be had now.
  Commits(Conversation& conversation, Counters& counters, std::function<void()> slots_changed)
      : conversation_(conversation),
        counters_(counters),
        slots_changed_(std::move(slots_changed)) {}

  void send(std::vector<FilledBlock> blocks);

 private:
  void send_frame(std::span<const FilledBlock> blocks);

  Conversation& conversation_;
  Counters& counters_;
  const std::function<void()> slots_changed_;
};

}  // namespace kvtier::session
