// The scheduler's inside: takes requests, gives them pages, and computes for all of them in steps.
// A turn() never waits for the daemon.
//
// Order and progress. Requests get pages in the order of the fair queue, none before the one in
// front of it. Those with pages have an order, too (LiveRequest::goes_before): one that needs a
// page and finds none parks others from the back of that order, never one before itself. The first
// therefore can get all pages there are, and submit() took no request that does not fit into the
// pool alone: so the first always gets on, ends, and the next is first.
//
// The exact pages of open blocks are counted as requests are let in, for all answers that each may
// have, and made then: no step and no fork finds that they are missing.
//
// One thread.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "engine_adapter/reference/scheduler/beam_search.h"
#include "engine_adapter/reference/scheduler/fair_queue.h"
#include "engine_adapter/reference/scheduler/live_request.h"
#include "engine_adapter/reference/scheduler/prefix/offers.h"
#include "engine_adapter/reference/scheduler/scheduler_options.h"

namespace kvtier::engine {

// Errors: invalid (naming the field), no_space (the pool is too small for it alone).
Result<void> check_request(const Request& request, const Model& model, const PagePool& pool,
                           const SchedulerOptions& options);

class Engine {
 public:
  // All outlive it.
  Engine(Model& model, PagePool& pool, LeaseWorker& worker, const SchedulerOptions& options);
  // Cancels what is left.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // `request` has passed check_request().
  void add(RequestId id, Request request, CacheSpace space,
           std::shared_ptr<RequestListener> listener);
  void cancel(RequestId id);
  void cancel_all();

  // Does what can be done now, one step at the most. False: nothing could be.
  bool turn();
  // Nothing is left to do.
  bool idle() const noexcept {
    return live_.empty() && ended_.empty() && !loads_.busy() && !offers_.busy();
  }
  // When turn() next has something to do though the engine is idle: blocks to offer again.
  std::optional<Clock::time_point> offer_due() const noexcept { return offers_.due(); }
  // They are not offered again, and pages that nobody uses go if that is how they are kept.
  void forget_offers();
  std::uint32_t waiting() const noexcept { return queue_.size(); }
  SchedulerMetrics metrics() const;
  CostModel& costs() noexcept { return costs_; }

 private:
  struct Input {
    LiveRequest* live;
    Branch* branch;
    std::uint32_t tokens;
    bool chooses;
    std::shared_ptr<LoadTask> trusted;  // whose blocks the step's layers wait for
    std::uint32_t told = 0;             // rows whose logits are asked about
    std::uint32_t begin = 0;            // the sequence's length before the step
  };

  // Pages (engine_pages.cc).
  bool admit();
  LiveRequest* next_to_admit();
  bool provide_exact(LiveRequest& live);
  std::uint32_t exact_wanted(const LiveRequest& live) const;
  std::uint32_t exact_promised() const;
  void trim_exact();
  void start(LiveRequest& live);
  void start_branch(LiveRequest& live, Branch& branch, LoadPolicy policy);
  std::uint32_t pages_wanted(const LiveRequest& live) const;
  std::uint32_t pages_missing(const LiveRequest& live) const;
  bool make_room(std::uint32_t pages, const LiveRequest& live);
  LiveRequest* victim_of(const LiveRequest& live);

  // Parking (engine_parking.cc).
  void park(LiveRequest& live);
  void save(Branch& branch);
  void offer_all(LiveRequest& live);
  bool advance_parking(LiveRequest& live);
  bool take_holds(LiveRequest& live);
  void finish_parking(LiveRequest& live);
  bool restore(LiveRequest& live, Branch& branch);

  // Steps (engine_step.cc).
  std::vector<LiveRequest*> running() const;
  bool can_compute(LiveRequest& live, Branch& branch);
  std::vector<Input> choose_inputs();
  void add_answers(std::vector<Input>& inputs, std::uint32_t& budget);
  void add_prompts(std::vector<Input>& inputs, std::uint32_t& budget);
  std::vector<Input> trusting_input();
  std::uint32_t chunk_of(const LiveRequest& live, const Branch& branch, std::uint32_t budget) const;
  bool has_pages(LiveRequest& live, Branch& branch, std::uint32_t tokens);
  void run(std::vector<Input>& inputs);
  void run_part(std::span<Input> inputs, bool telling);
  void give_way(std::span<Input> inputs, const Error& error);
  bool settle(Input& input, bool waited);
  void offer_new(LiveRequest& live, Branch& branch);
  void measure(std::span<const Input> inputs, bool waited, Clock::time_point begun);
  void note_measured();

  // Tokens (engine_answers.cc).
  void take_choices(std::span<Input> inputs, std::span<const char> good);
  bool is_told(const Input& input) const noexcept;
  void ask(Input& input);
  std::vector<Choice> choices_of(const LiveRequest& live, const Branch& branch) const;
  void take_told(std::span<Input> inputs, std::span<const char> good);
  void take_prompt(LiveRequest& live, const Branch& branch, std::span<RowAnswer> answers);
  void take_rows(LiveRequest& live, Branch& branch, std::span<RowAnswer* const> rows);
  void take_token(LiveRequest& live, Branch& branch, ChosenToken chosen);
  void end_without_tokens(LiveRequest& live);
  bool fork_samples(LiveRequest& live);
  std::unique_ptr<Branch> fork(LiveRequest& live, const Branch& from, std::uint32_t index);
  void step_beams(LiveRequest& live, std::span<RowAnswer* const> rows);
  bool beams_are_done(const LiveRequest& live) const;
  void end_answer(LiveRequest& live, Branch& branch, FinishReason reason);
  bool is_end(const LiveRequest& live, Token token) const noexcept;
  void note_cached(LiveRequest& live, bool settled);
  void end(LiveRequest& live, FinishReason of_open_answers);
  void fail(LiveRequest& live, Error error);
  void sweep();

  Model& model_;
  PagePool& pool_;
  LeaseWorker& worker_;
  const SchedulerOptions options_;
  const std::uint32_t step_tokens_;
  SchedulerMetrics metrics_;
  CostModel costs_;
  BlockStore store_;
  Loads loads_;
  Offers offers_;
  FillParts parts_;
  FairQueue queue_;
  std::map<std::uint64_t, std::unique_ptr<LiveRequest>> live_;  // by id
  std::vector<std::unique_ptr<LiveRequest>> ended_;             // let go between steps
  // How many exact pages there may be, as far as the memory has told.
  std::size_t exact_limit_ = std::numeric_limits<std::size_t>::max();
  std::uint64_t next_rank_ = 1;
  std::uint64_t next_answer_ = 0;  // where the answers' turn begins
  const std::uint32_t told_rows_max_;
  std::vector<Token> chosen_;  // by the part of a step that chose last
  // What was asked last, and answered.
  std::vector<RowQuestion> questions_;
  std::deque<std::vector<Choice>> asked_choices_;
  std::vector<RowAnswer> told_;
  // Steps computed since the model was last waited for.
  StepWork unmeasured_;
  Clock::time_point unmeasured_since_{};
};

}  // namespace kvtier::engine
