// What the server counts, and everything as Prometheus text: under vLLM's names what its dashboards
// read, under kvtier_engine_* what is ours. Any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine_adapter/reference/scheduler/scheduler_metrics.h"

namespace kvtier::engine::server {

class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1) {}
  void add(double seconds);
  // `labels`: "model_name=\"x\"".
  void write(const char* name, const char* help, const std::string& labels, std::string& out) const;

 private:
  std::span<const double> bounds_;
  std::vector<std::uint64_t> counts_;  // the last: beyond every bound
  double sum_ = 0;
};

class ServerMetrics {
 public:
  explicit ServerMetrics(const std::string& model_name);

  void first_token(std::chrono::nanoseconds after);
  void next_token(std::chrono::nanoseconds after);
  void request_done(std::chrono::nanoseconds total, std::chrono::nanoseconds queued,
                    const std::string& finish_reason);
  // Of a prompt that was computed for another engine, in tokens.
  void prompt_stored(std::uint32_t stored, std::uint32_t missing);
  void response(unsigned status);
  void connection(int change);

  std::string prometheus(const SchedulerMetrics& scheduler) const;

 private:
  std::string labels_;
  mutable std::mutex mutex_;
  Histogram first_token_;
  Histogram next_token_;
  Histogram total_;
  Histogram queued_;
  std::map<std::string, std::uint64_t> finished_;
  std::map<unsigned, std::uint64_t> responses_;
  std::uint64_t prompts_stored_ = 0;
  std::uint64_t tokens_stored_ = 0;
  std::uint64_t tokens_not_stored_ = 0;
  std::int64_t connections_ = 0;
};

}  // namespace kvtier::engine::server
