#include "engine_adapter/reference/scheduler/prefix/load_task.h"

#include <algorithm>

#include "core/base/check.h"

namespace kvtier::engine {
namespace {

// A copy's end is noticed between steps: with a larger part of its time unknown, it tells nothing.
constexpr double kUnseenPartMax = 0.25;

double seconds(Clock::duration time) noexcept {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

Loads::~Loads() {
  for (const auto& task : tasks_) {
    KVTIER_CHECK(task->users == 0);
    if (!task->ended()) end(*task, 0);
    tidy(*task);
  }
}

std::shared_ptr<LoadTask> Loads::start(const std::shared_ptr<Cache>& cache,
                                       std::span<const Token> tokens, BlockRange range,
                                       std::span<const BlockName> names, std::vector<PageId> pages,
                                       Deadline deadline) {
  auto task = std::make_shared<LoadTask>();
  KVTIER_CHECK(range.end - range.first == names.size() && names.size() == pages.size());
  task->range = range;
  task->pages = std::move(pages);
  task->users = 1;
  task->begun = Clock::now();
  task->ns = names.front().ns;
  task->parent = names.front().parent;
  for (std::uint32_t i = 0; i < names.size(); ++i) {
    task->keys.push_back(names[i].key);
    pool_.add_reference(task->pages[i]);
  }
  task->ticket = std::make_shared<LeaseTicket>();
  task->ticket->cache = cache;
  task->ticket->tokens.assign(tokens.begin(), tokens.end());
  task->ticket->range = range;
  task->ticket->deadline = deadline;
  worker_.ask(task->ticket);
  ++metrics_.loads;
  tasks_.push_back(task);
  unannounced_.push_back(task);
  return task;
}

BlockName Loads::name_of(const LoadTask& task, std::uint32_t index) const {
  const std::uint32_t block_tokens = pool_.layout().block_tokens;
  const std::size_t block = std::size_t{task.range.first} + index;
  return {task.ns, task.keys[index], index == 0 ? task.parent : task.keys[index - 1],
          std::span<const Token>(task.ticket->tokens).subspan(block * block_tokens, block_tokens)};
}

// Of what has ended meanwhile tidy() tells.
void Loads::announce() {
  for (const auto& task : unannounced_) {
    if (task->ended()) continue;
    for (std::uint32_t i = 0; i < task->blocks(); ++i) {
      store_.add(name_of(*task, i), {task->pages[i], task, i});
    }
    task->announced = true;
  }
  unannounced_.clear();
}

bool Loads::poll() {
  tidy_ended(0);
  bool moved = false;
  for (const auto& task : tasks_) {
    while (!task->ended() && advance(*task)) moved = true;
  }
  announce();
  tidy_ended(pool_.pages_free());
  return moved;
}

// Of tasks that have at least so many blocks, and of those that did not come whole: whoever
// computes their blocks next stores them for all, which has to find their places free.
void Loads::tidy_ended(std::uint32_t blocks_min) {
  std::erase_if(tasks_, [&](const auto& task) {
    const bool whole = task->good == task->blocks();
    if (!task->ended() || (whole && task->blocks() < blocks_min)) return false;
    tidy(*task);
    return true;
  });
}

bool Loads::advance(LoadTask& task) {
  const auto now = Clock::now();
  switch (task.stage) {
    case LoadTask::Stage::leasing:
      if (task.users == 0) {
        task.ticket->given_up.store(true);
        end(task, 0);
        return true;
      }
      return take_lease(task);
    case LoadTask::Stage::arriving:
      if (task.users == 0) {
        end(task, 0);
        return true;
      }
      return start_copies(task, now);
    case LoadTask::Stage::copying:
      return finish_copies(task, now);
    case LoadTask::Stage::ended:
      break;
  }
  return false;
}

bool Loads::take_lease(LoadTask& task) {
  if (!task.ticket->answered.load(std::memory_order_acquire)) return false;
  auto& answer = *task.ticket->answer;
  if (!answer || answer->blocks() == 0) {
    task.late = !answer && answer.error().code == Errc::deadline;
    end(task, 0);
    return true;
  }
  task.lease.emplace(std::move(*answer));
  task.stage = LoadTask::Stage::arriving;
  return true;
}

bool Loads::start_copies(LoadTask& task, Clock::time_point now) {
  const auto settled = task.lease->settled_at();
  if (!settled && now < task.ticket->deadline) return false;
  task.late = !settled;
  const std::uint32_t ready =
      std::min({task.lease->wait_ready(now), task.lease->blocks(), task.blocks()});
  std::array<double, kTiersWithRemote> from{};
  for (std::uint32_t i = 0; i < ready; ++i) {
    task.sources.push_back(task.lease->source(i));
    from[index_of(task.sources.back())] += 1;
  }
  if (settled) note_arrival(task, from, *settled);
  std::vector<std::byte*> records;
  for (std::uint32_t i = 0; i < ready; ++i) records.push_back(pool_.record(task.pages[i]));
  Pages pages;
  pages.records = records;
  pages.in_place = model_.reads_device_tier();
  if (ready == 0) {
    end(task, 0);
    return true;
  }
  auto load = task.lease->load_into(pages, model_.stream());
  if (!load) {
    end(task, 0);
    return true;
  }
  task.load.emplace(std::move(*load));
  const std::uint32_t good = std::min(task.load->blocks(), ready);
  task.sources.resize(good);
  task.in_place.assign(good, nullptr);
  for (std::uint32_t i = 0; pages.in_place && i < good; ++i) {
    if (task.load->records()[i] != records[i]) task.in_place[i] = task.load->records()[i];
  }
  task.stage = LoadTask::Stage::copying;
  task.seen_copying = task.begun = Clock::now();
  return true;
}

// Of a range that came from both, the network has most likely brought the last block.
void Loads::note_arrival(const LoadTask& task, const std::array<double, kTiersWithRemote>& from,
                         Clock::time_point settled) {
  const Tier tier = from[index_of(Tier::remote)] > 0 ? Tier::remote : Tier::disk;
  const double blocks = from[index_of(tier)];
  if (blocks <= 0) return;
  // Ranges follow one another through the disk: each has taken what is not the one's before.
  Clock::time_point& free = free_[index_of(tier)];
  costs_.note_arrival(tier, blocks * static_cast<double>(pool_.layout().record_bytes),
                      seconds(settled - std::max(task.begun, free)));
  free = std::max(free, settled);
}

bool Loads::finish_copies(LoadTask& task, Clock::time_point now) {
  if (!task.load->ended()) {
    task.seen_copying = now;
    return false;
  }
  const double took = seconds(now - task.begun);
  double bytes = 0;
  for (const std::byte* in_place : task.in_place) {
    if (in_place == nullptr) bytes += static_cast<double>(pool_.layout().record_bytes);
  }
  const bool from_device =
      std::ranges::all_of(task.sources, [](Tier t) { return t == Tier::device; });
  if (bytes > 0 && seconds(now - task.seen_copying) <= kUnseenPartMax * took) {
    costs_.note_copy(from_device ? Tier::device : Tier::host, bytes, took);
  }
  settle(task);
  return true;
}

void Loads::settle(LoadTask& task) {
  KVTIER_CHECK(task.stage == LoadTask::Stage::copying);
  end(task, std::min(task.load->finish(), static_cast<std::uint32_t>(task.sources.size())));
}

void Loads::end(LoadTask& task, std::uint32_t good) {
  if (task.load) task.load->finish();  // the pages are written until then
  task.load.reset();
  task.stage = LoadTask::Stage::ended;
  task.good = good;
  if (good < task.blocks()) ++metrics_.loads_failed;
  task.in_place.resize(good, nullptr);
}

void Loads::tidy(LoadTask& task) {
  bool any_in_place = false;
  for (std::uint32_t i = 0; i < task.blocks(); ++i) {
    const bool filled = i < task.good && task.in_place[i] == nullptr;
    any_in_place = any_in_place || (i < task.good && !filled);
    if (!task.announced) {
      if (filled) store_.add(name_of(task, i), task.pages[i]);
    } else if (filled) {
      store_.filled(task.keys[i], &task);
    } else {
      store_.remove(task.keys[i], &task);
    }
    pool_.release(task.pages[i]);
  }
  if (!any_in_place) task.lease.reset();
}

}  // namespace kvtier::engine
