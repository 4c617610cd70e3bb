// The public handles: Load, Lease, WriteBack. A moved-from handle is empty and every question to it
// safe.
#include "client/transfer/cache.h"

namespace kvtier {

namespace {

// Null too in a fork of the process that made it.
template <class State>
State* here(const std::shared_ptr<State>& state) noexcept {
  return state && !state->born.forked() ? state.get() : nullptr;
}

// Before the handle lets go of it. False where nothing of it may be touched.
template <class State>
bool may_end(std::shared_ptr<State>& state) noexcept {
  if (here(state) != nullptr) return true;
  if (state) ForkMark::keep(std::move(state));
  return false;
}

}  // namespace

Load::Load(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
Load::Load(Load&&) noexcept = default;
Load& Load::operator=(Load&& other) noexcept {
  if (this == &other) return *this;
  if (may_end(state_)) state_->job->finish();
  state_ = std::move(other.state_);
  return *this;
}
Load::~Load() {
  if (may_end(state_)) state_->job->finish();
}

std::uint32_t Load::blocks() const noexcept {
  const auto* state = here(state_);
  return state ? state->job->blocks() : 0;
}
std::span<const BlockFault> Load::faults() const noexcept {
  const auto* state = here(state_);
  return state ? state->job->faults() : std::span<const BlockFault>{};
}
std::span<std::byte* const> Load::records() const noexcept {
  const auto* state = here(state_);
  return state ? state->job->records() : std::span<std::byte* const>{};
}
void Load::wait_layer(std::uint32_t layer, StreamView stream) {
  if (const auto* state = here(state_)) state->job->wait_layer(layer, stream);
}
bool Load::ended() const noexcept {
  const auto* state = here(state_);
  return !state || state->job->ended();
}
std::uint32_t Load::finish() {
  const auto* state = here(state_);
  return state ? state->job->finish() : 0;
}

Lease::Lease(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
Lease::Lease(Lease&&) noexcept = default;
Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  if (may_end(state_)) state_->hold->release();
  state_ = std::move(other.state_);
  return *this;
}
Lease::~Lease() {
  if (may_end(state_)) state_->hold->release();
}

std::uint32_t Lease::blocks() const noexcept {
  const auto* state = here(state_);
  return state ? state->hold->blocks() : 0;
}
Tier Lease::source(std::uint32_t block) const noexcept {
  const auto* state = here(state_);
  return state ? state->hold->source(block) : Tier::disk;
}
std::uint32_t Lease::wait_ready(Deadline deadline) {
  const auto* state = here(state_);
  return state ? state->hold->wait_ready(deadline) : 0;
}
std::optional<Clock::time_point> Lease::settled_at() const noexcept {
  const auto* state = here(state_);
  return state ? state->hold->settled_at() : Clock::time_point{};
}
bool Lease::held() const noexcept {
  const auto* state = here(state_);
  return state && state->hold->held();
}
void Lease::release() noexcept {
  if (const auto* state = here(state_)) state->hold->release();
}

Result<Load> Lease::load_into(const Pages& pages, StreamView stream) {
  const auto* state = here(state_);
  if (!state) {
    return make_error(Errc::stale,
                      "the lease was moved away, or is of the process that this one "
                      "was forked from");
  }
  auto job = transfer::start_load(state->hold, state->copies, state->gpu, pages, stream);
  if (!job) return job.error();
  return Load(std::make_shared<Load::State>(Load::State{std::move(*job)}));
}

WriteBack::WriteBack(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
WriteBack::WriteBack(WriteBack&&) noexcept = default;
WriteBack& WriteBack::operator=(WriteBack&& other) noexcept {
  if (this == &other) return *this;
  if (may_end(state_)) wait();
  state_ = std::move(other.state_);
  return *this;
}
WriteBack::~WriteBack() {
  if (may_end(state_)) wait();
}

void WriteBack::wait() noexcept {
  const auto* state = here(state_);
  if (!state || !state->job) return;
  state->job->hurry();
  state->copies->wake();
  state->job->wait();
}
bool WriteBack::ended() const noexcept {
  const auto* state = here(state_);
  return !state || !state->job || state->job->ended();
}
std::uint32_t WriteBack::accepted() const noexcept {
  const auto* state = here(state_);
  return state && state->job ? state->job->accepted() : 0;
}

Result<Lease> Cache::lease(std::span<const Token> tokens, std::uint32_t blocks, Deadline deadline) {
  return lease(tokens, BlockRange{0, blocks}, deadline);
}

Lease Cache::make_lease(std::shared_ptr<Lease::State> state) noexcept {
  return Lease(std::move(state));
}
WriteBack Cache::make_write_back(std::shared_ptr<WriteBack::State> state) noexcept {
  return WriteBack(std::move(state));
}

}  // namespace kvtier
