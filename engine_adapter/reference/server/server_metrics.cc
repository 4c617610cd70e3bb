#include "engine_adapter/reference/server/server_metrics.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvtier::engine::server {
namespace {

// vLLM's buckets, so that its panels fit.
constexpr std::array kFirstTokenBounds{0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                       0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                       20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
constexpr std::array kNextTokenBounds{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                      0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
constexpr std::array kRequestBounds{0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                    5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};

std::string number(double value) {
  return nlohmann::json(value).dump();
}

void header(const char* name, const char* kind, const char* help, std::string& out) {
  out += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + kind + "\n";
}

void one(const char* name, const char* kind, const char* help, const std::string& labels,
         double value, std::string& out) {
  header(name, kind, help, out);
  out += std::string(name) + "{" + labels + "} " + number(value) + "\n";
}

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// Of vLLM's counters: tokens of prompts looked for and found, in the engine and beyond it.
void write_vllm(const SchedulerMetrics& m, const std::string& labels, std::string& out) {
  std::uint64_t external_hits = 0;
  for (const std::uint64_t tokens : m.cache_hits) external_hits += tokens;
  const auto counter = [&](const char* name, const char* help, std::uint64_t value) {
    one(name, "counter", help, labels, static_cast<double>(value), out);
  };
  const auto gauge = [&](const char* name, const char* help, double value) {
    one(name, "gauge", help, labels, value, out);
  };
  gauge("vllm:num_requests_running", "Requests with pages", m.running);
  gauge("vllm:num_requests_waiting", "Requests without pages yet", m.waiting + m.parked);
  gauge("vllm:kv_cache_usage_perc", "Pages in use, of all, from 0 to 1",
        m.pages == 0 ? 0 : static_cast<double>(m.pages_used) / m.pages);
  counter("vllm:prefix_cache_queries_total", "Prompt tokens looked for in the engine's own pages",
          m.local_queries);
  counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the engine's own pages",
          m.local_hits);
  counter("vllm:external_prefix_cache_queries_total", "Prompt tokens looked for in kvtier",
          m.cache_queries);
  counter("vllm:external_prefix_cache_hits_total", "Prompt tokens taken from kvtier",
          external_hits);
  counter("vllm:prompt_tokens_total", "Prompt tokens", m.prompt_tokens);
  counter("vllm:generation_tokens_total", "Tokens chosen", m.completion_tokens);
  counter("vllm:spec_decode_num_drafts_total", "Times that tokens were proposed for an answer",
          m.drafts);
  counter("vllm:spec_decode_num_draft_tokens_total", "Tokens proposed", m.tokens_proposed);
  counter("vllm:spec_decode_num_accepted_tokens_total", "Of those, tokens that were right",
          m.tokens_accepted);
  counter("vllm:num_preemptions_total", "Requests parked to make room", m.preemptions);
}

void write_own(const SchedulerMetrics& m, const std::string& labels, std::string& out) {
  const auto counter = [&](const char* name, const char* help, std::uint64_t value) {
    one(name, "counter", help, labels, static_cast<double>(value), out);
  };
  one("kvtier_engine_requests_loading", "gauge", "Requests that wait for blocks", labels, m.loading,
      out);
  one("kvtier_engine_requests_parked", "gauge", "Requests whose KV is parked in the cache", labels,
      m.parked, out);
  one("kvtier_engine_pages", "gauge", "Pages of the engine's own pool", labels, m.pages, out);
  one("kvtier_engine_pages_used", "gauge", "Pages in use", labels, m.pages_used, out);
  one("kvtier_engine_pages_cached", "gauge", "Pages kept for later requests", labels,
      m.pages_cached, out);
  one("kvtier_engine_token_places_unused", "gauge",
      "Places for tokens in pages in use that hold none", labels,
      static_cast<double>(m.token_places_unused), out);
  header("kvtier_engine_parked_total", "counter", "Requests that gave up their pages, by reason",
         out);
  for (const auto& [reason, why] :
       {std::pair{"pages", ParkedFor::pages}, {"memory", ParkedFor::memory}}) {
    out += "kvtier_engine_parked_total{" + labels + ",reason=\"" + reason + "\"} " +
           std::to_string(m.parked_for[index_of(why)]) + "\n";
  }
  counter("kvtier_engine_requests_submitted_total", "Requests taken", m.submitted);
  counter("kvtier_engine_requests_refused_total", "Requests refused: too many were waiting",
          m.refused);
  counter("kvtier_engine_requests_cancelled_total", "Requests cancelled", m.cancelled);
  counter("kvtier_engine_requests_failed_total", "Requests failed", m.failed);
  header("kvtier_engine_cached_tokens_total", "counter", "Prompt tokens taken, by tier", out);
  for (std::size_t i = 0; i < kTiersWithRemote; ++i) {
    out += "kvtier_engine_cached_tokens_total{" + labels + ",tier=\"" + name(static_cast<Tier>(i)) +
           "\"} " + std::to_string(m.cache_hits[i]) + "\n";
  }
  header("kvtier_engine_plans_total", "counter", "What was decided about cached prefixes", out);
  const std::pair<const char*, std::uint64_t> plans[] = {
      {"load", m.plans_load}, {"compute", m.plans_compute}, {"both", m.plans_both}};
  for (const auto& [mode, count] : plans) {
    out += "kvtier_engine_plans_total{" + labels + ",mode=\"" + mode + "\"} " +
           std::to_string(count) + "\n";
  }
  counter("kvtier_engine_loads_total", "Ranges of blocks asked of the cache", m.loads);
  counter("kvtier_engine_loads_shared_total", "Requests that waited for another one's load",
          m.loads_shared);
  counter("kvtier_engine_loads_failed_total", "Loads with fewer blocks than asked for",
          m.loads_failed);
  counter("kvtier_engine_blocks_offered_again_total",
          "Blocks offered again to the cache, which had not taken them", m.blocks_offered_again);
  counter("kvtier_engine_handoffs_total", "Requests that awaited a prompt from another engine",
          m.handoffs);
  counter("kvtier_engine_handoffs_given_up_total",
          "Of those, such as computed what had not come in time", m.handoffs_given_up);
  counter("kvtier_engine_tokens_computed_total", "Rows of steps", m.tokens_computed);
  counter("kvtier_engine_tokens_recomputed_total", "Rows computed again after parking",
          m.tokens_recomputed);
  counter("kvtier_engine_steps_total", "Steps of the model", m.steps);
}

}  // namespace

void Histogram::add(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<std::size_t>(at - bounds_.begin())];
  sum_ += value;
}

void Histogram::write(const char* name, const char* help, const std::string& labels,
                      std::string& out) const {
  header(name, "histogram", help, out);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < bounds_.size() ? number(bounds_[i]) : "+Inf";
    out += std::string(name) + "_bucket{" + labels + ",le=\"" + bound + "\"} " +
           std::to_string(below) + "\n";
  }
  out += std::string(name) + "_sum{" + labels + "} " + number(sum_) + "\n";
  out += std::string(name) + "_count{" + labels + "} " + std::to_string(below) + "\n";
}

ServerMetrics::ServerMetrics(const std::string& model_name)
    : labels_("model_name=\"" + escaped(model_name) + "\""),
      first_token_(kFirstTokenBounds),
      next_token_(kNextTokenBounds),
      total_(kRequestBounds),
      queued_(kRequestBounds) {}

void ServerMetrics::first_token(std::chrono::nanoseconds after) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds(after));
}

void ServerMetrics::next_token(std::chrono::nanoseconds after) {
  const std::lock_guard lock(mutex_);
  next_token_.add(seconds(after));
}

void ServerMetrics::request_done(std::chrono::nanoseconds total, std::chrono::nanoseconds queued,
                                 const std::string& finish_reason) {
  const std::lock_guard lock(mutex_);
  total_.add(seconds(total));
  queued_.add(seconds(queued));
  ++finished_[finish_reason];
}

void ServerMetrics::prompt_stored(std::uint32_t stored, std::uint32_t missing) {
  const std::lock_guard lock(mutex_);
  ++prompts_stored_;
  tokens_stored_ += stored;
  tokens_not_stored_ += missing;
}

void ServerMetrics::response(unsigned status) {
  const std::lock_guard lock(mutex_);
  ++responses_[status];
}

void ServerMetrics::connection(int change) {
  const std::lock_guard lock(mutex_);
  connections_ += change;
}

std::string ServerMetrics::prometheus(const SchedulerMetrics& scheduler) const {
  std::string out;
  write_vllm(scheduler, labels_, out);
  const std::lock_guard lock(mutex_);
  first_token_.write("vllm:time_to_first_token_seconds", "From a request to its first token",
                     labels_, out);
  next_token_.write("vllm:inter_token_latency_seconds", "From a token to the next one", labels_,
                    out);
  total_.write("vllm:e2e_request_latency_seconds", "From a request to its end", labels_, out);
  queued_.write("vllm:request_queue_time_seconds", "From a request to its first pages", labels_,
                out);
  header("vllm:request_success_total", "counter", "Requests ended, by reason", out);
  for (const auto& [reason, count] : finished_) {
    out += "vllm:request_success_total{" + labels_ + ",finished_reason=\"" + reason + "\"} " +
           std::to_string(count) + "\n";
  }
  write_own(scheduler, labels_, out);
  header("kvtier_engine_http_responses_total", "counter", "Responses, by status", out);
  for (const auto& [status, count] : responses_) {
    out += "kvtier_engine_http_responses_total{" + labels_ + ",status=\"" + std::to_string(status) +
           "\"} " + std::to_string(count) + "\n";
  }
  const auto counter = [&](const char* name, const char* help, std::uint64_t value) {
    one(name, "counter", help, labels_, static_cast<double>(value), out);
  };
  counter("kvtier_engine_prompts_for_others_total", "Prompts computed for another engine",
          prompts_stored_);
  counter("kvtier_engine_tokens_for_others_total", "Their tokens that the cache had in the end",
          tokens_stored_);
  counter("kvtier_engine_tokens_for_others_missing_total",
          "Their tokens that the cache did not take in time", tokens_not_stored_);
  one("kvtier_engine_http_connections", "gauge", "Open connections", labels_,
      static_cast<double>(connections_), out);
  return out;
}

}  // namespace kvtier::engine::server
