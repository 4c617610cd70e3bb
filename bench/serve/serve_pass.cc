#include "bench/serve/serve_pass.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>

#include "bench/serve/serve_statistics.h"
#include "bench/support/records.h"

namespace kvtier::bench {
namespace {

using namespace std::chrono_literals;

// How soon a pass that is bounded looks whether it is lost.
constexpr auto kLookInterval = 20ms;
// For the engine to end what was cancelled: a step, at the most.
constexpr auto kCancelPatience = 30s;

struct Ticket;

// What the engine's thread leaves for the driver; the listeners keep it.
struct Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Ticket>> ended;
};

// A request under way.
struct Ticket : engine::RequestListener, std::enable_shared_from_this<Ticket> {
  Ticket(std::shared_ptr<Inbox> inbox_, Clock::time_point begin_, const Served& served_,
         std::uint32_t tokens)
      : inbox(std::move(inbox_)), begin(begin_), served(served_) {
    served.token_s.reserve(tokens);
    served.answer.reserve(tokens);
  }

  void token(std::uint32_t, const engine::ChosenToken& chosen) override {
    served.token_s.push_back(seconds_since(begin));
    served.answer.push_back(chosen.token);
    if (served.token_s.size() == 1) first_token_s.store(served.token_s.front());
  }
  void finished(std::uint32_t, engine::FinishReason) override {}
  void done(engine::RequestResult result) override {
    served.ended_s = seconds_since(begin);
    served.usage = result.usage;
    error = std::move(result.error);
    finish = result.answers.empty() ? engine::FinishReason::failed : result.answers.front().finish;
    {
      const std::lock_guard lock(inbox->mutex);
      inbox->ended.push_back(shared_from_this());
    }
    inbox->changed.notify_one();
  }

  const std::shared_ptr<Inbox> inbox;
  const Clock::time_point begin;
  std::atomic<double> first_token_s{-1};
  // The engine thread's until done().
  Served served;
  std::optional<Error> error;
  engine::FinishReason finish = engine::FinishReason::cancelled;
};

class Driver {
 public:
  Driver(engine::Scheduler& scheduler, const Workload& workload, const PassOptions& options)
      : scheduler_(scheduler), workload_(workload), options_(options) {
    histories_.resize(options.sessions);
    late_max_ = late_allowed(workload.requests(options.sessions));
    plan_arrivals();
  }

  Pass run() {
    while (!over()) {
      submit_due();
      take_ended(next_look());
    }
    // What came before the stop counts, what comes of the cancelling does not.
    stopped_ = true;
    cancel_rest();
    if (!failure_.empty()) throw std::runtime_error(failure_);
    return std::move(pass_);
  }

 private:
  struct Due {
    double at_s;
    std::uint32_t session, turn;
    bool operator>(const Due& other) const {
      return std::tie(at_s, session) > std::tie(other.at_s, other.session);
    }
  };
  struct Live {
    engine::RequestId id;
    std::shared_ptr<Ticket> ticket;
  };

  void plan_arrivals() {
    std::vector<std::uint32_t> order(options_.sessions);
    std::iota(order.begin(), order.end(), 0U);
    if (options_.rate > 0) {
      const double last = workload_.sessions[options_.sessions - 1].arrival;
      const double span =
          static_cast<double>(workload_.requests(options_.sessions)) / options_.rate;
      for (const std::uint32_t i : order) {
        due_.push({workload_.sessions[i].arrival / last * span, i, 0});
      }
      return;
    }
    if (options_.by_prefix) {
      std::ranges::stable_sort(order, {}, [&](auto i) { return workload_.sessions[i].prefix; });
    }
    // All at once, and yet in this order.
    for (std::size_t i = 0; i < order.size(); ++i) {
      due_.push({1e-9 * static_cast<double>(i), order[i], 0});
    }
  }

  double now_s() const { return seconds_since(begin_); }

  bool over() {
    if (!failure_.empty()) return true;
    if (due_.empty() && live_.empty()) {
      pass_.seconds = pass_.served.empty() ? 0 : pass_.served.back().ended_s;
      return true;
    }
    if (Clock::now() > options_.deadline) {
      failure_ = std::string(name(workload_.kind)) + ": not through with " +
                 std::to_string(options_.sessions) + " sessions at the deadline";
      return true;
    }
    const double now = now_s();
    if (options_.stop_after_s && now >= *options_.stop_after_s) {
      pass_.seconds = now;
      return true;
    }
    if (options_.first_token_bound_s && late(now) > late_max_) {
      pass_.seconds = now;
      pass_.given_up = true;
      return true;
    }
    return false;
  }

  // Requests whose first token came, or is bound to come, after the bound.
  std::size_t late(double now) const {
    std::size_t count = late_ended_;
    for (const auto& [key, live] : live_) {
      const double first = live.ticket->first_token_s.load();
      const double waited = (first < 0 ? now : first) - live.ticket->served.due_s;
      if (waited > *options_.first_token_bound_s) ++count;
    }
    return count;
  }

  Clock::time_point next_look() const {
    auto next = options_.deadline;
    if (!due_.empty()) next = std::min(next, time_of(due_.top().at_s));
    if (options_.stop_after_s) next = std::min(next, time_of(*options_.stop_after_s));
    if (options_.first_token_bound_s) next = std::min(next, Clock::now() + kLookInterval);
    return next;
  }

  Clock::time_point time_of(double at_s) const {
    return begin_ +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(at_s));
  }

  void submit_due() {
    while (failure_.empty() && !due_.empty() && time_of(due_.top().at_s) <= Clock::now()) {
      const Due due = due_.top();
      due_.pop();
      submit(due);
    }
  }

  void submit(const Due& due) {
    const Session& session = workload_.sessions[due.session];
    const Turn& turn = session.turns[due.turn];
    std::vector<Token>& history = histories_[due.session];
    if (due.turn == 0) history = workload_.prefixes[session.prefix];
    history.insert(history.end(), turn.question.begin(), turn.question.end());
    Served served;
    served.session = due.session;
    served.turn = due.turn;
    served.due_s = due.at_s;
    auto ticket = std::make_shared<Ticket>(inbox_, begin_, served, turn.answer_tokens);
    engine::Request request;
    request.prompt = history;
    request.tokens_max = turn.answer_tokens;
    request.ignore_end = true;
    request.cache_deadline = 10s;
    const auto id = scheduler_.submit(std::move(request), ticket);
    if (!id) {
      failure_ = id.error().message;
      return;
    }
    live_.emplace(due.session, Live{*id, std::move(ticket)});
    // A conversation is over with its last turn.
    if (due.turn + 1 == session.turns.size()) history = {};
  }

  void take_ended(Clock::time_point until) {
    std::vector<std::shared_ptr<Ticket>> ended;
    {
      std::unique_lock lock(inbox_->mutex);
      inbox_->changed.wait_until(lock, until, [&] { return !inbox_->ended.empty(); });
      ended.swap(inbox_->ended);
    }
    for (const auto& ticket : ended) take(*ticket);
  }

  void take(Ticket& ticket) {
    Served& served = ticket.served;
    live_.erase(served.session);
    if (stopped_) return;
    const Session& session = workload_.sessions[served.session];
    if (ticket.error) failure_ = "a request failed: " + ticket.error->message;
    const auto wanted = session.turns[served.turn].answer_tokens;
    if (failure_.empty() && served.answer.size() != wanted) {
      failure_ = "an answer of " + std::to_string(served.answer.size()) + " tokens, not of " +
                 std::to_string(wanted) + ": " + engine::name(ticket.finish);
    }
    if (!failure_.empty()) return;
    if (options_.first_token_bound_s &&
        served.token_s.front() - served.due_s > *options_.first_token_bound_s) {
      ++late_ended_;
    }
    const std::vector<Token>* answer = &served.answer;
    if (options_.known != nullptr) answer = &(*options_.known)[served.session][served.turn];
    if (served.answer != *answer) ++pass_.different;
    if (served.turn + 1 < session.turns.size()) {
      auto& history = histories_[served.session];
      history.insert(history.end(), answer->begin(), answer->end());
      const double think_s = options_.rate > 0 ? session.turns[served.turn + 1].think_s : 0;
      due_.push({served.ended_s + think_s, served.session, served.turn + 1});
    }
    pass_.served.push_back(std::move(served));
  }

  void cancel_rest() {
    for (const auto& [session, live] : live_) scheduler_.cancel(live.id);
    const auto until = Clock::now() + kCancelPatience;
    while (!live_.empty() && Clock::now() < until) take_ended(until);
    if (!live_.empty()) throw std::runtime_error("the engine does not end what is cancelled");
  }

  engine::Scheduler& scheduler_;
  const Workload& workload_;
  const PassOptions& options_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  const Clock::time_point begin_ = Clock::now();
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::map<std::uint32_t, Live> live_;  // by session, which has one turn at a time
  std::vector<std::vector<Token>> histories_;
  std::size_t late_max_ = 0;
  std::size_t late_ended_ = 0;
  bool stopped_ = false;
  std::string failure_;
  Pass pass_;
};

}  // namespace

Pass run_pass(engine::Scheduler& scheduler, const Workload& workload, const PassOptions& options) {
  return Driver(scheduler, workload, options).run();
}

Answers answers_of(const Pass& pass, const Workload& workload) {
  Answers answers(workload.sessions.size());
  for (std::size_t i = 0; i < answers.size(); ++i)
    answers[i].resize(workload.sessions[i].turns.size());
  for (const Served& served : pass.served) answers[served.session][served.turn] = served.answer;
  return answers;
}

}  // namespace kvtier::bench
