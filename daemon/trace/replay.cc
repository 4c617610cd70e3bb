#include "daemon/trace/replay.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "core/base/check.h"
#include "core/wire/directory.h"
#include "daemon/trace/replay_cache.h"

namespace kvtier::daemon {

Result<Replayed> replay(const Trace& trace, const ReplayOptions& options) {
  auto cache = ReplayCache::create(trace, options);
  if (!cache) return cache.error();
  for (const TracedRequest& request : trace.requests) (*cache)->request(request);
  return (*cache)->replayed();
}

namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

// Of each block of each request, the request that uses it next.
std::vector<std::vector<std::uint64_t>> next_uses(const Trace& trace) {
  std::vector<std::vector<std::uint64_t>> next(trace.requests.size());
  std::unordered_map<std::uint64_t, std::uint64_t> soonest;
  soonest.reserve(trace.different_blocks);
  for (std::size_t at = trace.requests.size(); at-- > 0;) {
    const auto& blocks = trace.requests[at].blocks;
    next[at].reserve(blocks.size());
    for (const std::uint64_t block : blocks) {
      const auto known = soonest.find(block);
      next[at].push_back(known == soonest.end() ? kNever : known->second);
    }
    for (const std::uint64_t block : blocks) soonest[block] = at;
  }
  return next;
}

// The block that is used last goes first, and of those of one request the last of its prefix.
struct NextUse {
  std::uint64_t next = 0;
  std::size_t index = 0;
  std::uint64_t block = 0;
  bool operator<(const NextUse& other) const noexcept {
    return std::tie(next, index) < std::tie(other.next, other.index);
  }
};

}  // namespace

Replayed replay_optimum(const Trace& trace, std::uint64_t blocks) {
  const auto next = next_uses(trace);
  std::unordered_map<std::uint64_t, std::uint64_t> there;  // and when it is used next
  std::priority_queue<NextUse> going;
  Replayed done;
  for (std::size_t at = 0; at < trace.requests.size(); ++at) {
    const auto& prompt = trace.requests[at].blocks;
    const auto known = std::ranges::find_if_not(
        prompt, [&](std::uint64_t block) { return there.contains(block); });
    done.blocks += prompt.size();
    done.hits[index_of(Tier::host)] += static_cast<std::uint64_t>(known - prompt.begin());
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      there[prompt[i]] = next[at][i];
      going.push({next[at][i], i, prompt[i]});
    }
    for (; there.size() > blocks; going.pop()) {
      const NextUse last = going.top();
      const auto of = there.find(last.block);
      if (of != there.end() && of->second == last.next) there.erase(of);
    }
  }
  return done;
}

Replayed replay_endless(const Trace& trace) {
  std::unordered_set<std::uint64_t> there;
  there.reserve(trace.different_blocks);
  Replayed done;
  for (const TracedRequest& request : trace.requests) {
    const auto known = std::ranges::find_if_not(
        request.blocks, [&](std::uint64_t block) { return there.contains(block); });
    done.blocks += request.blocks.size();
    done.hits[index_of(Tier::host)] += static_cast<std::uint64_t>(known - request.blocks.begin());
    there.insert(request.blocks.begin(), request.blocks.end());
  }
  return done;
}

}  // namespace kvtier::daemon
