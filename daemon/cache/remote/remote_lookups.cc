#include "daemon/cache/remote/remote_lookups.h"

#include <utility>

#include "core/base/points.h"
#include "daemon/limits.h"

namespace kvtier::daemon {

RemoteLookups::RemoteLookups(const RemoteTierOptions& options, storage::RemoteStore* store,
                             Catalogue& catalogue, RemoteKnowledge& knowledge,
                             const daemon::After& after, RemoteCounts& counts)
    : options_(options),
      store_(store),
      catalogue_(catalogue),
      knowledge_(knowledge),
      after_(after),
      counts_(counts),
      absent_(limits::kRemoteAbsentMax, options.absent_time) {}

// Sets `known` to how many leading blocks are known; none where nobody knows which block of a
// prefix comes next.
std::optional<RemoteKnowledge::After> RemoteLookups::end_of_known(const Prompt& prompt,
                                                                  std::size_t& known) const {
  std::vector<BlockId> ids(prompt.keys.size());
  known = catalogue_.find_prefix(prompt.ns, prompt.keys, ids);
  if (known != 0) {
    return RemoteKnowledge::After{prompt.keys[known - 1],
                                  catalogue_.block(ids[known - 1]).block_index + 1};
  }
  if (prompt.first == 0U) return RemoteKnowledge::After{};
  return std::nullopt;
}

bool RemoteLookups::ask(const Prompt& prompt, std::function<void()> done) {
  if (store_ == nullptr || !knowledge_.readable() || prompt.keys.empty() ||
      !knowledge_.may_look_for(prompt.ns)) {
    return false;
  }
  std::size_t known = 0;
  const auto behind = end_of_known(prompt, known);
  if (known == prompt.keys.size() || !behind) return false;
  const Key& first = prompt.keys[known];
  if (absent_.has(first, options_.now())) {
    ++counts_.known_absent;
    return false;
  }
  if (knowledge_.bars().has(first)) return false;
  if (const auto same = by_key_.find(first); same != by_key_.end()) {
    Question& question = asked_.at(same->second);
    // Its time is over: whoever asks now would wait for nothing.
    if (question.late || waiting_ >= limits::kRemoteWaitingMax) return false;
    question.waiting.push_back(std::move(done));
    ++waiting_;
    return true;
  }
  if (asked_.size() >= limits::kRemoteLookupsMax || waiting_ >= limits::kRemoteWaitingMax) {
    ++counts_.failed;
    return false;
  }
  const auto rest = prompt.keys.subspan(known);
  Question question{prompt.ns, catalogue_.namespaces()[prompt.ns].incarnation,
                    *behind,   {rest.begin(), rest.end()},
                    {},        options_.now(),
                    false};
  question.waiting.push_back(std::move(done));
  return send(next_++, std::move(question));
}

bool RemoteLookups::send(std::uint64_t number, Question question) {
  std::vector<Key> keys = question.keys;
  const Key first = keys.front();
  const auto deadline = question.began + options_.lookup_timeout;
  const std::size_t count = keys.size();
  by_key_.emplace(first, number);
  asked_.emplace(number, std::move(question));
  const auto sent =
      store_->find(std::move(keys), deadline,
                   [this, number](const Result<std::size_t>& found) { answered(number, found); });
  if (!sent) {
    ++counts_.failed;
    by_key_.erase(first);
    asked_.erase(number);
    return false;
  }
  ++waiting_;
  ++counts_.asked;
  counts_.asked_blocks += count;
  KVTIER_POINT("daemon.remote.asked");
  if (after_) after_(options_.lookup_timeout, [this, number] { time_over(number); });
  return true;
}

void RemoteLookups::answered(std::uint64_t number, const Result<std::size_t>& found) {
  auto node = asked_.extract(number);
  if (node.empty()) return;
  Question& question = node.mapped();
  const auto now = options_.now();
  by_key_.erase(question.keys.front());
  counts_.lookup_us.add(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now - question.began).count()));
  if (found) {
    learn(question, *found);
    if (*found < question.keys.size()) absent_.add(question.keys[*found], now);
  } else {
    // The next one would wait as long for as little.
    ++counts_.failed;
    absent_.add(question.keys.front(), now);
  }
  tell(question);
}

// Whoever is told may ask for more.
void RemoteLookups::tell(Question& question) {
  const auto waiting = std::exchange(question.waiting, {});
  waiting_ -= waiting.size();
  for (const auto& done : waiting) done();
}

// The number of the namespace may be another's by now, and what was known before may have gone.
void RemoteLookups::learn(const Question& question, std::size_t found) {
  counts_.found_blocks += found;
  const bool same = question.ns < catalogue_.namespaces().size() &&
                    catalogue_.namespaces()[question.ns].incarnation == question.incarnation;
  if (!same || !knowledge_.may_look_for(question.ns)) return;
  knowledge_.learn(question.ns, question.behind, std::span(question.keys).first(found));
}

void RemoteLookups::time_over(std::uint64_t number) {
  const auto at = asked_.find(number);
  if (at == asked_.end()) return;
  ++counts_.late;
  at->second.late = true;
  tell(at->second);
}

}  // namespace kvtier::daemon
