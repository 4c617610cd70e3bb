// What is asked of the remote tier before a lease is answered: which of the blocks behind those
// that are known are there. Owned by the control thread.
//
// One question for all the keys of a prompt that nothing is known of. Whoever asks is answered when
// the store is, or when the time for it is over, whichever comes first; what the store finds later
// is learnt all the same. Two that ask for the same share one question. What was not there a moment
// ago is not asked for again. Both are bounded; past the bounds nobody is asked, and nobody waits.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "daemon/cache/remote/absent_keys.h"
#include "daemon/cache/remote/remote_knowledge.h"

namespace kvtier::daemon {

class RemoteLookups {
 public:
  // All outlive this; `store` may be null, and `after` be set after this has been made. Without it
  // nobody waits longer than the store says.
  RemoteLookups(const RemoteTierOptions& options, storage::RemoteStore* store, Catalogue& catalogue,
                RemoteKnowledge& knowledge, const daemon::After& after, RemoteCounts& counts);
  RemoteLookups(const RemoteLookups&) = delete;

  // Blocks of a prompt that follow one another. `first`: the number of the first of them; none: not
  // told, and then nothing is asked unless it is known.
  struct Prompt {
    std::uint16_t ns = 0;
    std::span<const Key> keys;
    std::optional<std::uint32_t> first;
  };
  // True: `done` is called once, later. False: there is nothing to ask, and it is not called.
  bool ask(const Prompt& prompt, std::function<void()> done);
  // Questions that somebody waits for, or whose answers are still to come.
  std::size_t under_way() const noexcept { return asked_.size(); }
  // A block is there now.
  void forget_absent(const Key& key) { absent_.forget(key); }

 private:
  struct Question {
    std::uint16_t ns = 0;
    std::uint64_t incarnation = 0;
    RemoteKnowledge::After behind;
    std::vector<Key> keys;
    std::vector<std::function<void()>> waiting;
    std::chrono::steady_clock::time_point began;
    bool late = false;
  };
  std::optional<RemoteKnowledge::After> end_of_known(const Prompt& prompt,
                                                     std::size_t& known) const;
  bool send(std::uint64_t number, Question question);
  void answered(std::uint64_t number, const Result<std::size_t>& found);
  void learn(const Question& question, std::size_t found);
  void time_over(std::uint64_t number);
  void tell(Question& question);

  const RemoteTierOptions& options_;
  storage::RemoteStore* store_;
  Catalogue& catalogue_;
  RemoteKnowledge& knowledge_;
  const daemon::After& after_;
  RemoteCounts& counts_;
  AbsentKeys absent_;
  std::map<std::uint64_t, Question> asked_;                 // by number
  std::unordered_map<Key, std::uint64_t, KeyHash> by_key_;  // their first keys
  std::size_t waiting_ = 0;                                 // for all of them
  std::uint64_t next_ = 1;
};

}  // namespace kvtier::daemon
