#include "engine_adapter/reference/model/cuda/cuda_products.h"

namespace kvtier::engine::cuda {

using kernels::cuda::HeadProducts;
using kernels::cuda::Tuning;

// f(first row, rows, tuning) for rows that take the same algorithm.
template <class F>
void CudaProducts::each_part(const CudaPlan& plan, const F& f) {
  const std::size_t rows = plan.step.rows;
  if (!batch_invariant_) {
    f(std::size_t{0}, rows, plan.prompt ? Tuning::prompt : Tuning::rows);
    return;
  }
  const std::size_t answers = plan.answer_rows;
  f(std::size_t{0}, answers, Tuning::answers);
  f(answers, rows - answers, Tuning::prompt);
}

void CudaProducts::run(const CudaPlan& plan, const CudaLinear& linear, const Bf16* in, Bf16* out,
                       std::size_t n, std::size_t k, StreamView stream) {
  const Bf16* const bias = linear.bias.size() != 0 ? linear.bias.get() : nullptr;
  each_part(plan, [&](std::size_t first, std::size_t rows, Tuning tuning) {
    gemm_.run(in + first * k, linear.weight.get(), bias, out + first * n, rows, n, k, stream,
              tuning);
  });
}

void CudaProducts::run_heads(const CudaPlan& plan, const HeadProducts& products,
                             StreamView stream) {
  each_part(plan, [&](std::size_t first, std::size_t rows, Tuning tuning) {
    HeadProducts part = products;
    part.rows = rows;
    part.x += first * part.x_row;
    part.out += first * part.out_row;
    gemm_.run(part, stream, tuning);
  });
}

void CudaProducts::run_logits(const CudaPlan& plan, const Bf16* head, const Bf16* in, float* logits,
                              std::size_t n, std::size_t k, StreamView stream) {
  gemm_.run(in, head, logits, plan.logit_rows, n, k, stream,
            batch_invariant_ ? Tuning::answers : Tuning::rows);
}

}  // namespace kvtier::engine::cuda
