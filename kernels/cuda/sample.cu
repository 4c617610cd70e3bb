// Choosing tokens, as engine_adapter/reference/model/sampler.cc does, without sorting.
//
// Tokens are ordered by logit, then by id. A token's weight is a fixed-point number, so sums are
// exact in any order and a choice does not depend on how the work was spread. "The token at which
// the running count (top_k) or weight (top_p, the draw) crosses a target" is found digit by digit
// of the logit's bits, from the highest: a histogram of the tokens that share the digits found so
// far, and the bin in which the crossing lies. Tokens of one logit weigh the same, so only the last
// step needs their ids. The tokens that share the first digit are listed once, where they are not
// too many: what follows reads the list in place of the vocabulary.
#include <cooperative_groups.h>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/logit_order.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace kvtier::kernels::cuda {
namespace {

using Weight = LogitPair;

constexpr std::uint32_t kDigitBits = 11;
constexpr std::uint32_t kBins = 1U << kDigitBits;
constexpr std::uint32_t kFirstShift = 32 - kDigitBits;
// 1.0, the weight of the likeliest token; the sum of 2^19 of them fits.
constexpr double kOne = 0x1p44;
constexpr std::size_t kVocabularyMax = std::size_t{1} << 19;

constexpr std::uint32_t kScanThreads = 256;     // of the kernels that share out a row
constexpr std::uint32_t kTokensPerPart = 4096;  // of a thread block there
constexpr std::uint32_t kPickThreads = 1024;
constexpr std::uint32_t kListMax = 8192;
constexpr std::uint32_t kTiesMax = 64;  // tokens of one logit that are told apart in the list
constexpr std::uint32_t kNoDigit = ~0U;

// Sums in shared memory, where only 32 bits are added at once: a 64-bit addition there is a loop
// that all threads of a bin would contend in.
struct SplitWeight {
  std::uint32_t low;
  std::uint32_t high;

  __device__ __forceinline__ void add(Weight weight) {
    const auto part = static_cast<std::uint32_t>(weight);
    const std::uint32_t before = atomicAdd(&low, part);
    const std::uint32_t carry = before + part < before ? 1 : 0;
    const std::uint32_t upper = static_cast<std::uint32_t>(weight >> 32) + carry;
    if (upper != 0) atomicAdd(&high, upper);
  }
  __device__ __forceinline__ void set(Weight weight) {
    low = static_cast<std::uint32_t>(weight);
    high = static_cast<std::uint32_t>(weight >> 32);
  }
  __device__ __forceinline__ Weight get() const { return static_cast<Weight>(high) << 32 | low; }
};

// Of one row, in the workspace.
struct RowSpace {
  Weight largest;  // (key, ~id) of the likeliest token, as ordered_pair() gives it
  Weight weights[kBins];
  std::uint32_t counts[kBins];
};

// The logits that row `blockIdx.x` of the choices is about.
__device__ __forceinline__ const float* logits_of_row(const float* logits,
                                                      const std::uint32_t* index,
                                                      std::uint32_t vocabulary) {
  const std::uint32_t row = index != nullptr ? index[blockIdx.x] : blockIdx.x;
  return logits + std::uint64_t{row} * vocabulary;
}

// Nothing to draw: greedy, all NaN, or an infinity that leaves no weights.
__device__ __forceinline__ bool takes_largest(const SampleRow& row, Weight largest) {
  return row.temperature == 0 || !isfinite(logit_in(largest));
}

__device__ __forceinline__ Weight weight_of(float logit, float largest, float temperature) {
  const double exponent = (static_cast<double>(logit) - static_cast<double>(largest)) /
                          static_cast<double>(temperature);
  return exponent < -32.0 ? 0 : __double2ull_rn(exp(exponent) * kOne);  // below half of 2^-44
}

__global__ void __launch_bounds__(kScanThreads) clear_kernel(RowSpace* spaces) {
  RowSpace& space = spaces[blockIdx.x];
  if (threadIdx.x == 0) space.largest = 0;
  for (std::uint32_t i = threadIdx.x; i < kBins; i += kScanThreads) {
    space.weights[i] = 0;
    space.counts[i] = 0;
  }
}

// Grid of this and the next: [rows][parts of the vocabulary].
__global__ void __launch_bounds__(kScanThreads)
    largest_kernel(const float* logits, const std::uint32_t* index, std::uint32_t vocabulary,
                   RowSpace* spaces) {
  const float* row = logits_of_row(logits, index, vocabulary);
  const std::uint32_t end = min((blockIdx.y + 1) * kTokensPerPart, vocabulary);
  Weight largest = 0;
  for (std::uint32_t i = blockIdx.y * kTokensPerPart + threadIdx.x; i < end; i += kScanThreads) {
    largest = max(largest, ordered_pair(key_of(row[i]), i));
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFF, largest, distance));
  }
  if (threadIdx.x % 32 == 0) atomicMax(&spaces[blockIdx.x].largest, largest);
}

__global__ void __launch_bounds__(kScanThreads)
    weigh_kernel(const float* logits, const std::uint32_t* index, const SampleRow* rows,
                 std::uint32_t vocabulary, RowSpace* spaces) {
  RowSpace& space = spaces[blockIdx.x];
  const SampleRow choice = rows[blockIdx.x];
  if (takes_largest(choice, space.largest)) return;
  __shared__ SplitWeight weights[kBins];
  __shared__ std::uint32_t counts[kBins];
  for (std::uint32_t i = threadIdx.x; i < kBins; i += kScanThreads) {
    weights[i].set(0);
    counts[i] = 0;
  }
  __syncthreads();
  const float largest = logit_in(space.largest);
  const float* row = logits_of_row(logits, index, vocabulary);
  const std::uint32_t end = min((blockIdx.y + 1) * kTokensPerPart, vocabulary);
  for (std::uint32_t i = blockIdx.y * kTokensPerPart + threadIdx.x; i < end; i += kScanThreads) {
    const float logit = row[i];
    if (logit != logit) continue;
    const std::uint32_t bin = key_of(logit) >> kFirstShift;
    atomicAdd(&counts[bin], 1);
    const Weight weight = weight_of(logit, largest, choice.temperature);
    if (weight != 0) weights[bin].add(weight);
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < kBins; i += kScanThreads) {
    if (counts[i] != 0) atomicAdd(&space.counts[i], counts[i]);
    const Weight weight = weights[i].get();
    if (weight != 0) atomicAdd(&space.weights[i], weight);
  }
}

// Tokens before some place of the order.
struct Before {
  std::uint32_t count;
  Weight weight;
};

// A place in the order: the `ties`-th (from 1) token of logit `key`, and what comes before the
// first of them. `same` tokens have that logit.
struct Place {
  std::uint32_t key;
  std::uint32_t ties;
  std::uint32_t same;
  Before before;
};

struct Candidate {
  std::uint32_t key;
  std::uint32_t id;
};

struct PickShared {
  SplitWeight weights[kBins];
  std::uint32_t counts[kBins];
  Weight weight_sums[32];
  std::uint32_t count_sums[32];
  std::uint32_t bin;
  Before before;
  std::uint32_t token;
  std::uint32_t listed;
  std::uint32_t ties;
  std::uint32_t tied[kTiesMax];
};

// Which running sum is to cross the target, and when: count >= target, or weight > target.
struct Target {
  bool by_count;
  Weight value;
  __device__ bool crossed(Before sum) const {
    return by_count ? sum.count >= value : sum.weight > value;
  }
};

// The highest bin, from the top, with which the sum over `before` and the bins crosses the target;
// the lowest bin that holds anything where rounding keeps it from crossing. Two bins a thread.
__device__ __forceinline__ void find_bin(PickShared& shared, const Before& before,
                                         const Target& target) {
  const std::uint32_t top = kBins - 1 - 2 * threadIdx.x;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t warp = threadIdx.x / 32;
  const Before first{shared.counts[top], shared.weights[top].get()};
  const Before second{shared.counts[top - 1], shared.weights[top - 1].get()};
  Before sum{first.count + second.count, first.weight + second.weight};
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t count = __shfl_up_sync(0xFFFFFFFF, sum.count, distance);
    const Weight weight = __shfl_up_sync(0xFFFFFFFF, sum.weight, distance);
    if (static_cast<int>(lane) >= distance) {
      sum.count += count;
      sum.weight += weight;
    }
  }
  if (lane == 31) {
    shared.count_sums[warp] = sum.count;
    shared.weight_sums[warp] = sum.weight;
  }
  __syncthreads();
  Before at = before;
  for (std::uint32_t i = 0; i < warp; ++i) {
    at.count += shared.count_sums[i];
    at.weight += shared.weight_sums[i];
  }
  at.count += sum.count - first.count - second.count;
  at.weight += sum.weight - first.weight - second.weight;
  const Before next{at.count + first.count, at.weight + first.weight};
  const Before last{next.count + second.count, next.weight + second.weight};
  if (!target.crossed(at) && target.crossed(last)) {
    const bool in_first = target.crossed(next);
    shared.bin = in_first ? top : top - 1;
    shared.before = in_first ? at : next;
  }
  __syncthreads();
}

// One row's logits, their first histogram, and the search in both.
class Row {
 public:
  // `list` has room for kListMax.
  __device__ Row(PickShared& shared, Candidate* list, const float* logits, std::uint32_t vocabulary,
                 const RowSpace& space, const SampleRow& choice)
      : shared_(shared),
        list_(list),
        logits_(logits),
        vocabulary_(vocabulary),
        space_(space),
        largest_(logit_in(space.largest)),
        temperature_(choice.temperature) {}

  __device__ Weight weight_at(std::uint32_t key) const {
    return weight_of(logit_of(key), largest_, temperature_);
  }

  // The first place in the order at which the running sum, that place included, crosses. There
  // must be one.
  __device__ Place find(const Target& target) {
    load_first_digit();
    find_bin(shared_, {0, 0}, target);
    std::uint32_t digits = shared_.bin;
    Before before = shared_.before;
    std::uint32_t known = kDigitBits;
    const std::uint32_t sharing = shared_.counts[digits];
    __syncthreads();  // the counts are about to be used again
    list_tokens(digits, sharing);
    while (known < 32) {
      const std::uint32_t bits = min(kDigitBits, 32 - known);
      count_next_digit(digits, known, bits);
      find_bin(shared_, before, target);
      digits = digits << bits | shared_.bin;
      before = shared_.before;
      known += bits;
    }
    const std::uint32_t same = shared_.counts[shared_.bin];
    const Weight weight = weight_at(digits);
    const Weight missing = target.by_count
                               ? target.value - before.count
                               : (weight == 0 ? 1 : (target.value - before.weight) / weight + 1);
    __syncthreads();  // shared_ is about to be used again
    return {digits, static_cast<std::uint32_t>(missing), same, before};
  }

  // The id of the token at `place`, which was found last: its `ties`-th in order of ids.
  __device__ std::uint32_t token_at(const Place& place) {
    return listed_digit_ != kNoDigit && place.same <= kTiesMax ? token_in_list(place)
                                                               : token_in_vocabulary(place);
  }

 private:
  __device__ std::uint32_t token_in_list(const Place& place) {
    if (threadIdx.x == 0) {
      shared_.token = id_in(space_.largest);
      shared_.ties = 0;
    }
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < shared_.listed; i += kPickThreads) {
      if (list_[i].key == place.key) shared_.tied[atomicAdd(&shared_.ties, 1)] = list_[i].id;
    }
    __syncthreads();
    if (threadIdx.x < shared_.ties) {
      const std::uint32_t id = shared_.tied[threadIdx.x];
      std::uint32_t rank = 1;
      for (std::uint32_t i = 0; i < shared_.ties; ++i) rank += shared_.tied[i] < id ? 1 : 0;
      if (rank == place.ties) shared_.token = id;
    }
    __syncthreads();
    return shared_.token;
  }

  // Each warp has its share of the vocabulary in one piece.
  __device__ std::uint32_t token_in_vocabulary(const Place& place) {
    const std::uint32_t warp = threadIdx.x / 32;
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t share = (vocabulary_ + kPickThreads - 1) / kPickThreads * 32;
    const std::uint32_t begin = warp * share;
    const std::uint32_t end = min(begin + share, vocabulary_);
    std::uint32_t mine = 0;
    for_each_key(begin + lane, end, 32,
                 [&](std::uint32_t, std::uint32_t key) { mine += key == place.key ? 1 : 0; });
    const std::uint32_t of_warp = __reduce_add_sync(0xFFFFFFFF, mine);
    if (lane == 0) shared_.count_sums[warp] = of_warp;
    if (threadIdx.x == 0) shared_.token = id_in(space_.largest);
    __syncthreads();
    std::uint32_t before = 0;
    for (std::uint32_t i = 0; i < warp; ++i) before += shared_.count_sums[i];
    if (before < place.ties && place.ties <= before + of_warp) {
      // Whole warps: `begin` and the turns are the same for all lanes.
      for_each_key(begin + lane, begin + share, 32, [&](std::uint32_t i, std::uint32_t key) {
        const bool same = i < end && key == place.key;
        const std::uint32_t ballot = __ballot_sync(0xFFFFFFFF, same);
        const std::uint32_t rank = before + __popc(ballot & ((1U << lane) - 1)) + 1;
        if (same && rank == place.ties) shared_.token = i;
        before += __popc(ballot);
      });
    }
    __syncthreads();
    return shared_.token;
  }

  // Lists the `count` tokens that begin with `digit`, if that many have room.
  __device__ void list_tokens(std::uint32_t digit, std::uint32_t count) {
    if (listed_digit_ == digit) return;
    listed_digit_ = count <= kListMax ? digit : kNoDigit;
    if (listed_digit_ == kNoDigit) return;
    if (threadIdx.x == 0) shared_.listed = 0;
    __syncthreads();
    for_each_key(threadIdx.x, vocabulary_, kPickThreads, [&](std::uint32_t i, std::uint32_t key) {
      if (key == 0 || key >> kFirstShift != digit) return;
      const auto group = cooperative_groups::coalesced_threads();
      std::uint32_t at = 0;
      if (group.thread_rank() == 0) at = atomicAdd(&shared_.listed, group.size());
      list_[group.shfl(at, 0) + group.thread_rank()] = {key, i};
    });
    __syncthreads();
  }

  __device__ void load_first_digit() {
    for (std::uint32_t i = threadIdx.x; i < kBins; i += kPickThreads) {
      shared_.weights[i].set(space_.weights[i]);
      shared_.counts[i] = space_.counts[i];
    }
    __syncthreads();
  }

  // Histogram of the `bits` bits after the first `known` of the keys that begin with `digits`.
  __device__ void count_next_digit(std::uint32_t digits, std::uint32_t known, std::uint32_t bits) {
    for (std::uint32_t i = threadIdx.x; i < kBins; i += kPickThreads) {
      shared_.weights[i].set(0);
      shared_.counts[i] = 0;
    }
    __syncthreads();
    const auto take = [&](std::uint32_t, std::uint32_t key) {
      if (key == 0 || key >> (32 - known) != digits) return;
      const std::uint32_t bin = (key >> (32 - known - bits)) & ((1U << bits) - 1);
      atomicAdd(&shared_.counts[bin], 1);
      shared_.weights[bin].add(weight_at(key));
    };
    if (listed_digit_ != kNoDigit) {
      for (std::uint32_t i = threadIdx.x; i < shared_.listed; i += kPickThreads)
        take(i, list_[i].key);
    } else {
      for_each_key(threadIdx.x, vocabulary_, kPickThreads, take);
    }
    __syncthreads();
  }

  // f(i, key of token i) for i = first, first + step, ... below `end`, and with key 0 for what is
  // left of the last turn. Several loads are under way at a time: one SM has no other work to hide
  // them behind.
  template <typename F>
  __device__ __forceinline__ void for_each_key(std::uint32_t first, std::uint32_t end,
                                               std::uint32_t step, const F& f) const {
    constexpr std::uint32_t kAtOnce = 8;
    for (std::uint32_t turn = first; turn < end; turn += kAtOnce * step) {
      std::uint32_t keys[kAtOnce];
#pragma unroll
      for (std::uint32_t j = 0; j < kAtOnce; ++j) {
        const std::uint32_t i = turn + j * step;
        keys[j] = i < end && i < vocabulary_ ? key_of(logits_[i]) : 0;
      }
#pragma unroll
      for (std::uint32_t j = 0; j < kAtOnce; ++j) f(turn + j * step, keys[j]);
    }
  }

  PickShared& shared_;
  Candidate* const list_;
  std::uint32_t listed_digit_ = kNoDigit;  // the first digit of what is listed
  const float* logits_;
  std::uint32_t vocabulary_;
  const RowSpace& space_;
  float largest_;
  float temperature_;
};

// The running weight up to and including `place`.
__device__ __forceinline__ Weight weight_through(const Row& row, const Place& place) {
  return place.before.weight + place.ties * row.weight_at(place.key);
}

// A thread block a row.
__global__ void __launch_bounds__(kPickThreads)
    pick_kernel(const float* logits, const std::uint32_t* index, const SampleRow* rows,
                std::uint32_t* tokens, std::uint32_t vocabulary, const RowSpace* spaces) {
  __shared__ PickShared shared;
  extern __shared__ Candidate list[];
  const RowSpace& space = spaces[blockIdx.x];
  const SampleRow choice = rows[blockIdx.x];
  if (takes_largest(choice, space.largest)) {
    if (threadIdx.x == 0) tokens[blockIdx.x] = id_in(space.largest);
    return;
  }
  Row row(shared, list, logits_of_row(logits, index, vocabulary), vocabulary, space, choice);
  std::uint32_t candidates = 0;
  Weight total = 0;
  for (std::uint32_t i = threadIdx.x; i < kBins; i += kPickThreads) {
    candidates += space.counts[i];
    total += space.weights[i];
  }
  // Sums over the block, through shared memory.
  if (threadIdx.x == 0) shared.before = {0, 0};
  __syncthreads();
  if (candidates != 0) atomicAdd(&shared.before.count, candidates);
  if (total != 0) atomicAdd(&shared.before.weight, total);
  __syncthreads();
  candidates = shared.before.count;
  total = shared.before.weight;
  __syncthreads();

  if (choice.top_k != 0 && choice.top_k < candidates) {
    total = weight_through(row, row.find({.by_count = true, .value = choice.top_k}));
  }
  Weight kept = total;
  if (choice.top_p < 1) {
    // The first place whose running weight is at least the target, which is above 0.
    const Weight target =
        __double2ull_ru(static_cast<double>(choice.top_p) * static_cast<double>(total));
    const Weight least = min(max(target, Weight{1}), total);
    kept = weight_through(row, row.find({.by_count = false, .value = least - 1}));
  }
  const Weight drawn = __double2ull_rd(choice.uniform * static_cast<double>(kept));
  const Place place = row.find({.by_count = false, .value = min(drawn, kept - 1)});
  const std::uint32_t token = row.token_at(place);
  if (threadIdx.x == 0) tokens[blockIdx.x] = token;
}

}  // namespace

std::size_t sample_workspace_bytes(std::size_t count, std::size_t) {
  return count * sizeof(RowSpace);
}

void sample(const float* logits, const SampleRow* rows, std::uint32_t* tokens, std::size_t count,
            std::size_t vocabulary, void* workspace, StreamView stream,
            const std::uint32_t* index) {
  KVTIER_CHECK(vocabulary > 0 && vocabulary <= kVocabularyMax);
  if (count == 0) return;
  auto* spaces = static_cast<RowSpace*>(workspace);
  const auto row_count = static_cast<std::uint32_t>(count);
  const auto tokens_each = static_cast<std::uint32_t>(vocabulary);
  const dim3 parts(row_count, divided_up(vocabulary, kTokensPerPart));
  clear_kernel<<<row_count, kScanThreads, 0, stream.get()>>>(spaces);
  largest_kernel<<<parts, kScanThreads, 0, stream.get()>>>(logits, index, tokens_each, spaces);
  weigh_kernel<<<parts, kScanThreads, 0, stream.get()>>>(logits, index, rows, tokens_each, spaces);
  constexpr std::size_t kListBytes = kListMax * sizeof(Candidate);
  device::allow_shared_memory(pick_kernel, kListBytes);
  pick_kernel<<<row_count, kPickThreads, kListBytes, stream.get()>>>(logits, index, rows, tokens,
                                                                     tokens_each, spaces);
  check_launch("sample");
}

}  // namespace kvtier::kernels::cuda
