// Latent attention against the CPU's, on the same values, and what is stored for it against FP64.
#include "kernels/cuda/latent/latent.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "kernels/table.h"
#include "tests/gpu/attention/device_array.h"
#include "tests/gpu/attention/seen_sequence.h"

namespace kvtier::kernels::cuda {
namespace {

struct LatentSize {
  std::uint32_t rank, rope, heads;
  std::uint32_t kept() const { return rank + rope; }
};

KvShape shape_of(const LatentSize& size, StorageFormat format) {
  KvShape shape;
  shape.kv_heads = 1;
  shape.head_dim_k = size.kept();
  shape.head_dim_v = 0;
  shape.format = format;
  return shape;
}

// Rows of several sequences, one a sequence; kNoSequence pads.
class LatentCase {
 public:
  LatentCase(const LatentSize& size, StorageFormat format,
             const std::vector<std::uint32_t>& positions)
      : size_(size), shape_(shape_of(size, format)) {
    for (std::size_t row = 0; row < positions.size(); ++row) {
      const bool pads = positions[row] == kNoSequence;
      positions_.push_back(pads ? 0 : positions[row]);
      row_page_.push_back(static_cast<std::uint32_t>(pages_.size()));
      row_sequence_.push_back(pads ? kNoSequence : static_cast<std::uint32_t>(sequences_.size()));
      if (!pads) add_sequence(positions[row], static_cast<unsigned>(row + 1));
    }
    q_ = random_bf16(rows() * std::size_t{size.heads} * size.kept(), 99);
  }

  std::size_t rows() const { return positions_.size(); }
  std::size_t row_values() const { return std::size_t{size_.heads} * size_.rank; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(size_.kept())); }

  // Rows [first, first + count) of a step that has them all.
  std::vector<Bf16> run(std::uint32_t first, std::uint32_t count, bool split,
                        std::uint32_t context_max) const {
    const DeviceArray<std::uint32_t> positions(positions_), row_sequence(row_sequence_),
        row_page(row_page_);
    const DeviceArray<ExactPage> pages(pages_);
    const DeviceArray<std::byte* const*> tables(tables_);
    std::vector<Bf16> q_values;
    for (const float value : q_) q_values.push_back(to_bf16(value));
    const DeviceArray<Bf16> q(q_values);
    DeviceArray<Bf16> out(rows() * row_values());
    DeviceArray<std::byte> workspace(
        latent_workspace_bytes(count, size_.heads, size_.rank, context_max));
    LatentAttentionArgs args;
    args.layout = shape_.layout();
    args.step = {static_cast<std::uint32_t>(rows()),
                 positions.get(),
                 row_sequence.get(),
                 row_page.get(),
                 pages.get(),
                 tables.get()};
    args.first_row = first;
    args.rows = count;
    args.layer = KvSequence::kLayer;
    args.heads = size_.heads;
    args.value_channels = size_.rank;
    args.context_max = context_max;
    args.split = split;
    args.scale = scale();
    args.q = q.get();
    args.out = out.get();
    args.workspace = workspace.get();
    latent_attention(args, StreamView());
    check(cudaStreamSynchronize(nullptr), "latent_attention");
    return out.values();
  }
  std::vector<Bf16> run_all(bool split) const {
    const auto longest = *std::max_element(positions_.begin(), positions_.end());
    return run(0, static_cast<std::uint32_t>(rows()), split, longest + 1);
  }

  void expect_as_the_cpu_has_it(const std::vector<Bf16>& out) const {
    std::vector<SequenceKv> views;
    for (const SequenceKv& view : views_) views.push_back(view);
    const RecordLayout layout = shape_.layout();
    for (std::size_t row = 0; row < rows(); ++row) {
      const Bf16* const got = out.data() + row * row_values();
      if (row_sequence_[row] == kNoSequence) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, got, sizeof bits);
        ASSERT_EQ(bits, 0xFFFF) << "padding row " << row << " was written";
        continue;
      }
      std::vector<float> expected(row_values());
      cpu_kernels().attention({.layout = &layout,
                               .layer = KvSequence::kLayer,
                               .rows = 1,
                               .heads = size_.heads,
                               .value_channels = size_.rank,
                               .scale = scale(),
                               .q = q_.data() + row * size_.heads * size_.kept(),
                               .out = expected.data(),
                               .positions = positions_.data() + row,
                               .row_sequence = row_sequence_.data() + row,
                               .sequences = views.data()});
      for (std::size_t head = 0; head < size_.heads; ++head) {
        double squares = 0, difference = 0;
        for (std::size_t i = head * size_.rank; i < (head + 1) * size_.rank; ++i) {
          squares += double{expected[i]} * expected[i];
          difference += std::pow(double{to_float(got[i])} - expected[i], 2);
        }
        // Stored numbers, weights and the result are rounded to BF16.
        ASSERT_LT(std::sqrt(difference / squares), 1e-2)
            << "position " << positions_[row] << " head " << head;
      }
    }
  }

 private:
  void add_sequence(std::uint32_t position, unsigned seed) {
    sequences_.push_back(std::make_unique<KvSequence>(shape_, position + 1, seed));
    KvSequence& sequence = *sequences_.back();
    const std::size_t own = position / kTileTokens;
    for (float& value : sequence.exact_page(false, own)) value = to_float(to_bf16(value));
    views_.push_back(sequence.view({position}));
    const std::size_t record_bytes = shape_.layout().record_bytes;
    std::vector<std::byte> records;
    for (std::size_t block = 0; block < own; ++block) {
      const std::byte* const record = views_.back().records[block];
      records.insert(records.end(), record, record + record_bytes);
    }
    records_.emplace_back(records);
    std::vector<std::byte*> table;
    for (std::size_t block = 0; block < own; ++block) {
      table.push_back(records_.back().get() + block * record_bytes);
    }
    table_arrays_.emplace_back(table);
    tables_.push_back(table_arrays_.back().get());
    // What lies behind the row may be anything.
    std::vector<Bf16> page;
    const auto& values = sequence.exact_page(false, own);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool known = i / size_.kept() <= position % kTileTokens;
      page.push_back(to_bf16(known ? values[i] : std::numeric_limits<float>::quiet_NaN()));
    }
    page_values_.emplace_back(page);
    pages_.push_back({page_values_.back().get(), 0});
  }

  LatentSize size_;
  KvShape shape_;
  std::vector<float> q_;
  std::vector<std::uint32_t> positions_, row_sequence_, row_page_;
  std::vector<std::unique_ptr<KvSequence>> sequences_;
  std::vector<SequenceKv> views_;
  std::vector<DeviceArray<std::byte>> records_;
  std::vector<DeviceArray<std::byte*>> table_arrays_;
  std::vector<std::byte* const*> tables_;
  std::vector<DeviceArray<Bf16>> page_values_;
  std::vector<ExactPage> pages_;
};

const std::vector<std::uint32_t> kRagged = {0,  14, kNoSequence, 15,   16,  31,
                                            33, 99, 1023,        1024, 2100};

class LatentAttention : public GpuAttention {};

TEST_F(LatentAttention, IsTheCpusForEveryFormatAndNumberOfHeads) {
  for (const StorageFormat format :
       {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2, StorageFormat::bf16}) {
    for (const std::uint32_t heads : {1U, 4U, 16U, 17U, 40U, 128U}) {
      const LatentCase c({64, 16, heads}, format, kRagged);
      for (const bool split : {true, false}) {
        SCOPED_TRACE(testing::Message()
                     << name(format) << " heads " << heads << " split " << split);
        c.expect_as_the_cpu_has_it(c.run_all(split));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LatentAttention, IsTheCpusForEveryShapeOfLatents) {
  for (const auto& [rank, rope] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {16, 8}, {32, 8}, {48, 16}, {256, 32}, {512, 64}}) {
    for (const StorageFormat format : {StorageFormat::fp8_e4m3, StorageFormat::bf16}) {
      const LatentCase c({rank, rope, 48}, format, {5, 200, 1100});
      for (const bool split : {true, false}) {
        SCOPED_TRACE(testing::Message() << rank << " and " << rope << " split " << split);
        c.expect_as_the_cpu_has_it(c.run_all(split));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LatentAttention, ARowHasTheSameBitsAmongOthersAndForAnyContextMax) {
  const LatentCase c({512, 64, 20}, StorageFormat::fp8_e4m3, kRagged);
  for (const bool split : {true, false}) {
    const auto together = c.run_all(split);
    for (std::uint32_t row = 0; row < c.rows(); ++row) {
      const auto alone = c.run(row, 1, split, 5000);
      ASSERT_EQ(std::memcmp(alone.data() + row * c.row_values(),
                            together.data() + row * c.row_values(), c.row_values() * sizeof(Bf16)),
                0)
          << "row " << row;
    }
  }
}

// The latent's norm, and both ways to pair what is rotated.
TEST_F(LatentAttention, IsGivenNormalisedLatentsAndRotatedKeysAndQueries) {
  constexpr std::uint32_t kRank = 48, kRope = 16, kNope = 24, kHeads = 3, kKept = kRank + kRope;
  constexpr float kEpsilon = 1e-6F, kFactor = 1.25F;
  const std::vector<std::uint32_t> positions{0, 15, 4097}, sequences{0, 0, 1}, pages{1, 1, 0};
  const auto rows = static_cast<std::uint32_t>(positions.size());
  const auto kv = random_bf16(rows * kKept, 1, 2);
  const auto projected = random_bf16(rows * kHeads * (kNope + kRope), 2);
  const auto norm = random_bf16(kRank, 3);
  const auto frequencies = rope_inverse_frequencies(kRope, 10'000, {});
  const auto to_device = [](const std::vector<float>& values) {
    std::vector<Bf16> made;
    for (const float value : values) made.push_back(to_bf16(value));
    return DeviceArray<Bf16>(made);
  };
  const auto device_kv = to_device(kv), device_projected = to_device(projected);
  const DeviceArray<float> device_norm(norm), device_frequencies(frequencies);
  const DeviceArray<std::uint32_t> device_positions(positions), device_sequences(sequences),
      device_pages(pages);
  for (const bool interleaved : {true, false}) {
    DeviceArray<Bf16> values(2 * 2 * kTileTokens * kKept), q(rows * kHeads * kKept);
    const std::size_t page = 2 * kTileTokens * kKept;  // of two layers
    const DeviceArray<ExactPage> table(
        {ExactPage{values.get(), page / 2}, ExactPage{values.get() + page, page / 2}});
    store_latent({.step = {.rows = rows,
                           .positions = device_positions.get(),
                           .row_sequence = device_sequences.get(),
                           .row_page = device_pages.get(),
                           .pages = table.get(),
                           .block_tables = nullptr},
                  .layer = 1,
                  .heads = kHeads,
                  .kv_rank = kRank,
                  .rope_dim = kRope,
                  .nope_dim = kNope,
                  .interleaved = interleaved,
                  .kv = device_kv.get(),
                  .kv_norm = device_norm.get(),
                  .epsilon = kEpsilon,
                  .projected = device_projected.get(),
                  .q = q.get(),
                  .q_factor = kFactor,
                  .inverse_frequencies = device_frequencies.get()},
                 StreamView());
    check(cudaStreamSynchronize(nullptr), "store_latent");
    const auto got_k = values.values();
    const auto got_q = q.values();
    const auto expect_rotated = [&](const float* from, const Bf16* got, std::uint32_t position,
                                    float factor) {
      for (std::uint32_t i = 0; i < kRope / 2; ++i) {
        const double angle = static_cast<float>(position) * frequencies[i];
        const double a = from[interleaved ? 2 * i : i];
        const double b = from[interleaved ? 2 * i + 1 : i + kRope / 2];
        const double bound = (std::abs(a) + std::abs(b)) * factor / 200;
        ASSERT_NEAR(to_float(got[i]), factor * (a * std::cos(angle) - b * std::sin(angle)), bound);
        ASSERT_NEAR(to_float(got[kRope / 2 + i]),
                    factor * (b * std::cos(angle) + a * std::sin(angle)), bound);
      }
    };
    for (std::uint32_t row = 0; row < rows; ++row) {
      const float* const of_row = kv.data() + row * kKept;
      const Bf16* const k =
          got_k.data() + pages[row] * page + page / 2 + positions[row] % kTileTokens * kKept;
      const double squares = std::inner_product(of_row, of_row + kRank, of_row, 0.0);
      const double inverse = 1 / std::sqrt(squares / kRank + double{kEpsilon});
      for (std::uint32_t i = 0; i < kRank; ++i) {
        const double expected = of_row[i] * inverse * norm[i];
        ASSERT_NEAR(to_float(k[i]), expected, std::abs(expected) / 200 + 1e-6) << row << " " << i;
      }
      expect_rotated(of_row + kRank, k + kRank, positions[row], 1);
      for (std::uint32_t head = 0; head < kHeads; ++head) {
        const std::size_t at = row * kHeads + head;
        expect_rotated(projected.data() + at * (kNope + kRope) + kNope,
                       got_q.data() + at * kKept + kRank, positions[row], kFactor);
      }
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kvtier::kernels::cuda
