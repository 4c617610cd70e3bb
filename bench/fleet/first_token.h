// When first tokens come: what a host loads, what it computes, and what waits for what. All times
// are seconds from the trace's zero.
//
// The GPU computes one prompt at a time, the one that was ready first: two at once would take as
// long. Disk, network port and link each serve in the order in which they are asked, and beside one
// another and the GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <vector>

namespace kvtier::bench {

// The defaults are of one H200 with Llama 3.1 8B and FP8 records (docs/performance.md).
struct Rates {
  // Prompt tokens a second with nothing before them; behind so many tokens, half as many. It gives
  // 50 ms for 2,048 tokens, 219 ms for 8,192 and 1,192 ms for 32,768.
  double compute_tokens_per_s = 42'500;
  double half_rate_tokens = 30'000;
  double fixed_ms = 5;  // that a first token takes beside: the lease, and the last block's step
  double link_bytes_per_s = 52e9;  // from host memory to the GPU
  double disk_bytes_per_s = 1.9e9;
  double network_latency_ms = 1;  // a question to the shared store and its answer
  double remote_bytes_per_s = 0;  // of the store, for all hosts, each way; 0: as their ports
  // Whether all that is found is loaded; else as much as makes the first token come soonest.
  bool always_load = false;
};

// What serves one after the other.
class Line {
 public:
  double done(double at, double seconds) const noexcept { return std::max(at, free_at_) + seconds; }
  double serve(double at, double seconds) noexcept { return free_at_ = done(at, seconds); }
  double backlog(double at) const noexcept { return std::max(0.0, free_at_ - at); }

 private:
  double free_at_ = 0;
};

// The shared store's own rates.
struct StoreLines {
  Line reads, writes;
};

struct LookedUp {
  double at_s = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t host_blocks = 0, disk_blocks = 0;
  std::uint64_t remote_blocks = 0;  // behind those
  bool asked_remote = false;
};
struct Loaded {
  std::uint64_t disk_blocks = 0, remote_blocks = 0;
  double computed_in_s = 0;  // from the arrival, as far as that is known then
};

class HostTime {
 public:
  static constexpr double kWriteBacklogMax = 1;  // seconds that a write may wait

  // `first_tokens` gets the time of each from its request's arrival, and outlives this.
  HostTime(const Rates& rates, double network_bytes_per_s, std::uint64_t block_bytes,
           std::uint32_t block_tokens, std::vector<double>& first_tokens);

  // Times do not go back. What is loaded of what was found; the rest is computed.
  Loaded arrive(const LookedUp& found, StoreLines& store);
  // How many of these blocks, which come to be one after the other within `over_s`, can be written
  // to the shared store. What would wait too long for the port or for the store is dropped, with
  // all behind it.
  std::uint64_t write(double at_s, std::uint64_t blocks, double over_s, StoreLines& store);
  // No more requests come. When the last first token came.
  double finish();
  double busy_s() const noexcept { return busy_s_; }

  // To compute `tokens` that stand behind `before`.
  double compute_s(double before, double tokens) const noexcept;

 private:
  struct Ready {
    double at_s = 0;
    std::uint64_t number = 0;
    double compute_s = 0;
    double arrived_s = 0;
    bool operator>(const Ready& other) const noexcept {
      return at_s != other.at_s ? at_s > other.at_s : number > other.number;
    }
  };
  void advance(double to_s);
  template <class Done>
  std::uint64_t worth_loading(std::uint64_t blocks, double before, double gpu_at,
                              Done&& done) const;

  const Rates& rates_;
  double latency_s_, block_tokens_;
  double disk_block_s_, port_block_s_, store_block_s_, link_block_s_;
  std::vector<double>& first_tokens_;
  Line disk_, port_in_, port_out_, link_;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> queue_;
  std::uint64_t arrived_ = 0;
  double queued_s_ = 0;
  double gpu_free_at_ = 0;
  double busy_s_ = 0;
};

}  // namespace kvtier::bench
