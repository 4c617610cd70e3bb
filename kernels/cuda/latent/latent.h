// Latent attention on a GPU (adr/0063, adr/0069): what lies between its matrix products. Rules are
// those of kernels/cuda/kernels.h. A token's K is one head of kv_rank + rope_dim channels: the
// normalised latent, then the rotated key. There is no V: values are the first kv_rank channels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace kvtier::kernels::cuda {

// out[r][i] = in[r][i] * weight[i] / sqrt(mean_i(in[r][i]^2) + epsilon).
void rms_norm_rows(const Bf16* in, const float* weight, Bf16* out, std::size_t rows,
                   std::size_t dim, float epsilon, StreamView stream);

// Of kv_b[heads][nope_dim + v_dim][kv_rank] the rows that make keys, transposed:
// keys[heads][kv_rank][nope_dim].
void transpose_keys(const Bf16* kv_b, Bf16* keys, std::uint32_t heads, std::uint32_t nope_dim,
                    std::uint32_t v_dim, std::uint32_t kv_rank, StreamView stream);

// From the projections of a layer to what attention reads: the latent's norm and the key's
// rotation, both into each row's exact page, [16][kv_rank + rope_dim] a layer; the rotation of the
// queries' rotary parts, which leaves the first kv_rank channels of `q` alone. Interleaved pairs
// (2i, 2i + 1) go to (i, i + rope_dim / 2).
struct StoreLatentArgs {
  StepRows step;
  std::uint32_t layer = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_rank = 0, rope_dim = 0;  // multiples of 8
  std::uint32_t nope_dim = 0;
  bool interleaved = true;
  const Bf16* kv = nullptr;                    // [rows][kv_rank + rope_dim]
  const float* kv_norm = nullptr;              // [kv_rank]
  float epsilon = 0;                           // of that norm
  const Bf16* projected = nullptr;             // [rows][heads][nope_dim + rope_dim]
  Bf16* q = nullptr;                           // [rows][heads][kv_rank + rope_dim]
  float q_factor = 1;                          // of rotated queries
  const float* inverse_frequencies = nullptr;  // [rope_dim / 2]
};
void store_latent(const StoreLatentArgs& args, StreamView stream);

// Rows of any sequences, each by itself: blocks before the row's own are read from their records
// through block_tables, the row's own block from its exact page. With `split` a row's context is
// cut into parts of a fixed length, for few rows with long contexts; without it a row's sums are
// made in one go. The two round differently.
struct LatentAttentionArgs {
  RecordLayout layout;  // one KV head, no V; head_dim_k a multiple of 8; fp8_e4m3, fp8_e5m2 or bf16
  StepRows step;        // of which the rows from first_row on attend
  std::uint32_t first_row = 0, rows = 0;
  std::uint32_t layer = 0;
  std::uint32_t heads = 0;
  std::uint32_t value_channels = 0;  // a multiple of 16, at most kLatentValuesMax
  std::uint32_t context_max = 0;     // host: no position of the rows is at or beyond it
  bool split = false;
  float scale = 0;
  const Bf16* q = nullptr;    // [rows of the step][heads][head_dim_k]
  Bf16* out = nullptr;        // [rows of the step][heads][value_channels]
  void* workspace = nullptr;  // latent_workspace_bytes(...), where it is split
};
inline constexpr std::uint32_t kLatentValuesMax = 512;
std::size_t latent_workspace_bytes(std::uint32_t rows, std::uint32_t heads,
                                   std::uint32_t value_channels, std::uint32_t context_max);
void latent_attention(const LatentAttentionArgs& args, StreamView stream);

}  // namespace kvtier::kernels::cuda
