// Embedding, norms and activation against FP64 on the same inputs.
#include <numeric>
#include <random>

#include "tests/gpu/gpu_test.h"

namespace kvtier::kernels::cuda {
namespace {

class GpuElementwise : public GpuTest {};

std::vector<double> norm_of(const std::vector<double>& x, const float* weight, double epsilon) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
  std::vector<double> result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) result[i] = x[i] * inverse * weight[i];
  return result;
}

TEST_F(GpuElementwise, EmbedCopiesTheRowsOfTheTable) {
  constexpr std::size_t kVocabulary = 1000;
  for (const std::size_t dim : {8U, 64U, 896U, 4096U, 8200U}) {
    const auto table = random_bf16_floats(kVocabulary * dim, 1);
    const std::vector<std::uint32_t> ids{0, 999, 7, 7, 500};
    const DeviceArray<std::uint32_t> device_ids(ids);
    const DeviceArray<Bf16> device_table(to_bf16(table));
    Output<float> out(ids.size() * dim);
    run_as_graph(
        [&] { embed(device_ids.get(), device_table.get(), out.get(), ids.size(), dim, stream()); });
    const auto values = out.values();
    for (std::size_t row = 0; row < ids.size(); ++row) {
      ASSERT_EQ(std::memcmp(values.data() + row * dim, table.data() + ids[row] * dim, dim * 4), 0)
          << "row " << row << " of " << dim;
    }
  }
}

TEST_F(GpuElementwise, AddRmsNormIsTheSumAndItsNorm) {
  constexpr float kEpsilon = 1e-5F;
  for (const std::size_t dim : {8U, 64U, 264U, 896U, 4096U, 5120U, 8192U, 16384U}) {
    for (const bool with_delta : {true, false}) {
      const std::size_t rows = 5;
      const auto residual = random_floats(rows * dim, 2, 3);
      const auto delta = random_bf16_floats(rows * dim, 3);
      const auto weight = random_floats(dim, 4);
      Output<float> device_residual(rows * dim);
      check(cudaMemcpy(device_residual.get(), residual.data(), residual.size() * 4,
                       cudaMemcpyHostToDevice),
            "cudaMemcpy");
      const DeviceArray<Bf16> device_delta(to_bf16(delta));
      const DeviceArray<float> device_weight(weight);
      Output<Bf16> out(rows * dim);
      run_as_graph([&] {
        add_rms_norm(device_residual.get(), with_delta ? device_delta.get() : nullptr,
                     device_weight.get(), out.get(), rows, dim, kEpsilon, stream());
      });
      const auto kept = device_residual.values();
      const auto normed = to_floats(out.values());
      for (std::size_t row = 0; row < rows; ++row) {
        std::vector<double> x(dim);
        for (std::size_t i = 0; i < dim; ++i) {
          const std::size_t at = row * dim + i;
          const float sum = with_delta ? residual[at] + delta[at] : residual[at];
          ASSERT_EQ(kept[at], sum);
          x[i] = sum;
        }
        const auto expected = norm_of(x, weight.data(), kEpsilon);
        for (std::size_t i = 0; i < dim; ++i) {
          expect_bf16_near(normed[row * dim + i], expected[i], "norm", i);
        }
      }
    }
  }
}

TEST_F(GpuElementwise, GatherRmsNormChoosesRowsAndKeepsTheResidual) {
  const std::size_t dim = 896;
  const auto residual = random_floats(6 * dim, 5);
  const auto delta = random_bf16_floats(6 * dim, 6);
  const auto weight = random_floats(dim, 7);
  const std::vector<std::uint32_t> index{5, 0, 3};
  const DeviceArray<float> device_residual(residual);
  const DeviceArray<Bf16> device_delta(to_bf16(delta));
  const DeviceArray<float> device_weight(weight);
  const DeviceArray<std::uint32_t> device_index(index);
  for (const bool with_delta : {true, false}) {
    Output<Bf16> out(index.size() * dim);
    run_as_graph([&] {
      gather_rms_norm(device_residual.get(), with_delta ? device_delta.get() : nullptr,
                      device_index.get(), device_weight.get(), out.get(), index.size(), dim, 1e-6F,
                      stream());
    });
    EXPECT_TRUE(same_bytes(device_residual.download(), residual));
    const auto normed = to_floats(out.values());
    for (std::size_t row = 0; row < index.size(); ++row) {
      std::vector<double> x(dim);
      for (std::size_t i = 0; i < dim; ++i) {
        const std::size_t at = index[row] * dim + i;
        x[i] = with_delta ? residual[at] + delta[at] : residual[at];
      }
      const auto expected = norm_of(x, weight.data(), 1e-6);
      for (std::size_t i = 0; i < dim; ++i) {
        expect_bf16_near(normed[row * dim + i], expected[i], "norm", i);
      }
    }
  }
}

TEST_F(GpuElementwise, ARowsNormDoesNotDependOnTheOtherRows) {
  const std::size_t dim = 4096;
  const std::size_t rows = 300;
  const auto residual = random_floats(rows * dim, 8);
  const DeviceArray<float> device_residual(residual);
  const DeviceArray<float> device_weight(random_floats(dim, 9));
  Output<Bf16> together(rows * dim);
  Output<Bf16> alone(dim);
  add_rms_norm(device_residual.get(), nullptr, device_weight.get(), together.get(), rows, dim,
               1e-5F, stream());
  add_rms_norm(device_residual.get() + 299 * dim, nullptr, device_weight.get(), alone.get(), 1, dim,
               1e-5F, stream());
  check(cudaStreamSynchronize(stream().get()), "add_rms_norm");
  const auto all = together.values();
  EXPECT_TRUE(same_bytes(std::vector<Bf16>(all.end() - dim, all.end()), alone.values()));
}

TEST_F(GpuElementwise, SwigluIsTheGatedProduct) {
  for (const std::size_t inner : {8U, 72U, 4864U, 14336U}) {
    const std::size_t rows = 3;
    auto gate_up = random_bf16_floats(rows * 2 * inner, 10, 4);
    gate_up[0] = -200;  // exp overflows
    gate_up[1] = 200;
    gate_up[2] = -0.0F;
    const DeviceArray<Bf16> device_in(to_bf16(gate_up));
    Output<Bf16> out(rows * inner);
    run_as_graph([&] { swiglu(device_in.get(), out.get(), rows, inner, stream()); });
    const auto values = to_floats(out.values());
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < inner; ++i) {
        const double gate = gate_up[row * 2 * inner + i];
        const double up = gate_up[row * 2 * inner + inner + i];
        expect_bf16_near(values[row * inner + i], gate / (1 + std::exp(-gate)) * up, "swiglu", i);
      }
    }
  }
}

}  // namespace
}  // namespace kvtier::kernels::cuda
