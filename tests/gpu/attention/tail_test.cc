#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "tests/gpu/attention/device_array.h"
#include "tests/gpu/attention/late_writer.h"
#include "tests/gpu/attention/seen_sequence.h"

namespace kvtier::kernels::cuda {
namespace {

// Rows of one sequence for tail_attention.
class TailCase {
 public:
  TailCase(bool portable, KvShape shape, std::uint32_t group, std::size_t tokens,
           float q_deviation = 1)
      : portable_(portable),
        shape_(shape),
        heads_(group * shape.kv_heads),
        sequence_(shape, tokens, 5) {
    q_ = random_bf16(tokens * row_values(), 77, q_deviation);
    const std::size_t record_bytes = shape_.layout().record_bytes;
    std::vector<std::byte> records;
    for (std::size_t block = 0; block < tokens / kTileTokens; ++block) {
      records.insert(records.end(), sequence_.record(block),
                     sequence_.record(block) + record_bytes);
    }
    records_ = std::make_unique<DeviceArray<std::byte>>(records);
    std::vector<std::byte*> table;
    for (std::size_t block = 0; block < tokens / kTileTokens; ++block) {
      table.push_back(records_->get() + block * record_bytes);
    }
    table_ = std::make_unique<DeviceArray<std::byte*>>(table);
  }

  std::size_t row_values() const { return std::size_t{heads_} * shape_.head_dim_k; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim_k)); }

  // With `late`, the records of the blocks that the rows themselves complete are written by the
  // kernel right before, which lets attention begin long before it writes.
  std::vector<Bf16> run(std::uint32_t start, std::uint32_t rows, bool late = false) {
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
    std::vector<Bf16> q_values;
    for (std::size_t i = 0; i < rows * row_values(); ++i) {
      q_values.push_back(to_bf16(q_[start * row_values() + i]));
    }
    const DeviceArray<Bf16> q(q_values);
    DeviceArray<Bf16> out(q_values.size());
    DeviceArray<std::byte> workspace(tail_workspace_bytes(shape_.layout(), heads_, start, rows));

    TailAttentionArgs args;
    args.layout = shape_.layout();
    args.layer = KvSequence::kLayer;
    args.heads = heads_;
    args.start = start;
    args.rows = rows;
    args.scale = scale();
    args.q = q.get();
    args.out = out.get();
    args.block_table = table_->get();
    args.pages = pages.get();
    args.row_page = row_page.get();
    args.workspace = workspace.get();
    args.portable = portable_;
    const std::size_t record_bytes = shape_.layout().record_bytes;
    const std::size_t begin = start / kTileTokens * record_bytes;
    const std::size_t end = (start + rows) / kTileTokens * record_bytes;
    if (late && end > begin) {
      const DeviceArray<std::byte> right(records_->values());
      check(cudaMemset(records_->get() + begin, 0, end - begin), "cudaMemset");
      check(cudaDeviceSynchronize(), "cudaMemset");
      write_late(records_->get() + begin, right.get() + begin, end - begin, StreamView());
      tail_attention(args, StreamView());
      check(cudaStreamSynchronize(nullptr), "tail_attention");
      return out.values();
    }
    tail_attention(args, StreamView());
    check(cudaStreamSynchronize(nullptr), "tail_attention");
    return out.values();
  }

  void check_rows(std::uint32_t start, std::uint32_t rows) {
    SCOPED_TRACE(testing::Message() << "start " << start << " rows " << rows << " dim "
                                    << shape_.head_dim_k << " heads " << heads_);
    const auto out = run(start, rows);
    const std::size_t dim = shape_.head_dim_k;
    for (std::uint32_t row = 0; row < rows; ++row) {
      for (std::size_t head = 0; head < heads_; ++head) {
        expect_attention(sequence_, start + row, head / (heads_ / shape_.kv_heads),
                         q_.data() + (start + row) * row_values() + head * dim, scale(),
                         out.data() + row * row_values() + head * dim);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }

 private:
  bool portable_;
  KvShape shape_;
  std::uint32_t heads_;
  SeenSequence sequence_;
  std::vector<float> q_;
  std::unique_ptr<DeviceArray<std::byte>> records_;
  std::unique_ptr<DeviceArray<std::byte*>> table_;
};

KvShape shape_of(std::uint32_t dim, std::uint32_t kv_heads,
                 StorageFormat format = StorageFormat::fp8_e4m3) {
  KvShape shape;
  shape.kv_heads = kv_heads;
  shape.head_dim_k = shape.head_dim_v = dim;
  shape.format = format;
  return shape;
}

constexpr StorageFormat kFormats[] = {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2,
                                      StorageFormat::bf16};

// Whether the kernel is the one for all cards or the best for this one.
class TailAttention : public GpuAttention, public testing::WithParamInterface<bool> {};

TEST_P(TailAttention, MatchesTheReferenceForEveryHeadDimensionAndFormat) {
  for (const std::uint32_t dim : {64U, 96U, 128U, 256U}) {
    for (const StorageFormat format : kFormats) {
      SCOPED_TRACE(testing::Message() << "format " << static_cast<int>(format));
      TailCase c(GetParam(), shape_of(dim, 2, format), 4, 800);
      c.check_rows(700, 16);
      c.check_rows(784, 16);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(TailAttention, MatchesTheReferenceFromAnyStartForAnyNumberOfRows) {
  TailCase c(GetParam(), shape_of(128, 2), 4, 1200);
  for (const auto& [start, rows] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 1},
                                                            {0, 16},
                                                            {0, 64},
                                                            {1, 1},
                                                            {15, 2},
                                                            {16, 1},
                                                            {16, 16},
                                                            {255, 2},
                                                            {256, 16},
                                                            {250, 20},
                                                            {257, 5},
                                                            {511, 1},
                                                            {512, 64},
                                                            {500, 64},
                                                            {1013, 3},
                                                            {1024, 1},
                                                            {1100, 100}}) {
    c.check_rows(start, rows);
    if (HasFatalFailure()) return;
  }
}

TEST_P(TailAttention, MatchesTheReferenceForGroupsOfOneToSixteenHeads) {
  for (const std::uint32_t group : {1U, 2U, 3U, 5U, 7U, 8U, 9U, 16U}) {
    TailCase c(GetParam(), shape_of(128, 1), group, 640);
    c.check_rows(610, 21);
    if (HasFatalFailure()) return;
  }
}

TEST_P(TailAttention, MatchesTheReferenceWhereFewTokensTakeMostOfTheWeight) {
  for (const StorageFormat format : kFormats) {
    TailCase(GetParam(), shape_of(128, 1, format), 4, 1300, 6).check_rows(1270, 16);
  }
}

TEST_P(TailAttention, MatchesTheReferenceAtALongContext) {
  TailCase(GetParam(), shape_of(128, 2), 4, 9000).check_rows(8976, 16);
}

TEST_P(TailAttention, ARowHasTheSameBitsWhicheverRowsAreBesideIt) {
  for (const std::uint32_t group : {1U, 4U, 7U}) {
    for (const StorageFormat format : kFormats) {
      TailCase c(GetParam(), shape_of(128, 2, format), group, 900);
      const auto whole = c.run(700, 64);
      for (const std::uint32_t chunk : {1U, 3U, 16U}) {
        for (std::uint32_t at = 0; at < 64; at += chunk) {
          const std::uint32_t rows = std::min(chunk, 64 - at);
          const auto part = c.run(700 + at, rows);
          ASSERT_EQ(std::memcmp(part.data(), whole.data() + at * c.row_values(),
                                part.size() * sizeof(Bf16)),
                    0)
              << "group " << group << " row " << at << " chunk " << chunk;
        }
      }
    }
  }
}

// A piece of 17 to 64 rows lies in two blocks at least: its later rows attend, as stored, to one
// that the kernel before has just quantised.
TEST_P(TailAttention, WaitsForRecordsThatTheKernelBeforeStillWrites) {
  for (const StorageFormat format : kFormats) {
    TailCase c(GetParam(), shape_of(128, 2, format), 4, 900);
    for (const auto& [start, rows] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
             {0, 17}, {0, 64}, {15, 2}, {250, 20}, {380, 17}, {384, 32}, {700, 64}}) {
      const auto right = c.run(start, rows);
      for (int i = 0; i < 5; ++i) {
        const auto out = c.run(start, rows, true);
        ASSERT_EQ(std::memcmp(out.data(), right.data(), right.size() * sizeof(Bf16)), 0)
            << "format " << static_cast<int>(format) << " start " << start << " rows " << rows;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, TailAttention, testing::Bool(), [](const auto& param) {
  return std::string(param.param ? "portable" : "best");
});

}  // namespace
}  // namespace kvtier::kernels::cuda
