#include "engine_adapter/reference/scheduler/generator.h"

#include <thread>

#include "engine_adapter/reference/scheduler/engine.h"
#include "engine_adapter/reference/scheduler/limits.h"
#include "engine_adapter/reference/scheduler/request_check.h"

namespace kvtier::engine {
namespace {

struct Listener final : RequestListener {
  explicit Listener(const std::function<void(Token)>& function) : on_token(function) {}

  void token(std::uint32_t, const ChosenToken& chosen) override {
    if (on_token) on_token(chosen.token);
  }
  void finished(std::uint32_t, FinishReason) override {}
  void done(RequestResult all) override { result = std::move(all); }

  const std::function<void(Token)>& on_token;
  std::optional<RequestResult> result;
};

}  // namespace

Generator::Generator(Model& model, PagePool& pool, const NamespaceId& ns, Cache* cache,
                     LoadPolicy policy, const SpeculationOptions& speculation, bool keep_pages)
    : model_(model),
      pool_(pool),
      ns_(ns),
      cache_(cache, [](Cache*) {}),
      options_{.keep_pages = keep_pages, .load_policy = policy, .speculation = speculation},
      engine_(std::make_unique<Engine>(model, pool, leases_, options_)) {}

Generator::~Generator() = default;

const CostModel& Generator::costs() const noexcept {
  return engine_->costs();
}

void Generator::settle(Deadline deadline) {
  while ((!engine_->idle() || engine_->offer_due()) && Clock::now() < deadline) {
    if (!engine_->turn()) std::this_thread::sleep_for(kPollInterval);
  }
}

Result<GenerateResult> Generator::generate(const GenerateRequest& request,
                                           const std::function<void(Token)>& on_token) {
  if (request.tokens_max == 0) return make_error(Errc::invalid, "max tokens must be 1 or above");
  Request asked;
  asked.prompt = request.prompt;
  asked.tokens_max = request.tokens_max;
  asked.sampling = request.sampling;
  asked.cache_deadline = request.cache_deadline;
  if (auto good = check_request(asked, model_, pool_, options_); !good) return good.error();
  engine_->forget_offers();
  const auto listener = std::make_shared<Listener>(on_token);
  engine_->add(RequestId(next_id_++), std::move(asked), {ns_, cache_}, listener);
  while (!engine_->idle()) {
    if (!engine_->turn()) std::this_thread::sleep_for(kPollInterval);
  }
  RequestResult& all = *listener->result;
  if (all.error) return std::move(*all.error);
  GenerateResult result;
  for (const ChosenToken& chosen : all.answers.front().tokens)
    result.tokens.push_back(chosen.token);
  result.finish = all.answers.front().finish;
  result.reused_tokens = all.usage.cached();
  for (std::size_t i = 0; i < kTiersWithRemote; ++i)
    result.reused_by_tier[i] = all.usage.cached_tiers[i];
  result.reused_own = all.usage.cached_local;
  result.proposed_tokens = all.usage.proposed_tokens;
  result.accepted_tokens = all.usage.accepted_tokens;
  result.plan = all.plan;
  result.first_token = all.first_token;
  result.total = all.total;
  return result;
}

}  // namespace kvtier::engine
