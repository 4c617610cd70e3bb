#include "engine_adapter/reference/server/handoff/handoff.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/base/shown.h"

namespace kvtier::engine::server {
namespace {

constexpr const char* kField = "kv_transfer_params";
constexpr std::chrono::milliseconds kLookInterval{2};

}  // namespace

ApiResult<void> take_role(Role role, ApiRequest& request) {
  Handoff& handoff = request.handoff;
  if (role == Role::prefill && handoff.awaits_prompt) {
    return bad_request(kField,
                       "kv_transfer_params: do_remote_prefill asks for an answer, and this engine "
                       "computes prompts for "
                       "others (--role prefill); send it to one that decodes");
  }
  if (role == Role::decode && handoff.computes_prompt) {
    return bad_request(kField,
                       "kv_transfer_params: do_remote_decode asks for a prompt to be computed for "
                       "another engine, and "
                       "this one answers (--role decode); send it to one that prefills");
  }
  if (role == Role::prefill) handoff.computes_prompt = true;
  if (!handoff.computes_prompt && !handoff.awaits_prompt) return {};
  if (request.parts() != 1) {
    return bad_request("prompt",
                       "prompt: is a list, and one prompt at a time is handed over; send each by "
                       "itself, or all to an engine that decodes, without " +
                           std::string(kField));
  }
  if (!handoff.computes_prompt) return {};
  if (request.stream) {
    return bad_request("stream",
                       "stream: is for the engine that answers; a prompt that is computed for it "
                       "has one token, and comes whole");
  }
  request.tokens_max = 1;
  request.answers = 1;
  request.beam = {};
  request.echo = request.logprobs = false;
  request.top_logprobs = 0;
  request.stops.clear();
  return {};
}

ApiResult<std::optional<ForAnother>> begin_handoff(const Handoff& handoff, CacheSpaces& spaces,
                                                   Request& request) {
  if (!handoff.computes_prompt && !handoff.awaits_prompt) return std::optional<ForAnother>{};
  auto space = spaces.space(request.cache_salt);
  if (!space) return to_api(space.error());
  if (handoff.computes_prompt && space->cache == nullptr) {
    return bad_request(kField,
                       "kv_transfer_params: there is no cache here to hand the prompt over in");
  }
  if (handoff.computes_prompt) return std::optional(ForAnother{std::move(*space), request.prompt});
  if (!handoff.ns.empty() && handoff.ns != to_hex(space->id)) {
    return ApiError{.status = 400,
                    .message = std::string(kField) + ": the prompt was computed in namespace " +
                               shown(handoff.ns) + ", this engine's is " + to_hex(space->id) +
                               ": both must have the same model, name, weights, storage format "
                               "and cache_salt",
                    .param = kField,
                    .code = "handoff_mismatch"};
  }
  const auto all = static_cast<std::uint32_t>(request.prompt.size());
  request.awaited_tokens = handoff.tokens.value_or(all);
  return std::optional<ForAnother>{};
}

OrderedJson Stored::params(const NamespaceId& ns) const {
  return {{"do_remote_prefill", true},
          {"do_remote_decode", false},
          {"kvtier_namespace", to_hex(ns)},
          {"kvtier_tokens", tokens},
          {"kvtier_missing_tokens", missing}};
}

boost::asio::awaitable<Stored> wait_stored(const ForAnother& prompt,
                                           std::chrono::milliseconds patience) {
  using Timer = boost::asio::steady_timer;
  Cache& cache = *prompt.space.cache;
  const std::uint32_t block_tokens = cache.ns().block_tokens;
  const auto wanted =
      static_cast<std::uint32_t>(blocks_matchable(prompt.prompt.size(), block_tokens));
  Timer timer(co_await boost::asio::this_coro::executor);
  std::uint32_t blocks = 0;
  auto until = Timer::clock_type::now() + patience;
  for (;;) {
    const std::uint32_t there = std::min(cache.match(prompt.prompt).blocks, wanted);
    const auto now = Timer::clock_type::now();
    if (there > blocks) until = now + patience;
    blocks = there;
    if (blocks == wanted || now >= until || !cache.state()) break;
    timer.expires_after(kLookInterval);
    boost::system::error_code ignored;
    co_await timer.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, ignored));
  }
  co_return Stored{blocks * block_tokens, (wanted - blocks) * block_tokens};
}

}  // namespace kvtier::engine::server
