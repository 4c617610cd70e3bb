// The public handles: Load, Lease, WriteBack. A moved-from handle is empty and every question to it
// safe.
#include "client/transfer/cache.h"

namespace kvtier {

Load::Load(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
Load::Load(Load&&) noexcept = default;
Load& Load::operator=(Load&& other) noexcept {
  if (this == &other) return *this;
  if (state_) state_->job->finish();
  state_ = std::move(other.state_);
  return *this;
}
Load::~Load() {
  if (state_) state_->job->finish();
}

std::uint32_t Load::blocks() const noexcept {
  return state_ ? state_->job->blocks() : 0;
}
std::span<const BlockFault> Load::faults() const noexcept {
  return state_ ? state_->job->faults() : std::span<const BlockFault>{};
}
std::span<std::byte* const> Load::records() const noexcept {
  return state_ ? state_->job->records() : std::span<std::byte* const>{};
}
void Load::wait_layer(std::uint32_t layer, Stream stream) {
  if (state_) state_->job->wait_layer(layer, stream);
}
bool Load::ended() const noexcept {
  return !state_ || state_->job->ended();
}
std::uint32_t Load::finish() {
  return state_ ? state_->job->finish() : 0;
}

Lease::Lease(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
Lease::Lease(Lease&&) noexcept = default;
Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  release();
  state_ = std::move(other.state_);
  return *this;
}
Lease::~Lease() {
  release();
}

std::uint32_t Lease::blocks() const noexcept {
  return state_ ? state_->hold->blocks() : 0;
}
Tier Lease::source(std::uint32_t block) const noexcept {
  return state_ ? state_->hold->source(block) : Tier::disk;
}
std::uint32_t Lease::wait_ready(Deadline deadline) {
  return state_ ? state_->hold->wait_ready(deadline) : 0;
}
std::optional<Clock::time_point> Lease::settled_at() const noexcept {
  return state_ ? state_->hold->settled_at() : Clock::time_point{};
}
bool Lease::held() const noexcept {
  return state_ && state_->hold->held();
}
void Lease::release() noexcept {
  if (state_) state_->hold->release();
}

Result<Load> Lease::load_into(const Pages& pages, Stream stream) {
  if (!state_) return make_error(Errc::stale, "the lease was moved away");
  auto job = transfer::start_load(state_->hold, state_->copies, state_->gpu, pages, stream);
  if (!job) return job.error();
  return Load(std::make_shared<Load::State>(Load::State{std::move(*job)}));
}

WriteBack::WriteBack(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
WriteBack::WriteBack(WriteBack&&) noexcept = default;
WriteBack& WriteBack::operator=(WriteBack&& other) noexcept {
  if (this == &other) return *this;
  wait();
  state_ = std::move(other.state_);
  return *this;
}
WriteBack::~WriteBack() {
  wait();
}

void WriteBack::wait() noexcept {
  if (!state_ || !state_->job) return;
  state_->job->hurry();
  state_->copies->wake();
  state_->job->wait();
}
bool WriteBack::ended() const noexcept {
  return !state_ || !state_->job || state_->job->ended();
}
std::uint32_t WriteBack::accepted() const noexcept {
  return state_ && state_->job ? state_->job->accepted() : 0;
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
