// store_kv against FP64: norm, rotation, and the place in the exact pages.
#include <algorithm>
#include <random>

#include "tests/gpu/gpu_test.h"

namespace kvtier::kernels::cuda {
namespace {

struct Shape {
  std::uint32_t heads, kv_heads, head_dim;
  bool norm = false;
  std::uint64_t layers_in_page = 2;
  std::uint32_t sink_position = 0;  // not 0: sinks are met from there at most
};

constexpr std::uint32_t kLayer = 1;
constexpr float kEpsilon = 1e-6F;

// Rows of two sequences with a padding row between them; each row's page.
struct Rows {
  std::vector<std::uint32_t> positions{0, 15, 16, 0, 131'071, 4097, 17};
  std::vector<std::uint32_t> sequences{0, 0, 0, kNoSequence, 1, 1, 0};
  std::vector<std::uint32_t> pages{2, 2, 0, 0, 3, 1, 0};
  std::uint32_t count() const { return static_cast<std::uint32_t>(positions.size()); }
};

// One head of `head_dim` values after norm (weight not null) and rotation.
std::vector<double> rotated(const float* x, const float* weight, std::uint32_t head_dim,
                            std::uint32_t position, const std::vector<float>& frequencies,
                            bool rotate) {
  std::vector<double> values(x, x + head_dim);
  if (weight != nullptr) {
    double squares = 0;
    for (const double value : values) squares += value * value;
    const double inverse = 1 / std::sqrt(squares / head_dim + double{kEpsilon});
    for (std::uint32_t i = 0; i < head_dim; ++i) values[i] *= inverse * weight[i];
  }
  if (!rotate) return values;
  const std::uint32_t half = head_dim / 2;
  for (std::uint32_t i = 0; i < half; ++i) {
    // The angle in FP32, as everywhere.
    const double angle = static_cast<float>(position) * frequencies[i];
    const double a = values[i];
    const double b = values[i + half];
    values[i] = a * std::cos(angle) - b * std::sin(angle);
    values[i + half] = b * std::cos(angle) + a * std::sin(angle);
  }
  return values;
}

class GpuStoreKv : public GpuTest {
 protected:
  void check_shape(const Shape& shape) {
    const Rows rows;
    const std::uint32_t heads_all = shape.heads + 2 * shape.kv_heads;
    const std::size_t row_elements = std::size_t{heads_all} * shape.head_dim;
    const auto qkv = random_bf16_floats(rows.count() * row_elements, shape.head_dim, 2);
    const auto q_norm = random_floats(shape.head_dim, 11);
    const auto k_norm = random_floats(shape.head_dim, 12);
    const auto frequencies = rope_inverse_frequencies(shape.head_dim, 500'000, {});
    const std::uint64_t layer_elements =
        std::uint64_t{2} * shape.kv_heads * kTileTokens * shape.head_dim;
    const std::uint64_t page_elements = shape.layers_in_page * layer_elements;

    const DeviceArray<Bf16> device_qkv(to_bf16(qkv));
    const DeviceArray<float> device_q_norm(q_norm), device_k_norm(k_norm);
    const DeviceArray<float> device_frequencies(frequencies);
    const DeviceArray<std::uint32_t> positions(rows.positions), sequences(rows.sequences);
    const DeviceArray<std::uint32_t> row_page(rows.pages);
    Output<Bf16> q(rows.count() * std::size_t{shape.heads} * shape.head_dim);
    Output<Bf16> sink_q(rows.count() * std::size_t{shape.heads} * shape.head_dim);
    Output<Bf16> pages(4 * page_elements);
    std::vector<ExactPage> table;
    for (int i = 0; i < 4; ++i) {
      table.push_back(
          {pages.get() + i * page_elements, shape.layers_in_page == 1 ? 0 : layer_elements});
    }
    const DeviceArray<ExactPage> device_pages(table);
    const StoreKvArgs args{.step = {.rows = rows.count(),
                                    .positions = positions.get(),
                                    .row_sequence = sequences.get(),
                                    .row_page = row_page.get(),
                                    .pages = device_pages.get(),
                                    .block_tables = nullptr},
                           .layer = kLayer,
                           .heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .head_dim = shape.head_dim,
                           .qkv = device_qkv.get(),
                           .q = q.get(),
                           .q_norm = shape.norm ? device_q_norm.get() : nullptr,
                           .k_norm = shape.norm ? device_k_norm.get() : nullptr,
                           .epsilon = kEpsilon,
                           .inverse_frequencies = device_frequencies.get(),
                           .sink_q = shape.sink_position != 0 ? sink_q.get() : nullptr,
                           .sink_position = shape.sink_position};
    run_as_graph([&] { store_kv(args, stream()); });

    const auto got_q = to_floats(q.values());
    const auto got_sink_q = to_floats(sink_q.values());
    const auto got_pages = to_floats(pages.values());
    // The test marks what it has compared; the rest must still be poison.
    std::vector<bool> q_written(got_q.size()), page_written(got_pages.size());
    const std::uint64_t in_page = shape.layers_in_page == 1 ? 0 : kLayer * layer_elements;
    for (std::uint32_t row = 0; row < rows.count(); ++row) {
      if (rows.sequences[row] == kNoSequence) continue;
      for (std::uint32_t head = 0; head < heads_all; ++head) {
        const bool is_q = head < shape.heads;
        const bool is_v = head >= shape.heads + shape.kv_heads;
        const float* weight = !shape.norm || is_v ? nullptr : is_q ? q_norm.data() : k_norm.data();
        const auto expected =
            rotated(qkv.data() + row * row_elements + head * shape.head_dim, weight, shape.head_dim,
                    rows.positions[row], frequencies, !is_v);
        const std::size_t at =
            is_q ? (std::size_t{row} * shape.heads + head) * shape.head_dim
                 : rows.pages[row] * page_elements + in_page +
                       ((head - shape.heads) * kTileTokens + rows.positions[row] % kTileTokens) *
                           shape.head_dim;
        double magnitude = 0;  // of the pair that was rotated
        for (const double value : expected) magnitude = std::max(magnitude, std::abs(value));
        for (std::uint32_t i = 0; i < shape.head_dim; ++i) {
          const double got = is_q ? got_q[at + i] : got_pages[at + i];
          ASSERT_NEAR(got, expected[i], std::abs(expected[i]) / 256 + magnitude * 1e-5)
              << "row " << row << " head " << head << " element " << i << " of " << shape.head_dim;
          (is_q ? q_written : page_written)[at + i] = true;
        }
        if (!is_q || shape.sink_position == 0) continue;
        const auto met =
            rotated(qkv.data() + row * row_elements + head * shape.head_dim, weight, shape.head_dim,
                    std::min(rows.positions[row], shape.sink_position), frequencies, true);
        for (std::uint32_t i = 0; i < shape.head_dim; ++i) {
          ASSERT_NEAR(got_sink_q[at + i], met[i], std::abs(met[i]) / 256 + magnitude * 1e-5)
              << "row " << row << " head " << head << " element " << i << ", at the sinks";
        }
      }
    }
    for (std::size_t i = 0; i < got_q.size(); ++i) {
      ASSERT_TRUE(q_written[i] || std::isnan(got_q[i])) << "q written at " << i;
      ASSERT_TRUE((q_written[i] && shape.sink_position != 0) || std::isnan(got_sink_q[i]))
          << "sink_q written at " << i;
    }
    for (std::size_t i = 0; i < got_pages.size(); ++i) {
      ASSERT_TRUE(page_written[i] || std::isnan(got_pages[i])) << "page written at " << i;
    }
  }
};

TEST_F(GpuStoreKv, EveryHeadSizeAndRatioOfHeads) {
  for (const std::uint32_t head_dim : {16U, 64U, 96U, 128U, 256U}) {
    for (const auto& [heads, kv_heads] :
         {std::pair{1U, 1U}, {2U, 1U}, {14U, 2U}, {32U, 8U}, {16U, 1U}, {12U, 3U}}) {
      check_shape({.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim});
    }
  }
}

TEST_F(GpuStoreKv, NormsOfQAndK) {
  for (const std::uint32_t head_dim : {16U, 64U, 96U, 128U, 256U}) {
    check_shape({.heads = 6, .kv_heads = 2, .head_dim = head_dim, .norm = true});
  }
}

TEST_F(GpuStoreKv, SinksAreMetFromTheWindowsEnd) {
  for (const bool norm : {false, true}) {
    for (const std::uint32_t head_dim : {64U, 96U, 256U}) {
      check_shape(
          {.heads = 6, .kv_heads = 2, .head_dim = head_dim, .norm = norm, .sink_position = 2047});
    }
  }
}

TEST_F(GpuStoreKv, PagesOfOneLayerAtATime) {
  check_shape({.heads = 4, .kv_heads = 2, .head_dim = 64, .norm = true, .layers_in_page = 1});
}

}  // namespace
}  // namespace kvtier::kernels::cuda
