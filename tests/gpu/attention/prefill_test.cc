#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/table.h"
#include "tests/gpu/attention/device_array.h"
#include "tests/gpu/attention/seen_sequence.h"

namespace kvtier::kernels::cuda {
namespace {

// Rows of one sequence for prefill_attention.
class PrefillCase {
 public:
  PrefillCase(bool portable, KvShape shape, std::uint32_t group, std::size_t tokens,
              float q_deviation = 1, SeenTokens seen = {})
      : portable_(portable),
        shape_(shape),
        heads_(group * shape.kv_heads),
        seen_(seen),
        sequence_(shape, tokens, 5) {
    sequence_.round_stored();
    q_ = random_bf16(tokens * row_values(), 77, q_deviation);
    sink_q_ = random_bf16(q_.size(), 78, q_deviation);
    const std::size_t same = std::min<std::size_t>(tokens, seen.sinks + seen.window);
    std::copy_n(q_.begin(), same * row_values(), sink_q_.begin());
  }

  std::size_t row_values() const { return std::size_t{heads_} * shape_.head_dim_k; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim_k)); }

  std::vector<Bf16> run(std::uint32_t start, std::uint32_t rows) {
    Sight sight{seen_.window, seen_.sinks};
    const StoredSpan span = StoredSpan::of(sight, start, rows);
    const std::size_t stride = std::size_t{span.blocks()} * kTileTokens + 48;
    const DeviceArray<Bf16> stored_k(stored(sequence_.stored_k, span, stride));
    const DeviceArray<Bf16> stored_v(stored(sequence_.stored_v, span, stride));
    std::vector<DeviceArray<Bf16>> page_values;
    std::vector<ExactPage> page_list(1);  // the first is no row's
    std::vector<std::uint32_t> pages_of_rows;
    for (std::uint32_t position = start; position < start + rows; ++position) {
      const std::size_t block = position / kTileTokens;
      if (position == start || position % kTileTokens == 0) {
        const std::size_t known = std::min<std::size_t>(start + rows - block * kTileTokens, 16);
        page_values.emplace_back(sequence_.page(block, known));
        page_list.push_back({page_values.back().get(), 0});
      }
      pages_of_rows.push_back(static_cast<std::uint32_t>(page_list.size() - 1));
    }
    const DeviceArray<ExactPage> pages(page_list);
    const DeviceArray<std::uint32_t> row_page(pages_of_rows);
    std::vector<Bf16> q_values, sink_values;
    for (std::size_t i = 0; i < rows * row_values(); ++i) {
      q_values.push_back(to_bf16(q_[start * row_values() + i]));
      sink_values.push_back(to_bf16(sink_q_[start * row_values() + i]));
    }
    const DeviceArray<Bf16> q(q_values), sink_q(sink_values);
    if (seen_.sinks != 0) sight.sink_q = sink_q.get();
    DeviceArray<Bf16> out(q_values.size());

    PrefillAttentionArgs args;
    args.layer = 1;
    args.heads = heads_;
    args.kv_heads = shape_.kv_heads;
    args.head_dim = shape_.head_dim_k;
    args.start = start;
    args.rows = rows;
    args.scale = scale();
    args.q = q.get();
    args.out = out.get();
    args.stored_k = stored_k.get();
    args.stored_v = stored_v.get();
    args.tokens_stride = stride;
    args.pages = pages.get();
    args.row_page = row_page.get();
    args.portable = portable_;
    args.sight = sight;
    prefill_attention(args, StreamView());
    check(cudaStreamSynchronize(nullptr), "prefill_attention");
    return out.values();
  }

  void expect_reference(std::uint32_t start, const std::vector<Bf16>& out) const {
    const std::size_t dim = shape_.head_dim_k;
    for (std::size_t row = 0; row * row_values() < out.size(); ++row) {
      for (std::size_t head = 0; head < heads_; ++head) {
        expect_attention(sequence_, static_cast<std::uint32_t>(start + row),
                         head / (heads_ / shape_.kv_heads),
                         q_.data() + (start + row) * row_values() + head * dim, scale(),
                         out.data() + row * row_values() + head * dim, seen_,
                         sink_q_.data() + (start + row) * row_values() + head * dim);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
  void check_rows(std::uint32_t start, std::uint32_t rows) {
    SCOPED_TRACE(testing::Message()
                 << "start " << start << " rows " << rows << " dim " << shape_.head_dim_k
                 << " heads " << heads_ << " window " << seen_.window << " sinks " << seen_.sinks);
    expect_reference(start, run(start, rows));
  }

  std::vector<float> run_cpu(std::uint32_t rows) {
    std::vector<float> out(rows * row_values());
    std::vector<std::uint32_t> positions(rows);
    for (std::uint32_t i = 0; i < rows; ++i) positions[i] = i;
    const std::vector<std::uint32_t> row_sequence(rows, 0);
    const RecordLayout layout = shape_.layout();
    cpu_kernels().attention({.layout = &layout,
                             .layer = KvSequence::kLayer,
                             .rows = rows,
                             .heads = heads_,
                             .scale = scale(),
                             .q = q_.data(),
                             .out = out.data(),
                             .positions = positions.data(),
                             .row_sequence = row_sequence.data(),
                             .sequences = &sequence_.view});
    return out;
  }

 private:
  // [kv_heads][stride][head_dim] with the blocks of the span; NaN beyond.
  std::vector<Bf16> stored(const std::vector<float>& values, const StoredSpan& span,
                           std::size_t stride) const {
    const std::size_t dim = shape_.head_dim_k;
    std::vector<Bf16> result(shape_.kv_heads * stride * dim, to_bf16(std::nanf("")));
    for (std::size_t head = 0; head < shape_.kv_heads; ++head) {
      auto to = result.begin() + static_cast<std::ptrdiff_t>(head * stride * dim);
      const auto copy = [&](std::size_t first, std::size_t end) {
        const std::size_t from = sequence_.at(head, first * kTileTokens);
        for (std::size_t i = 0; i < (end - first) * kTileTokens * dim; ++i) {
          *to++ = to_bf16(values[from + i]);
        }
      };
      copy(0, span.sink_blocks);
      copy(span.first_block, span.end_block);
    }
    return result;
  }

  bool portable_;
  KvShape shape_;
  std::uint32_t heads_;
  SeenTokens seen_;
  SeenSequence sequence_;
  std::vector<float> q_, sink_q_;
};

KvShape shape_of(std::uint32_t dim, std::uint32_t kv_heads,
                 StorageFormat format = StorageFormat::fp8_e4m3) {
  KvShape shape;
  shape.kv_heads = kv_heads;
  shape.head_dim_k = shape.head_dim_v = dim;
  shape.format = format;
  return shape;
}

// The kernel that this device gets, and the one that every device has.
class PrefillAttention : public GpuAttention, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Gpu, PrefillAttention, testing::Bool(), [](const auto& param) {
  return std::string(param.param ? "portable" : "best");
});

TEST_P(PrefillAttention, MatchesTheReferenceForEveryHeadDimensionAtRaggedLengths) {
  for (const std::uint32_t dim : {64U, 96U, 128U, 256U}) {
    PrefillCase c(GetParam(), shape_of(dim, 2), 2, 1000);
    for (const std::uint32_t rows : {1U, 15U, 16U, 17U, 100U, 128U, 129U, 300U}) {
      c.check_rows(0, rows);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(PrefillAttention, MatchesTheReferenceFromAnyStart) {
  for (const std::uint32_t dim : {64U, 96U, 128U, 256U}) {
    PrefillCase c(GetParam(), shape_of(dim, 1), 2, 1000);
    for (const auto& [start, rows] :
         std::vector<std::pair<std::uint32_t, std::uint32_t>>{{1, 1},
                                                              {15, 1},
                                                              {15, 2},
                                                              {16, 16},
                                                              {5, 200},
                                                              {100, 156},
                                                              {111, 17},
                                                              {500, 300},
                                                              {993, 7},
                                                              {640, 360}}) {
      c.check_rows(start, rows);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(PrefillAttention, MatchesTheReferenceForGroupsOfOneToSixteenHeads) {
  for (const std::uint32_t group : {1U, 2U, 3U, 4U, 6U, 8U, 16U}) {
    PrefillCase c(GetParam(), shape_of(128, 1), group, 180);
    c.check_rows(0, 180);
    if (HasFatalFailure()) return;
  }
}

TEST_P(PrefillAttention, MatchesTheReferenceWhereFewTokensTakeMostOfTheWeight) {
  for (const std::uint32_t dim : {64U, 128U})
    PrefillCase(GetParam(), shape_of(dim, 1), 2, 700, 6).check_rows(0, 700);
}

TEST_P(PrefillAttention, MatchesTheReferenceAtALongContext) {
  PrefillCase(GetParam(), shape_of(128, 1), 1, 5000).check_rows(4800, 200);
}

TEST_P(PrefillAttention, AgreesWithTheCpuOnTheSameValues) {
  PrefillCase c(GetParam(), shape_of(128, 2, StorageFormat::bf16), 4, 500);
  const auto out = c.run(0, 500);
  const auto expected = c.run_cpu(500);
  double squares = 0;
  double difference = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    squares += double{expected[i]} * expected[i];
    difference += std::pow(double{to_float(out[i])} - expected[i], 2);
  }
  EXPECT_LT(std::sqrt(difference / squares), 3e-3);
}

TEST_P(PrefillAttention, ARowHasTheSameBitsInChunksOfAnySize) {
  for (const std::uint32_t dim : {64U, 96U, 128U, 256U}) {
    PrefillCase c(GetParam(), shape_of(dim, 2), 2, 800);
    const auto whole = c.run(0, 800);
    for (const std::uint32_t chunk : {1U, 16U, 37U, 128U, 250U}) {
      const std::uint32_t first = chunk == 1 ? 777 : 0;
      for (std::uint32_t start = first; start < 800; start += chunk) {
        const std::uint32_t rows = std::min(chunk, 800 - start);
        const auto part = c.run(start, rows);
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + start * c.row_values(),
                              part.size() * sizeof(Bf16)),
                  0)
            << "dim " << dim << " start " << start << " rows " << rows;
      }
    }
  }
}

// Windows and sinks below a block, at blocks' ends, over several tiles, and longer than contexts.
constexpr SeenTokens kSeen[] = {{1, 0},  {7, 0},   {16, 0},   {100, 0},   {300, 0},  {5000, 0},
                                {16, 1}, {48, 16}, {100, 20}, {200, 130}, {1100, 4}, {130, 300}};

TEST_P(PrefillAttention, MatchesTheReferenceInWindowsAndWithSinks) {
  for (const SeenTokens& seen : kSeen) {
    for (const std::uint32_t dim : {64U, 128U}) {
      PrefillCase c(GetParam(), shape_of(dim, 1), 2, 1300, 1, seen);
      for (const auto& [start, rows] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
               {0, 300}, {5, 200}, {100, 156}, {111, 17}, {500, 300}, {993, 7}, {1100, 200}}) {
        c.check_rows(start, rows);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(PrefillAttention, MatchesTheReferenceInWindowsOfOtherHeadDimensions) {
  for (const SeenTokens seen : {SeenTokens{100, 0}, SeenTokens{100, 20}}) {
    for (const std::uint32_t dim : {96U, 256U}) {
      PrefillCase c(GetParam(), shape_of(dim, 1), 2, 700, 1, seen);
      c.check_rows(0, 400);
      c.check_rows(411, 289);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(PrefillAttention, ARowInAWindowHasTheSameBitsInChunksOfAnySize) {
  for (const SeenTokens seen : {SeenTokens{100, 0}, SeenTokens{150, 20}}) {
    for (const std::uint32_t dim : {64U, 96U, 128U, 256U}) {
      PrefillCase c(GetParam(), shape_of(dim, 2), 2, 800, 1, seen);
      const auto whole = c.run(0, 800);
      for (const std::uint32_t chunk : {16U, 37U, 128U, 250U}) {
        for (std::uint32_t start = 0; start < 800; start += chunk) {
          const auto part = c.run(start, std::min(chunk, 800 - start));
          ASSERT_EQ(std::memcmp(part.data(), whole.data() + start * c.row_values(),
                                part.size() * sizeof(Bf16)),
                    0)
              << "dim " << dim << " start " << start << " sinks " << seen.sinks;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvtier::kernels::cuda
