// The engine's parts, wired as it wires them, for tests of one of them.
#pragma once

#include <memory>

#include "engine_adapter/reference/scheduler/answers/answers.h"
#include "engine_adapter/reference/scheduler/pages/admission.h"
#include "engine_adapter/reference/scheduler/pages/page_room.h"
#include "engine_adapter/reference/scheduler/request_check.h"
#include "engine_adapter/reference/scheduler/steps/step_chooser.h"
#include "engine_adapter/reference/scheduler/steps/steps.h"
#include "tests/engine/scheduler/scheduled.h"

namespace kvtier::engine::test {

constexpr std::uint32_t kPartsStep = 32;  // rows

struct EngineParts {
  EngineParts(const TestModel& model, std::uint32_t pages, SchedulerOptions options_ = {})
      : options(options_), own(model, kScheduledFormat, kPartsStep, pages) {}

  // A request that waits. Without a cache unless one is given.
  LiveRequest& add(const Request& request, Cache* cache = nullptr) {
    auto live = std::make_unique<LiveRequest>();
    live->id = RequestId(next_id++);
    live->request = request;
    live->tokens_most = tokens_most_of(request, own.llama.config());
    live->space = {id_of(own.ns), std::shared_ptr<Cache>(cache, [](Cache*) {})};
    told.push_back(std::make_shared<Collected>());
    live->listener = told.back();
    live->wait = CacheWait(request.cache_deadline);
    live->submitted = Clock::now();
    live->answers_open = live->beams() ? 1 : request.samples;
    LiveRequest& added = *live;
    requests.add(std::move(live));
    return added;
  }
  // Computes what can be computed now.
  void step() {
    auto inputs = chooser.choose();
    ASSERT_FALSE(inputs.empty());
    steps.run(inputs);
  }

  const SchedulerOptions options;
  TestEngine own;
  PagePool& pool = *own.pool;
  DirectLeases leases;
  SchedulerMetrics metrics;
  CostModel costs;
  BlockStore store{pool};
  Loads loads{own.llama, pool, store, leases, costs, metrics};
  Offers offers{own.llama, pool, store, metrics};
  const FillParts parts{own.llama, pool, store, loads, offers, leases, costs, metrics, kPartsStep};
  LiveRequests requests{metrics};
  BranchMaker branches{parts, requests};
  ExactPages exact{pool, requests, options.running_max};
  Admission admission{pool, requests, exact, branches, leases, options, metrics};
  Parking parking{own.llama, pool, requests, leases, metrics};
  PageRoom room{pool, store, requests, parking};
  Answers answers{own.llama.config(), requests, branches, metrics};
  Speculation speculation{options.speculation, own.llama.config(), room, metrics};
  StepChooser chooser{own.llama, pool, requests, room, parking, speculation, kPartsStep, 0};
  Steps steps{parts, requests, parking, answers, speculation};
  std::vector<std::shared_ptr<Collected>> told;  // by the requests, as they were added
  std::uint64_t next_id = 1;
};

}  // namespace kvtier::engine::test
