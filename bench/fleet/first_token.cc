#include "bench/fleet/first_token.h"

#include <limits>

namespace kvtier::bench {

HostTime::HostTime(const Rates& rates, double network_bytes_per_s, std::uint64_t block_bytes,
                   std::uint32_t block_tokens, std::vector<double>& first_tokens)
    : rates_(rates),
      latency_s_(rates.network_latency_ms / 1e3),
      block_tokens_(block_tokens),
      first_tokens_(first_tokens) {
  const auto bytes = static_cast<double>(block_bytes);
  disk_block_s_ = bytes / rates.disk_bytes_per_s;
  port_block_s_ = bytes / network_bytes_per_s;
  store_block_s_ = rates.remote_bytes_per_s > 0 ? bytes / rates.remote_bytes_per_s : 0;
  link_block_s_ = bytes / rates.link_bytes_per_s;
}

// A token behind x others takes 1 + x / half_rate_tokens times as long as the first: attention.
double HostTime::compute_s(double before, double tokens) const noexcept {
  const double attended = tokens * (before + tokens / 2) / rates_.half_rate_tokens;
  return (tokens + attended) / rates_.compute_tokens_per_s;
}

// The last blocks are loaded while the first are computed, until the two meet (adr/0022). Which
// number of loaded blocks that is follows from what is known now: `done(n)` is when so many are
// loaded, `gpu_at` when the GPU has nothing else to do.
template <class Done>
std::uint64_t HostTime::worth_loading(std::uint64_t blocks, double before, double gpu_at,
                                      Done&& done) const {
  if (rates_.always_load) return blocks;
  const auto computed = [&](std::uint64_t loaded) {
    return gpu_at + compute_s(before, static_cast<double>(blocks - loaded) * block_tokens_);
  };
  const auto later = [&](std::uint64_t loaded) {
    return loaded == 0 ? computed(0) : std::max(done(loaded), computed(loaded));
  };
  std::uint64_t least = 0, most = blocks;
  while (least < most) {  // the fewest of which the loading takes as long as computing the rest
    const std::uint64_t middle = least + (most - least) / 2;
    if (middle != 0 && done(middle) >= computed(middle)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return least > 0 && later(least - 1) <= later(least) ? least - 1 : least;
}

Loaded HostTime::arrive(const LookedUp& found, StoreLines& store) {
  advance(found.at_s);
  const double known_at = found.at_s + (found.asked_remote ? latency_s_ : 0);
  const double local = static_cast<double>(found.host_blocks + found.disk_blocks) * block_tokens_;
  const double hit = local + static_cast<double>(found.remote_blocks) * block_tokens_;
  double gpu_at = std::max(known_at, gpu_free_at_) + queued_s_;
  double compute = 0;  // of what was found
  const auto compute_front = [&](double before, std::uint64_t blocks) {
    const double seconds = compute_s(before, static_cast<double>(blocks) * block_tokens_);
    compute += seconds;
    gpu_at += seconds;
  };

  Loaded loaded;
  double loaded_at = known_at;
  if (found.remote_blocks > 0) {
    const double at = known_at + latency_s_;
    const auto done = [&](std::uint64_t blocks) {
      const auto n = static_cast<double>(blocks);
      return std::max(port_in_.done(at, n * port_block_s_),
                      store.reads.done(at, n * store_block_s_));
    };
    loaded.remote_blocks = worth_loading(found.remote_blocks, local, gpu_at, done);
    if (loaded.remote_blocks > 0) {
      const auto n = static_cast<double>(loaded.remote_blocks);
      loaded_at = std::max(port_in_.serve(at, n * port_block_s_),
                           store.reads.serve(at, n * store_block_s_));
    }
    compute_front(local, found.remote_blocks - loaded.remote_blocks);
  }
  if (found.disk_blocks > 0) {
    const double before = static_cast<double>(found.host_blocks) * block_tokens_;
    const auto done = [&](std::uint64_t blocks) {
      return disk_.done(known_at, static_cast<double>(blocks) * disk_block_s_);
    };
    loaded.disk_blocks = worth_loading(found.disk_blocks, before, gpu_at, done);
    if (loaded.disk_blocks > 0) {
      const auto n = static_cast<double>(loaded.disk_blocks);
      loaded_at = std::max(loaded_at, disk_.serve(known_at, n * disk_block_s_));
    }
    compute_front(before, found.disk_blocks - loaded.disk_blocks);
  }
  const std::uint64_t over_link = found.host_blocks + loaded.disk_blocks + loaded.remote_blocks;
  if (over_link > 0) {
    loaded_at =
        std::max(loaded_at, link_.serve(known_at, static_cast<double>(over_link) * link_block_s_));
  }
  // There is always a token to compute: the one before the answer.
  const double fresh = std::max(1.0, static_cast<double>(found.prompt_tokens) - hit);
  const double before = std::min(hit, static_cast<double>(found.prompt_tokens));
  const double fresh_s = compute_s(before, fresh);
  const double whole = compute + fresh_s + rates_.fixed_ms / 1e3;
  loaded.computed_in_s = std::max(loaded_at, gpu_at) + fresh_s - found.at_s;
  // What is computed of what was found is computed while the rest is loaded.
  queue_.push({std::max(known_at, loaded_at - compute), arrived_++, whole, found.at_s});
  queued_s_ += whole;
  return loaded;
}

void HostTime::advance(double to_s) {
  while (!queue_.empty()) {
    const Ready next = queue_.top();
    const double start = std::max(gpu_free_at_, next.at_s);
    if (start > to_s) return;  // another may be ready before
    queue_.pop();
    queued_s_ = queue_.empty() ? 0 : queued_s_ - next.compute_s;
    gpu_free_at_ = start + next.compute_s;
    busy_s_ += next.compute_s;
    first_tokens_.push_back(gpu_free_at_ - next.arrived_s);
  }
}

double HostTime::finish() {
  advance(std::numeric_limits<double>::infinity());
  return gpu_free_at_;
}

std::uint64_t HostTime::write(double at_s, std::uint64_t blocks, double over_s, StoreLines& store) {
  for (std::uint64_t n = 0; n < blocks; ++n) {
    const double comes_in_s = over_s * static_cast<double>(n + 1) / static_cast<double>(blocks);
    const double backlog = std::max(port_out_.backlog(at_s), store.writes.backlog(at_s));
    if (backlog - comes_in_s > kWriteBacklogMax) return n;
    port_out_.serve(at_s, port_block_s_);
    store.writes.serve(at_s, store_block_s_);
  }
  return blocks;
}

}  // namespace kvtier::bench
