// Answers one request at a time on the caller's thread: a scheduler with nobody else in it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/model/page_pool.h"
#include "engine_adapter/reference/scheduler/prefix/cost_model.h"
#include "engine_adapter/reference/scheduler/prefix/lease_worker.h"
#include "engine_adapter/reference/scheduler/request.h"
#include "engine_adapter/reference/scheduler/scheduler_options.h"

namespace kvtier::engine {

class Engine;

struct GenerateRequest {
  std::vector<Token> prompt;
  std::uint32_t tokens_max = 0;  // at least 1
  SamplerOptions sampling{};
  std::chrono::milliseconds cache_deadline{1000};  // as Request::cache_deadline
};

struct GenerateResult {
  std::vector<Token> tokens;  // without the end token
  FinishReason finish = FinishReason::tokens_max;
  std::uint32_t reused_tokens = 0;
  std::array<std::uint32_t, kTiersWithRemote> reused_by_tier{};  // tokens
  std::uint32_t reused_own = 0;                                  // found in the engine's pages
  std::uint32_t proposed_tokens = 0;
  std::uint32_t accepted_tokens = 0;  // of those
  LoadPlan plan;
  std::chrono::nanoseconds first_token{};  // from the start of generate() to the first token chosen
  std::chrono::nanoseconds total{};
};

class Generator {
 public:
  // All outlive the generator; `cache`, which is of namespace `ns`, may be null. With `keep_pages`
  // a request finds what those before it left in the engine's pages; without, nothing is left
  // there.
  Generator(Model& model, PagePool& pool, const NamespaceId& ns, Cache* cache,
            LoadPolicy policy = LoadPolicy::automatic, const SpeculationOptions& speculation = {},
            bool keep_pages = false);
  ~Generator();

  // `on_token` sees each token as soon as it is chosen. Returns once the request's blocks have gone
  // to the cache, or were dropped (settle()). Errors: invalid (prompt, sampling), no_space (the
  // request does not fit into the pages).
  Result<GenerateResult> generate(const GenerateRequest& request,
                                  const std::function<void(Token)>& on_token = {});

  // Offers the last request's blocks again that the cache did not take, until it has them or has
  // been asked often enough, or until `deadline`. The next generate() forgets them.
  void settle(Deadline deadline);

  const CostModel& costs() const noexcept;

 private:
  Model& model_;
  PagePool& pool_;
  const NamespaceId ns_;
  const std::shared_ptr<Cache> cache_;
  const SchedulerOptions options_;
  DirectLeases leases_;
  std::unique_ptr<Engine> engine_;
  std::uint64_t next_id_ = 1;
};

}  // namespace kvtier::engine
