// The function table that the CPU's compute fills, one for each instruction set. It is the
// reference: kernels/cuda/kernels.h computes the same on a GPU.
//
// No function allocates what it returns, keeps a pointer after its work is done, or fails: shapes
// are checked by the caller and asserted here. A call has finished when it returns.
//
// Row independence: the result of a row (one token) is bit-identical however many rows are computed
// in one call. A hit equals a miss because of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"
#include "kvtier/dtype.h"
#include "kvtier/record_layout.h"

namespace kvtier::kernels {

// The best CPU implementation for this processor (AVX-512, AVX2 or portable). Thread safe; work is
// spread over at most set_cpu_threads() threads.
const KernelTable& cpu_kernels() noexcept;
// By name: "portable", "avx2", "avx512"; null where this processor cannot run it.
const KernelTable* cpu_kernels_named(const char* name) noexcept;
// 0: as many as there are processors. Call before the first kernel.
void set_cpu_threads(unsigned threads) noexcept;

// Pages of [kv_heads][tokens][head_dim], one pointer each.
PageSide head_major(void* const* pages, std::uint32_t tokens, std::uint32_t head_dim,
                    DType type) noexcept;

struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3, yarn } kind = Kind::none;
  float factor = 1;
  float low_freq_factor = 1;                    // llama3
  float high_freq_factor = 4;                   // llama3
  std::uint32_t original_max_positions = 8192;  // llama3, yarn
  float beta_fast = 32;                         // yarn
  float beta_slow = 1;                          // yarn
  bool truncate = true;                         // yarn
  // yarn: what rotated Q and K are multiplied with. Attention takes it, squared, into its scale.
  float attention_factor = 1;
};

// head_dim / 2 inverse frequencies theta^(-2i/head_dim), scaled as the Llama 3.1 model code does
// (wavelengths longer than original_max/low are divided by factor, shorter than original_max/high
// kept, smoothly interpolated between), or as YaRN does (arXiv:2309.00071: dimensions that turn
// fewer than beta_slow times within original_max are divided by factor, more than beta_fast times
// kept, a ramp between).
std::vector<float> rope_inverse_frequencies(std::uint32_t head_dim, double theta,
                                            const RopeScaling& scaling);

}  // namespace kvtier::kernels
