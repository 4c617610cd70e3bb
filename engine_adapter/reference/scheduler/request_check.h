// What the engine takes, and what it refuses with a reason. Any thread.
#pragma once

#include "engine_adapter/reference/model/model.h"
#include "engine_adapter/reference/model/page_pool.h"
#include "engine_adapter/reference/scheduler/request.h"
#include "engine_adapter/reference/scheduler/scheduler_options.h"

namespace kvtier::engine {

// Errors: invalid (naming the field), no_space (the pool is too small for it alone).
Result<void> check_request(const Request& request, const Model& model, const PagePool& pool,
                           const SchedulerOptions& options);

// The longest that a sequence of `request`, which has passed the check, can become, in tokens.
std::uint32_t tokens_most_of(const Request& request, const ModelConfig& config);

// The pages that a sequence of it has at most, where a step has `rows` rows.
std::uint32_t pages_most_of(const Request& request, const ModelConfig& config,
                            std::uint32_t block_tokens, std::uint32_t rows);

}  // namespace kvtier::engine
