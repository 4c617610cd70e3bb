// The public handles of what is read: Load and Lease.
#include "client/transfer/cache.h"
#include "client/transfer/here.h"

namespace kvtier {

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
std::uint32_t Load::layers() const noexcept {
  const auto* state = here(state_);
  return state ? state->layers : 0;
}
void Load::wait_layer(std::uint32_t layer, StreamView stream) {
  if (const auto* state = here(state_)) state->job->wait_layer(layer, stream);
}
bool Load::ended() const noexcept {
  const auto* state = here(state_);
  return !state || state->job->ended();
}
bool Load::wait(Deadline deadline) const noexcept {
  const auto* state = here(state_);
  return !state || state->job->wait(deadline);
}
std::uint32_t Load::finish() {
  const auto* state = here(state_);
  return state ? state->job->finish() : 0;
}
std::optional<std::uint32_t> Load::finish(Deadline deadline) {
  if (!wait(deadline)) return std::nullopt;
  return finish();
}

namespace {

Error moved_away() {
  return make_error(Errc::stale,
                    "the lease was moved away, or is of the process that this one was forked from");
}

}  // namespace

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

LeaseState Lease::state() const noexcept {
  const auto* state = here(state_);
  return state ? state->hold->state() : LeaseState::lost;
}
std::optional<Error> Lease::error() const {
  const auto* state = here(state_);
  return state ? state->hold->error() : moved_away();
}
Result<int> Lease::event_fd() {
  const auto* state = here(state_);
  if (!state) return moved_away();
  return state->hold->event_fd();
}
void Lease::on_settled(std::function<void()> callback) {
  if (const auto* state = here(state_)) state->hold->on_settled(std::move(callback));
}

Result<Load> Lease::load_into(const Pages& pages, StreamView stream) {
  const auto* state = here(state_);
  if (!state) return moved_away();
  auto job = transfer::start_load(state->hold, state->copies, state->gpu, pages, stream);
  if (!job) return job.error();
  return Load(
      std::make_shared<Load::State>(Load::State{std::move(*job), state->hold->ns().layout.layers}));
}

Result<Lease> Cache::lease(std::span<const Token> tokens, std::uint32_t blocks, Deadline deadline) {
  return lease(tokens, BlockRange{0, blocks}, deadline);
}

Lease Cache::make_lease(std::shared_ptr<Lease::State> state) noexcept {
  return Lease(std::move(state));
}

}  // namespace kvtier
