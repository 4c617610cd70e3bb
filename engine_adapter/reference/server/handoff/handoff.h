// Requests of which one engine computes the prompt and another gives the answer. They meet in the
// cache: what the one has stored, the other takes (docs/disaggregation.md).
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine_adapter/reference/scheduler/prefix/cache_spaces.h"
#include "engine_adapter/reference/server/api_request.h"

namespace kvtier::engine::server {

// What a server is there for.
enum class Role : std::uint8_t {
  both,     // whatever a request asks for
  prefill,  // computes prompts for others, whatever a request asks for
  decode,   // answers; prompts that nobody computes for it it computes itself
};

// Makes of `request` what a server of this role does with it: of a prompt that is computed for
// another engine one token is chosen, and what else was asked of the answer is that engine's.
// Errors: 400, where the request is not for this role, or cannot be handed over.
ApiResult<void> take_role(Role role, ApiRequest& request);

// A prompt that is computed for another engine, and where to.
struct ForAnother {
  CacheSpace space;  // with a cache
  std::vector<Token> prompt;
};
// Before `request` is submitted. Errors: 400, where what it awaits does not come to this engine's
// namespace, or there is no cache to hand a prompt over in; those of CacheSpaces::space().
ApiResult<std::optional<ForAnother>> begin_handoff(const Handoff& handoff, CacheSpaces& spaces,
                                                   Request& request);

// Of a prompt that was computed, in tokens of blocks that another engine can take.
struct Stored {
  std::uint32_t tokens = 0;
  std::uint32_t missing = 0;  // they are not in the cache

  // `kv_transfer_params` of the answer, and of the request to the other engine.
  OrderedJson params(const NamespaceId& ns) const;
};
// Waits until the cache has all of its blocks, for as long as it gets more of them every
// `patience`. Runs on the caller's executor; `prompt` outlives it.
boost::asio::awaitable<Stored> wait_stored(const ForAnother& prompt,
                                           std::chrono::milliseconds patience);

}  // namespace kvtier::engine::server
