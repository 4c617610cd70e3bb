#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/cuda/stream.h"
#include "kernels/table.h"
#include "tests/gpu/attention/device_array.h"
#include "tests/gpu/attention/seen_sequence.h"

namespace kvtier::kernels::cuda {
namespace {

using Layer = KvSequence;

// Rows of several sequences for decode_attention, one a sequence; kNoSequence pads.
class DecodeCase {
 public:
  DecodeCase(KvShape shape, std::uint32_t group, const std::vector<std::uint32_t>& positions,
             float q_deviation = 1, SeenTokens seen = {})
      : shape_(shape), heads_(group * shape.kv_heads), seen_(seen) {
    for (std::size_t row = 0; row < positions.size(); ++row) {
      const std::uint32_t position = positions[row];
      positions_.push_back(position == kNoSequence ? 0 : position);
      row_page_.push_back(static_cast<std::uint32_t>(pages_.size()));
      if (position == kNoSequence) {
        row_sequence_.push_back(kNoSequence);
        continue;
      }
      row_sequence_.push_back(static_cast<std::uint32_t>(sequences_.size()));
      add_sequence(position, static_cast<unsigned>(row + 1));
    }
    q_ = random_bf16(rows() * row_values(), 99, q_deviation);
    sink_q_ = random_bf16(q_.size(), 98, q_deviation);
    for (std::size_t row = 0; row < rows(); ++row) {
      if (seen_.beyond(positions_[row])) continue;
      const auto first = static_cast<std::ptrdiff_t>(row * row_values());
      std::copy_n(q_.begin() + first, row_values(), sink_q_.begin() + first);
    }
  }

  std::size_t rows() const { return positions_.size(); }
  std::size_t row_values() const { return std::size_t{heads_} * shape_.head_dim_k; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim_k)); }

  // Rows [first, first + count).
  std::vector<Bf16> run(std::size_t first, std::size_t count, std::uint32_t context_max,
                        bool as_graph = false) const {
    const auto slice = [&](const std::vector<std::uint32_t>& all) {
      return DeviceArray<std::uint32_t>({all.begin() + static_cast<std::ptrdiff_t>(first),
                                         all.begin() + static_cast<std::ptrdiff_t>(first + count)});
    };
    const auto positions = slice(positions_);
    const auto row_sequence = slice(row_sequence_);
    const auto row_page = slice(row_page_);
    const DeviceArray<ExactPage> pages(pages_);
    const DeviceArray<std::byte* const*> tables(tables_);
    std::vector<Bf16> q_values, sink_values;
    for (std::size_t i = 0; i < count * row_values(); ++i) {
      q_values.push_back(to_bf16(q_[first * row_values() + i]));
      sink_values.push_back(to_bf16(sink_q_[first * row_values() + i]));
    }
    const DeviceArray<Bf16> q(q_values), sink_q(sink_values);
    DeviceArray<Bf16> out(q_values.size());
    const Sight sight{seen_.window, seen_.sinks, seen_.sinks != 0 ? sink_q.get() : nullptr};
    const auto bytes = decode_workspace_bytes(shape_.layout(), static_cast<std::uint32_t>(count),
                                              heads_, context_max, sight);
    DeviceArray<std::byte> workspace(bytes);

    DecodeAttentionArgs args;
    args.layout = shape_.layout();
    args.step = {static_cast<std::uint32_t>(count),
                 positions.get(),
                 row_sequence.get(),
                 row_page.get(),
                 pages.get(),
                 tables.get()};
    args.layer = Layer::kLayer;
    args.heads = heads_;
    args.context_max = context_max;
    args.scale = scale();
    args.q = q.get();
    args.out = out.get();
    args.workspace = workspace.get();
    args.sight = sight;
    launch(args, as_graph);
    return out.values();
  }
  std::vector<Bf16> run_all() const {
    std::uint32_t longest = 0;
    for (const std::uint32_t position : positions_) longest = std::max(longest, position);
    return run(0, rows(), longest + 1);
  }

  void expect_reference(const std::vector<Bf16>& out) const {
    const std::size_t dim = shape_.head_dim_k;
    for (std::size_t row = 0; row < rows(); ++row) {
      const Bf16* of_row = out.data() + row * row_values();
      if (row_sequence_[row] == kNoSequence) {
        for (std::size_t i = 0; i < row_values(); ++i) {
          std::uint16_t bits = 0;
          std::memcpy(&bits, of_row + i, sizeof bits);
          ASSERT_EQ(bits, 0xFFFF) << "padding row " << row << " was written";
        }
        continue;
      }
      for (std::size_t head = 0; head < heads_; ++head) {
        expect_attention(*sequences_[row_sequence_[row]], positions_[row],
                         head / (heads_ / shape_.kv_heads),
                         q_.data() + row * row_values() + head * dim, scale(), of_row + head * dim,
                         seen_, sink_q_.data() + row * row_values() + head * dim);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }

  // Every row is of a sequence.
  std::vector<float> run_cpu() const {
    std::vector<float> out(rows() * row_values());
    std::vector<SequenceKv> views;
    for (const auto& sequence : sequences_) views.push_back(sequence->view);
    const RecordLayout layout = shape_.layout();
    cpu_kernels().attention({.layout = &layout,
                             .layer = Layer::kLayer,
                             .rows = static_cast<std::uint32_t>(rows()),
                             .heads = heads_,
                             .window = seen_.window,
                             .sinks = seen_.sinks,
                             .sink_q = sink_q_.data(),
                             .scale = scale(),
                             .q = q_.data(),
                             .out = out.data(),
                             .positions = positions_.data(),
                             .row_sequence = row_sequence_.data(),
                             .sequences = views.data()});
    return out;
  }

 private:
  void add_sequence(std::uint32_t position, unsigned seed) {
    sequences_.push_back(std::make_unique<SeenSequence>(shape_, position + 1, seed));
    SeenSequence& sequence = *sequences_.back();
    const std::size_t blocks = position / kTileTokens;
    const std::size_t record_bytes = shape_.layout().record_bytes;
    std::vector<std::byte> records;
    for (std::size_t block = 0; block < blocks; ++block) {
      records.insert(records.end(), sequence.record(block), sequence.record(block) + record_bytes);
    }
    records_.emplace_back(records);
    std::vector<std::byte*> table;
    for (std::size_t block = 0; block < blocks; ++block) {
      table.push_back(seen_.keeps(position, block) ? records_.back().get() + block * record_bytes
                                                   : nullptr);
    }
    table_arrays_.emplace_back(table);
    tables_.push_back(table_arrays_.back().get());
    add_page(sequence.page(blocks, position % kTileTokens + 1), seed % 2 == 0);
  }
  // With all layers in it, or the one alone.
  void add_page(const std::vector<Bf16>& of_layer, bool every_layer) {
    std::vector<Bf16> page(every_layer ? Layer::kLayer * of_layer.size() : 0,
                           to_bf16(std::nanf("")));
    page.insert(page.end(), of_layer.begin(), of_layer.end());
    page_values_.emplace_back(page);
    pages_.push_back({page_values_.back().get(), every_layer ? of_layer.size() : 0});
  }

  static void launch(const DecodeAttentionArgs& args, bool as_graph) {
    const Stream stream(Stream::Priority::normal);
    if (as_graph) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t instance = nullptr;
      check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
            "begin capture");
      decode_attention(args, stream.view());
      check(cudaStreamEndCapture(stream.get(), &graph), "end capture");
      check(cudaGraphInstantiate(&instance, graph, 0), "instantiate");
      check(cudaGraphLaunch(instance, stream.get()), "launch of a graph");
      check(cudaStreamSynchronize(stream.get()), "decode_attention in a graph");
      check(cudaGraphExecDestroy(instance), "destroy");
      check(cudaGraphDestroy(graph), "destroy");
    } else {
      decode_attention(args, stream.view());
      check(cudaStreamSynchronize(stream.get()), "decode_attention");
    }
  }

  KvShape shape_;
  std::uint32_t heads_;
  SeenTokens seen_;
  std::vector<float> q_, sink_q_;
  std::vector<std::uint32_t> positions_, row_sequence_, row_page_;
  std::vector<std::unique_ptr<SeenSequence>> sequences_;
  std::vector<DeviceArray<std::byte>> records_;
  std::vector<DeviceArray<std::byte*>> table_arrays_;
  std::vector<std::byte* const*> tables_;
  std::vector<DeviceArray<Bf16>> page_values_;
  std::vector<ExactPage> pages_;
};

KvShape shape_of(std::uint32_t dim, StorageFormat format, std::uint32_t kv_heads = 2) {
  KvShape shape;
  shape.kv_heads = kv_heads;
  shape.head_dim_k = shape.head_dim_v = dim;
  shape.format = format;
  return shape;
}

constexpr StorageFormat kFormats[] = {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2,
                                      StorageFormat::bf16};
const std::vector<std::uint32_t> kRagged = {0, 14, kNoSequence, 15, 16, 31, 99, 511, 512, 999};

class DecodeAttention : public GpuAttention {};

TEST_F(DecodeAttention, MatchesTheReferenceForEveryHeadDimensionAndFormatAtRaggedLengths) {
  for (const std::uint32_t dim : {64U, 96U, 128U, 256U}) {
    for (const StorageFormat format : kFormats) {
      SCOPED_TRACE(testing::Message() << "dim " << dim << " format " << static_cast<int>(format));
      const DecodeCase c(shape_of(dim, format), 4, kRagged);
      c.expect_reference(c.run_all());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(DecodeAttention, MatchesTheReferenceForGroupsOfOneToSixteenHeads) {
  for (const std::uint32_t group : {1U, 2U, 3U, 6U, 8U, 9U, 16U}) {
    for (const std::uint32_t dim : {64U, 128U, 256U}) {
      SCOPED_TRACE(testing::Message() << "group " << group << " dim " << dim);
      const DecodeCase c(shape_of(dim, StorageFormat::fp8_e4m3, 1), group, {200, 530});
      c.expect_reference(c.run_all());
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(DecodeAttention, MatchesTheReferenceWhereFewTokensTakeMostOfTheWeight) {
  for (const StorageFormat format : kFormats) {
    const DecodeCase c(shape_of(128, format), 4, {700, 1300}, 6);
    c.expect_reference(c.run_all());
  }
}

TEST_F(DecodeAttention, MatchesTheReferenceAtALongContext) {
  const DecodeCase c(shape_of(128, StorageFormat::fp8_e4m3), 4, {9000});
  c.expect_reference(c.run_all());
}

TEST_F(DecodeAttention, AgreesWithTheCpuOnTheSameValues) {
  for (const StorageFormat format : kFormats) {
    const DecodeCase c(shape_of(128, format), 4, {3, 100, 640, 1000});
    const auto out = c.run_all();
    const auto expected = c.run_cpu();
    double squares = 0;
    double difference = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      squares += double{expected[i]} * expected[i];
      difference += std::pow(double{to_float(out[i])} - expected[i], 2);
    }
    EXPECT_LT(std::sqrt(difference / squares), 3e-3);
  }
}

TEST_F(DecodeAttention, ARowHasTheSameBitsAloneOrAmongOthersAndForAnyContextMax) {
  for (const StorageFormat format : kFormats) {
    const DecodeCase c(shape_of(128, format), 4, kRagged);
    const auto together = c.run_all();
    for (std::size_t row = 0; row < c.rows(); ++row) {
      const auto alone = c.run(row, 1, 5000);
      ASSERT_EQ(std::memcmp(alone.data(), together.data() + row * c.row_values(),
                            c.row_values() * sizeof(Bf16)),
                0)
          << "row " << row;
    }
  }
}

// Windows and sinks below a block, at blocks' ends, over several parts, and longer than contexts.
constexpr SeenTokens kSeen[] = {{1, 0},     {7, 0},    {16, 0},   {40, 0},  {600, 0},
                                {5000, 0},  {16, 1},   {17, 4},   {48, 16}, {100, 20},
                                {900, 130}, {1100, 4}, {3000, 40}};

TEST_F(DecodeAttention, MatchesTheReferenceInWindowsAndWithSinks) {
  const std::vector<std::uint32_t> positions = {0,  3,  kNoSequence, 15, 16,  19,   20,   35,
                                                51, 63, 64,          99, 511, 1019, 1040, 2300};
  for (const SeenTokens& seen : kSeen) {
    for (const StorageFormat format : kFormats) {
      SCOPED_TRACE(testing::Message() << "window " << seen.window << " sinks " << seen.sinks
                                      << " format " << name(format));
      const DecodeCase c(shape_of(64, format, 1), 4, positions, 1, seen);
      const auto together = c.run_all();
      c.expect_reference(together);
      if (HasFatalFailure()) return;
      const auto alone = c.run(c.rows() - 1, 1, 5000);
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + (c.rows() - 1) * c.row_values(),
                            c.row_values() * sizeof(Bf16)),
                0);
    }
  }
}

TEST_F(DecodeAttention, MatchesTheReferenceInWindowsOfEveryHeadDimension) {
  for (const std::uint32_t dim : {96U, 128U, 256U}) {
    for (const std::uint32_t group : {1U, 9U}) {
      for (const SeenTokens seen : {SeenTokens{100, 0}, SeenTokens{100, 20}}) {
        SCOPED_TRACE(testing::Message() << "dim " << dim << " group " << group);
        const DecodeCase c(shape_of(dim, StorageFormat::fp8_e4m3), group, kRagged, 1, seen);
        c.expect_reference(c.run_all());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(DecodeAttention, AgreesWithTheCpuInWindowsAndWithSinks) {
  for (const SeenTokens& seen : kSeen) {
    const DecodeCase c(shape_of(128, StorageFormat::bf16), 4, {3, 100, 640, 1000}, 1, seen);
    const auto out = c.run_all();
    const auto expected = c.run_cpu();
    double squares = 0;
    double difference = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      squares += double{expected[i]} * expected[i];
      difference += std::pow(double{to_float(out[i])} - expected[i], 2);
    }
    EXPECT_LT(std::sqrt(difference / squares), 3e-3) << seen.window << " " << seen.sinks;
  }
}

TEST_F(DecodeAttention, RunsInAGraph) {
  const DecodeCase c(shape_of(128, StorageFormat::fp8_e4m3), 4, kRagged);
  c.expect_reference(c.run(0, c.rows(), 2000, true));
}

}  // namespace
}  // namespace kvtier::kernels::cuda
