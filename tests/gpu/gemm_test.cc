// Matrix products against FP64 on the same BF16 inputs.
#include "kernels/cuda/gemm.h"

#include "tests/gpu/gpu_test.h"

namespace kvtier::kernels::cuda {
namespace {

class GpuGemm : public GpuTest {};

struct Product {
  Product(std::size_t rows_, std::size_t n_, std::size_t k_)
      : rows(rows_),
        n(n_),
        k(k_),
        x(random_bf16_floats(rows * k, 31)),
        w(random_bf16_floats(n * k, 32)),
        bias(random_bf16_floats(n, 33, 8)),
        device_x(to_bf16(x)),
        device_w(to_bf16(w)),
        device_bias(to_bf16(bias)) {}

  // The value, and the sum of the magnitudes it is made of, which bounds the rounding of FP32.
  std::pair<double, double> expected(std::size_t row, std::size_t column, bool with_bias) const {
    double sum = with_bias ? bias[column] : 0;
    double magnitude = std::abs(sum);
    for (std::size_t i = 0; i < k; ++i) {
      const double product = double{x[row * k + i]} * w[column * k + i];
      sum += product;
      magnitude += std::abs(product);
    }
    return {sum, magnitude};
  }

  std::size_t rows, n, k;
  std::vector<float> x, w, bias;
  DeviceArray<Bf16> device_x, device_w, device_bias;
};

constexpr double kFp32Rounding = 1e-6;  // of the magnitudes

TEST_F(GpuGemm, ProductsOfEveryKindOfShape) {
  Gemm gemm;
  for (const auto& [rows, n, k] : {std::tuple<std::size_t, std::size_t, std::size_t>{1, 64, 64},
                                   {1, 4096, 896},
                                   {3, 128, 264},
                                   {16, 1152, 896},
                                   {17, 96, 512},
                                   {100, 64, 4096},
                                   {257, 136, 72}}) {
    const Product product(rows, n, k);
    for (const bool with_bias : {false, true}) {
      Output<Bf16> out(rows * n);
      gemm.run(product.device_x.get(), product.device_w.get(),
               with_bias ? product.device_bias.get() : nullptr, out.get(), rows, n, k, stream());
      check(cudaStreamSynchronize(stream().get()), "gemm");
      const auto values = to_floats(out.values());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto [sum, magnitude] = product.expected(i / n, i % n, with_bias);
        ASSERT_NEAR(values[i], sum, std::abs(sum) / 256 + magnitude * kFp32Rounding)
            << "element " << i << " of " << rows << " x " << n << " x " << k;
      }
    }
    Output<float> out(rows * n);
    gemm.run(product.device_x.get(), product.device_w.get(), out.get(), rows, n, k, stream());
    check(cudaStreamSynchronize(stream().get()), "gemm");
    const auto values = out.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto [sum, magnitude] = product.expected(i / n, i % n, false);
      ASSERT_NEAR(values[i], sum, magnitude * kFp32Rounding)
          << "element " << i << " of " << rows << " x " << n << " x " << k;
    }
  }
}

// Heads of a row side by side, as latent attention has them.
TEST_F(GpuGemm, AProductAHead) {
  Gemm gemm;
  for (const auto& [heads, rows, n, k] :
       {std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>{1, 3, 32, 16},
        {4, 1, 48, 24},
        {5, 70, 64, 32},
        {16, 33, 512, 128}}) {
    const std::size_t pad = 8;  // what a head has beside
    const std::size_t x_head = k + pad, out_head = n + pad;
    const auto x = random_bf16_floats(rows * heads * x_head, 41);
    const auto w = random_bf16_floats(heads * n * k, 42);
    const DeviceArray<Bf16> device_x(to_bf16(x)), device_w(to_bf16(w));
    for (const Tuning tuning : {Tuning::rows, Tuning::prompt, Tuning::answers}) {
      Output<Bf16> out(rows * heads * out_head);
      gemm.run({.heads = heads,
                .rows = rows,
                .n = n,
                .k = k,
                .x = device_x.get(),
                .x_row = heads * x_head,
                .x_head = x_head,
                .w = device_w.get(),
                .w_head = n * k,
                .out = out.get(),
                .out_row = heads * out_head,
                .out_head = out_head},
               stream(), tuning);
      check(cudaStreamSynchronize(stream().get()), "gemm");
      const auto values = to_floats(out.values());
      for (std::size_t i = 0; i < rows * heads * n; ++i) {
        const std::size_t row = i / n / heads, head = i / n % heads, column = i % n;
        double sum = 0, magnitude = 0;
        for (std::size_t j = 0; j < k; ++j) {
          const double product =
              double{x[(row * heads + head) * x_head + j]} * w[(head * n + column) * k + j];
          sum += product;
          magnitude += std::abs(product);
        }
        const std::size_t at = (row * heads + head) * out_head + column;
        ASSERT_NEAR(values[at], sum, std::abs(sum) / 256 + magnitude * kFp32Rounding)
            << "row " << row << " head " << head << " of " << heads;
      }
    }
  }
}

TEST_F(GpuGemm, AShapeThatHasRunCanBeCaptured) {
  Gemm gemm;
  const Product product(16, 256, 512);
  Output<Bf16> first(16 * 256), captured(16 * 256);
  const auto run = [&](Bf16* out) {
    gemm.run(product.device_x.get(), product.device_w.get(), product.device_bias.get(), out, 16,
             256, 512, stream());
  };
  run(first.get());
  check(cudaStreamSynchronize(stream().get()), "gemm");
  run_as_graph([&] { run(captured.get()); });
  EXPECT_TRUE(same_bytes(first.values(), captured.values()));
}

TEST_F(GpuGemm, TwoOwnersChooseTheSameAlgorithm) {
  const Product product(48, 1024, 2048);
  std::vector<std::vector<Bf16>> results;
  for (int i = 0; i < 2; ++i) {
    Gemm gemm;
    Output<Bf16> out(48 * 1024);
    gemm.run(product.device_x.get(), product.device_w.get(), nullptr, out.get(), 48, 1024, 2048,
             stream());
    check(cudaStreamSynchronize(stream().get()), "gemm");
    results.push_back(out.values());
  }
  EXPECT_TRUE(same_bytes(results[0], results[1]));
}

TEST_F(GpuGemm, ARowHasTheSameBitsAmongAnyOthersWithATuningForAnyNumberOfRows) {
  constexpr std::size_t kRows = 300, kN = 1024, kK = 2048;
  const Product product(kRows, kN, kK);
  for (const Tuning tuning : {Tuning::prompt, Tuning::answers}) {
    Gemm gemm;
    Output<Bf16> whole(kRows * kN);
    Output<float> whole_wide(kRows * kN);
    gemm.run(product.device_x.get(), product.device_w.get(), nullptr, whole.get(), kRows, kN, kK,
             stream(), tuning);
    gemm.run(product.device_x.get(), product.device_w.get(), whole_wide.get(), kRows, kN, kK,
             stream(), tuning);
    check(cudaStreamSynchronize(stream().get()), "gemm");
    const auto all = whole.values();
    const auto all_wide = whole_wide.values();
    for (const std::size_t rows : {1U, 2U, 3U, 16U, 17U, 64U, 65U, 128U, 299U}) {
      const std::size_t first = kRows - rows;
      Output<Bf16> part(rows * kN);
      Output<float> part_wide(rows * kN);
      const Bf16* const x = product.device_x.get() + first * kK;
      gemm.run(x, product.device_w.get(), nullptr, part.get(), rows, kN, kK, stream(), tuning);
      gemm.run(x, product.device_w.get(), part_wide.get(), rows, kN, kK, stream(), tuning);
      check(cudaStreamSynchronize(stream().get()), "gemm");
      const auto at = static_cast<std::ptrdiff_t>(first * kN);
      EXPECT_TRUE(same_bytes(part.values(), std::vector<Bf16>(all.begin() + at, all.end())))
          << rows << " rows";
      EXPECT_TRUE(
          same_bytes(part_wide.values(), std::vector<float>(all_wide.begin() + at, all_wide.end())))
          << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace kvtier::kernels::cuda
