// The public handles of what is written: WriteBack and LayerStore.
#include "client/transfer/cache.h"
#include "client/transfer/here.h"

namespace kvtier {

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
  (void)wait(Deadline::max());
}
bool WriteBack::wait(Deadline deadline) noexcept {
  const auto* state = here(state_);
  if (!state || !state->job) return true;
  if (!state->job->waits_for_slots()) hurry();
  return state->job->wait(deadline);
}
void WriteBack::hurry() noexcept {
  const auto* state = here(state_);
  if (!state || !state->job) return;
  state->job->hurry();
  state->copies->wake();
}
bool WriteBack::ended() const noexcept {
  const auto* state = here(state_);
  return !state || !state->job || state->job->ended();
}
std::uint32_t WriteBack::accepted() const noexcept {
  const auto* state = here(state_);
  return state && state->job ? state->job->accepted() : 0;
}
std::uint32_t WriteBack::cached() const noexcept {
  const auto* state = here(state_);
  return state && state->job ? state->job->cached() : 0;
}
Drops WriteBack::dropped() const noexcept {
  const auto* state = here(state_);
  if (!state) return {};
  Drops drops = state->refused;
  if (!state->job) return drops;
  const Drops later = state->job->dropped();
  for (std::size_t i = 0; i < kDropReasons; ++i) drops.blocks[i] += later.blocks[i];
  return drops;
}
std::optional<Error> WriteBack::error() const {
  const auto* state = here(state_);
  return state ? state->error : std::nullopt;
}

LayerStore::LayerStore(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
LayerStore::LayerStore(LayerStore&&) noexcept = default;
LayerStore& LayerStore::operator=(LayerStore&& other) noexcept {
  if (this == &other) return *this;
  if (may_end(state_) && state_->storing) state_->storing->cancel();
  state_ = std::move(other.state_);
  return *this;
}
LayerStore::~LayerStore() {
  if (may_end(state_) && state_->storing) state_->storing->cancel();
}

std::uint32_t LayerStore::blocks() const noexcept {
  const auto* state = here(state_);
  return state && state->storing ? state->storing->blocks() : 0;
}

Result<void> LayerStore::layer(std::uint32_t layer, StreamView stream) {
  const auto* state = here(state_);
  if (!state) {
    return make_error(Errc::invalid,
                      "the store was committed or moved away, or is of the process that this one "
                      "was forked from");
  }
  return state->storing ? state->storing->layer(layer, stream) : Result<void>{};
}

WriteBack LayerStore::commit() noexcept {
  if (!may_end(state_)) return WriteBack(nullptr);
  const auto state = std::exchange(state_, nullptr);
  auto write =
      std::make_shared<WriteBack::State>(WriteBack::State{nullptr, state->copies, state->refused});
  if (!state->storing) return WriteBack(std::move(write));
  if (const auto missing = state->storing->missing()) {
    state->storing->cancel();
    write->error =
        make_error(Errc::invalid, "layer " + std::to_string(*missing) + " was not handed over");
    write->refused.blocks[static_cast<std::size_t>(DropReason::failed)] += state->storing->blocks();
    state->session->note_dropped(DropReason::failed, state->storing->blocks());
    return WriteBack(std::move(write));
  }
  auto stored = state->storing->commit();
  if (stored) {
    write->job = std::move(*stored);
  } else {
    write->refused.blocks[static_cast<std::size_t>(DropReason::failed)] += state->storing->blocks();
    write->error = stored.error();
  }
  return WriteBack(std::move(write));
}

LayerStore Cache::make_layer_store(std::shared_ptr<LayerStore::State> state) noexcept {
  return LayerStore(std::move(state));
}
WriteBack Cache::make_write_back(std::shared_ptr<WriteBack::State> state) noexcept {
  return WriteBack(std::move(state));
}

}  // namespace kvtier
