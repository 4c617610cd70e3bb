// The likeliest tokens of rows of logits and their log probabilities, as kernels/table.h
// (log_sum_exp) and engine_adapter/reference/model/sampler.h (likeliest_tokens) have them.
//
// Each thread block finds the first tokens of a part of a row in shared memory and leaves them and
// the part's sum; one more a row finds those of what the parts left. All sums are added in an order
// that depends on the row alone.
#include "kernels/cuda/device/logit_order.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.cuh"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / 32;
constexpr std::uint32_t kPart = 4096;  // tokens of a part, and pairs that are sorted at once
static_assert(2 * kLikeliestTokensMax <= kPart);

// Of a part: its largest logit, -infinity for none, and the sum of exp(logit - largest).
struct PartSum {
  double sum;
  float largest;
};

// The least that is not below n, which is at least 1.
__device__ __forceinline__ std::uint32_t power_of_two_from(std::uint32_t n) {
  return n == 1 ? 1 : 1U << (32 - __clz(static_cast<int>(n - 1)));
}

__device__ __forceinline__ float larger_of(float a, float b) {
  return a > b ? a : b;
}

// Of the whole block, in every thread. `shared` has room for kWarps.
__device__ float block_largest(float value, float* shared) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = larger_of(value, __shfl_xor_sync(0xFFFFFFFF, value, distance));
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  for (std::uint32_t warp = 0; warp < kWarps; ++warp) value = larger_of(value, shared[warp]);
  __syncthreads();
  return value;
}
__device__ double block_sum(double value, double* shared) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFF, value, distance);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  for (std::uint32_t warp = 0; warp < kWarps; ++warp) total += shared[warp];
  __syncthreads();
  return total;
}

// One step of bitonic sorting: of `count` pairs, those `stride` apart; by runs of `run` the largest
// comes first, then last.
__device__ void order_pairs(LogitPair* pairs, std::uint32_t count, std::uint32_t stride,
                            std::uint32_t run) {
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count / 2; i += kThreads) {
    const std::uint32_t low = 2 * i - (i & (stride - 1));
    const LogitPair a = pairs[low];
    const LogitPair b = pairs[low + stride];
    const bool descending = (low & run) == 0;
    if ((a < b) == descending) {
      pairs[low] = b;
      pairs[low + stride] = a;
    }
  }
}

// The k largest of `count` pairs, a power of two and at most kPart, come first, the largest before
// the others. Runs that hold k are sorted; of two neighbours, one the other way round, the larger
// ones of each place are the first of both and need only be merged.
__device__ void bring_first(LogitPair* pairs, std::uint32_t count, std::uint32_t k) {
  const std::uint32_t run = min(count, power_of_two_from(k));
  for (std::uint32_t size = 2; size <= run; size *= 2) {
    for (std::uint32_t stride = size / 2; stride > 0; stride /= 2)
      order_pairs(pairs, count, stride, size);
  }
  for (; count > run; count /= 2) {
    constexpr std::uint32_t kEach = kPart / 2 / kThreads;
    LogitPair larger[kEach];
    __syncthreads();
#pragma unroll
    for (std::uint32_t n = 0; n < kEach; ++n) {
      const std::uint32_t i = n * kThreads + threadIdx.x;
      if (i >= count / 2) break;
      const std::uint32_t low = 2 * i - (i & (run - 1));
      larger[n] = max(pairs[low], pairs[low + run]);
    }
    __syncthreads();
#pragma unroll
    for (std::uint32_t n = 0; n < kEach; ++n) {
      const std::uint32_t i = n * kThreads + threadIdx.x;
      if (i < count / 2) pairs[i] = larger[n];
    }
    for (std::uint32_t stride = run / 2; stride > 0; stride /= 2)
      order_pairs(pairs, count / 2, stride, run);
  }
  __syncthreads();
}

// Grid: [rows][parts of the vocabulary]. `firsts`: [rows][parts][k].
__global__ void __launch_bounds__(kThreads)
    part_kernel(const float* logits, std::uint32_t vocabulary, std::uint32_t k, PartSum* sums,
                LogitPair* firsts) {
  __shared__ LogitPair pairs[kPart];
  __shared__ double shared_sums[kWarps];
  __shared__ float shared_largest[kWarps];
  const float* row = logits + std::uint64_t{blockIdx.x} * vocabulary;
  const std::uint32_t begin = blockIdx.y * kPart;
  const std::uint32_t count = min(kPart, vocabulary - begin);
  const float nothing = -INFINITY;
  float largest = nothing;
  for (std::uint32_t i = threadIdx.x; i < kPart; i += kThreads) {
    const float logit = i < count ? row[begin + i] : nothing;
    pairs[i] = i < count ? ordered_pair(key_of(logit), begin + i) : 0;
    largest = larger_of(largest, logit == logit ? logit : nothing);
  }
  largest = block_largest(largest, shared_largest);
  float sum = 0;
  for (std::uint32_t i = threadIdx.x; i < count && isfinite(largest); i += kThreads) {
    const float logit = row[begin + i];
    if (logit == logit) sum += expf(logit - largest);
  }
  const double total = block_sum(sum, shared_sums);
  const std::uint64_t part = std::uint64_t{blockIdx.x} * gridDim.y + blockIdx.y;
  if (threadIdx.x == 0) sums[part] = {total, largest};
  if (k == 0) return;
  bring_first(pairs, kPart, k);
  for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) firsts[part * k + i] = pairs[i];
}

// A thread block a row.
__global__ void __launch_bounds__(kThreads)
    row_kernel(const PartSum* sums, const LogitPair* firsts, std::uint32_t parts, std::uint32_t k,
               LikeliestToken* out, double* log_sums) {
  __shared__ LogitPair pairs[kPart];
  __shared__ double shared_sums[kWarps];
  __shared__ float shared_largest[kWarps];
  const PartSum* of_row = sums + std::uint64_t{blockIdx.x} * parts;
  float largest = -INFINITY;
  for (std::uint32_t i = threadIdx.x; i < parts; i += kThreads) {
    largest = larger_of(largest, of_row[i].largest);
  }
  largest = block_largest(largest, shared_largest);
  double sum = 0;
  for (std::uint32_t i = threadIdx.x; i < parts && isfinite(largest); i += kThreads) {
    const double down = static_cast<double>(of_row[i].largest) - static_cast<double>(largest);
    if (isfinite(down)) sum += of_row[i].sum * exp(down);
  }
  const double total = block_sum(sum, shared_sums);
  const double log_sum = isfinite(largest) ? largest + log(total) : largest;
  if (threadIdx.x == 0) log_sums[blockIdx.x] = log_sum;
  if (k == 0) return;
  const LogitPair* left = firsts + std::uint64_t{blockIdx.x} * parts * k;
  const std::uint32_t count = parts * k;
  for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) pairs[i] = 0;
  // The first k of what has been seen stay in front.
  for (std::uint32_t taken = 0; taken < count; taken += kPart - k) {
    const std::uint32_t here = min(count - taken, kPart - k);
    const std::uint32_t seen = power_of_two_from(k + here);
    for (std::uint32_t i = threadIdx.x; i < seen - k; i += kThreads) {
      pairs[k + i] = i < here ? left[taken + i] : 0;
    }
    bring_first(pairs, seen, k);
  }
  for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) {
    const LogitPair pair = pairs[i];
    LikeliestToken token = {kNoToken, 0};
    if (key_in(pair) != 0) {
      token = {id_in(pair), static_cast<float>(static_cast<double>(logit_in(pair)) - log_sum)};
    }
    out[std::uint64_t{blockIdx.x} * k + i] = token;
  }
}

__global__ void __launch_bounds__(kThreads)
    token_kernel(const float* logits, const double* log_sums, const std::uint32_t* rows,
                 const std::uint32_t* tokens, float* out, std::uint32_t count,
                 std::uint32_t vocabulary) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::uint32_t row = rows[i];
  // As in row_kernel: a token has one log probability, wherever it is told.
  const float logit = logits[std::uint64_t{row} * vocabulary + tokens[i]] + 0.0F;
  out[i] = static_cast<float>(static_cast<double>(logit) - log_sums[row]);
}

}  // namespace

std::size_t likeliest_workspace_bytes(std::size_t count, std::size_t vocabulary, std::uint32_t k) {
  const std::size_t parts = divided_up(vocabulary, kPart);
  return count * parts * (sizeof(PartSum) + k * sizeof(LogitPair));
}

void likeliest(const float* logits, LikeliestToken* out, double* log_sums, std::size_t count,
               std::size_t vocabulary, std::uint32_t k, void* workspace, StreamView stream) {
  KVTIER_CHECK(vocabulary > 0 && vocabulary <= kPart * 65535ULL && k <= kLikeliestTokensMax);
  if (count == 0) return;
  const std::uint32_t parts = divided_up(vocabulary, kPart);
  const auto rows = static_cast<std::uint32_t>(count);
  auto* const sums = static_cast<PartSum*>(workspace);
  auto* const firsts = reinterpret_cast<LogitPair*>(sums + std::size_t{rows} * parts);
  part_kernel<<<dim3(rows, parts), kThreads, 0, stream.get()>>>(
      logits, static_cast<std::uint32_t>(vocabulary), k, sums, firsts);
  row_kernel<<<rows, kThreads, 0, stream.get()>>>(sums, firsts, parts, k, out, log_sums);
  check_launch("likeliest");
}

void token_logprobs(const float* logits, const double* log_sums, const std::uint32_t* rows,
                    const std::uint32_t* tokens, float* out, std::size_t count,
                    std::size_t vocabulary, StreamView stream) {
  if (count == 0) return;
  token_kernel<<<divided_up(count, kThreads), kThreads, 0, stream.get()>>>(
      logits, log_sums, rows, tokens, out, static_cast<std::uint32_t>(count),
      static_cast<std::uint32_t>(vocabulary));
  check_launch("token_logprobs");
}

}  // namespace kvtier::kernels::cuda
