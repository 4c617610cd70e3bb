// Matrix products through cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/kernels.h"

namespace kvtier::kernels::cuda {

// Whose algorithm a product takes.
enum class Tuning : std::uint8_t {
  rows,     // the best for its number of rows
  prompt,   // one for any number of rows: a row's result has the same bits among any others
  answers,  // another such, for few rows
};

// A product a head: of each, out[rows][n] = x[rows][k] * transpose(w[n][k]). Distances from a row
// to the next and from a head to the next are in elements, multiples of 8.
struct HeadProducts {
  std::size_t heads = 0, rows = 0, n = 0, k = 0;
  const Bf16* x = nullptr;
  std::size_t x_row = 0, x_head = 0;
  const Bf16* w = nullptr;  // rows of a head lie side by side
  std::size_t w_head = 0;
  Bf16* out = nullptr;
  std::size_t out_row = 0, out_head = 0;
};

// Owns a handle, a workspace and the algorithms found so far (one search a shape, at first use,
// which a CUDA graph cannot capture: run each shape once before). One stream at a time.
class Gemm {
 public:
  Gemm();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // out[rows][n] = x[rows][k] * transpose(w[n][k]) + bias[n], FP32 accumulation; bias may be null.
  void run(const Bf16* x, const Bf16* w, const Bf16* bias, Bf16* out, std::size_t rows,
           std::size_t n, std::size_t k, StreamView stream, Tuning tuning = Tuning::rows);
  // The same with an FP32 result, without bias.
  void run(const Bf16* x, const Bf16* w, float* out, std::size_t rows, std::size_t n, std::size_t k,
           StreamView stream, Tuning tuning = Tuning::rows);

  void run(const HeadProducts& products, StreamView stream, Tuning tuning);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtier::kernels::cuda
