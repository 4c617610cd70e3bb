#include <cmath>
#include <limits>

#include "tests/kernels/isa.h"
#include "tests/kernels/kv_sequence.h"

namespace kvtier::kernels {
namespace {

// Rows of several sequences for one call, and their queries.
struct Batch {
  Batch(const KvShape& kv_shape, std::uint32_t query_heads) : shape(kv_shape), heads(query_heads) {}

  void add_sequence(std::size_t tokens, const std::vector<std::uint32_t>& row_positions) {
    const auto index = static_cast<std::uint32_t>(sequences.size());
    sequences.emplace_back(shape, tokens, index + 1);
    for (const std::uint32_t position : row_positions) {
      positions.push_back(position);
      row_sequence.push_back(index);
    }
    views.push_back(sequences.back().view(row_positions));
    q = random_floats(positions.size() * heads * shape.head_dim_k, 17);
    sink_q = random_floats(q.size(), 18);
  }
  void add_prefill(std::uint32_t tokens) {
    std::vector<std::uint32_t> all(tokens);
    for (std::uint32_t i = 0; i < tokens; ++i) all[i] = i;
    add_sequence(tokens, all);
  }

  // Without V it is the beginning of K.
  bool latent() const { return shape.head_dim_v == 0; }
  std::size_t value_dim() const { return latent() ? value_channels : shape.head_dim_v; }
  std::size_t out_floats() const { return heads * value_dim(); }

  // Rows first .. first + rows - 1 in one call.
  void run(const KernelTable& kernels, std::size_t first, std::size_t rows, float* out) const {
    const RecordLayout layout = shape.layout();
    kernels.attention({.layout = &layout,
                       .layer = KvSequence::kLayer,
                       .rows = static_cast<std::uint32_t>(rows),
                       .heads = heads,
                       .window = window,
                       .sinks = sinks,
                       .sink_q = sink_q.data() + first * heads * shape.head_dim_k,
                       .value_channels = value_channels,
                       .scale = scale(),
                       .q = q.data() + first * heads * shape.head_dim_k,
                       .out = out,
                       .positions = positions.data() + first,
                       .row_sequence = row_sequence.data() + first,
                       .sequences = views.data()});
  }
  std::vector<float> run_all(const KernelTable& kernels) const {
    std::vector<float> out(positions.size() * out_floats());
    run(kernels, 0, positions.size(), out.data());
    return out;
  }
  std::vector<float> run_one_by_one(const KernelTable& kernels) const {
    std::vector<float> out(positions.size() * out_floats());
    for (std::size_t row = 0; row < positions.size(); ++row) {
      run(kernels, row, 1, out.data() + row * out_floats());
    }
    return out;
  }

  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape.head_dim_k)); }

  std::vector<double> reference(std::size_t row, std::size_t head) const {
    const KvSequence& sequence = sequences[row_sequence[row]];
    const std::uint32_t position = positions[row];
    const std::size_t kv_head = head / (heads / shape.kv_heads);
    const std::size_t query = (row * heads + head) * shape.head_dim_k;
    const std::uint32_t first = window == 0 || position < window ? 0 : position + 1 - window;
    std::vector<double> scores(position + 1);
    double largest = -std::numeric_limits<double>::infinity();
    const auto seen = [&](std::uint32_t token) { return token >= first || token < sinks; };
    for (std::uint32_t token = 0; token <= position; ++token) {
      if (!seen(token)) continue;
      double dot = 0;
      for (std::size_t d = 0; d < shape.head_dim_k; ++d) {
        dot += double{(token < first ? sink_q : q)[query + d]} *
               sequence.seen_value(position, false, kv_head, token, d);
      }
      scores[token] = dot * scale();
      largest = std::max(largest, scores[token]);
    }
    std::vector<double> out(value_dim());
    double total = 0;
    for (std::uint32_t token = 0; token <= position; ++token) {
      if (!seen(token)) continue;
      const double weight = std::exp(scores[token] - largest);
      total += weight;
      for (std::size_t d = 0; d < out.size(); ++d) {
        out[d] += weight * sequence.seen_value(position, !latent(), kv_head, token, d);
      }
    }
    for (double& x : out) x /= total;
    return out;
  }

  void expect_reference(const std::vector<float>& out) const {
    for (std::size_t row = 0; row < positions.size(); ++row) {
      for (std::size_t head = 0; head < heads; ++head) {
        const auto expected = reference(row, head);
        for (std::size_t d = 0; d < expected.size(); ++d) {
          ASSERT_NEAR(out[row * out_floats() + head * value_dim() + d], expected[d], 1e-5)
              << "row " << row << " head " << head << " dim " << d;
        }
      }
    }
  }

  KvShape shape;
  std::uint32_t heads;
  std::uint32_t window = 0;
  std::uint32_t sinks = 0;
  std::uint32_t value_channels = 0;
  std::vector<KvSequence> sequences;
  std::vector<SequenceKv> views;
  std::vector<std::uint32_t> positions;
  std::vector<std::uint32_t> row_sequence;
  std::vector<float> q, sink_q;
};

class Attention : public EveryIsa {};
KVTIER_FOR_EVERY_ISA(Attention);

TEST_P(Attention, MatchesTheReferenceAtEveryKindOfBlockBoundary) {
  Batch batch({}, 4);
  batch.add_sequence(48, {0, 15, 16, 17, 31, 32});
  batch.expect_reference(batch.run_all(kernels()));
}

TEST_P(Attention, MatchesTheReferenceForGroupsOfOneToEightHeads) {
  for (std::uint32_t group = 1; group <= 8; ++group) {
    Batch batch({.head_dim_k = 16, .head_dim_v = 16}, 2 * group);
    batch.add_prefill(70);
    batch.expect_reference(batch.run_all(kernels()));
  }
}

TEST_P(Attention, MatchesTheReferenceWithOneKvHeadForAll) {
  Batch batch({.kv_heads = 1, .head_dim_k = 32, .head_dim_v = 32}, 71);
  batch.add_sequence(100, {3, 40, 99});
  batch.expect_reference(batch.run_all(kernels()));
}

TEST_P(Attention, MatchesTheReferenceForEveryHeadDimension) {
  for (const std::uint32_t dim : {8U, 64U, 96U, 128U, 256U}) {
    Batch batch({.head_dim_k = dim, .head_dim_v = dim}, 4);
    batch.add_sequence(60, {0, 14, 33, 59});
    batch.expect_reference(batch.run_all(kernels()));
  }
}

TEST_P(Attention, MatchesTheReferenceWhereKAndVDiffer) {
  for (const auto& [k, v] : {std::pair{24U, 72U}, std::pair{192U, 128U}, std::pair{8U, 40U}}) {
    Batch batch({.head_dim_k = k, .head_dim_v = v}, 2);
    batch.add_sequence(60, {1, 16, 47, 48, 59});
    batch.expect_reference(batch.run_all(kernels()));
  }
}

TEST_P(Attention, TakesValuesOutOfKWhereThereIsNoVWithTheSameBitsAlone) {
  for (const StorageFormat format : kFormats) {
    for (const auto& [k, values] :
         {std::pair{576U, 512U}, std::pair{40U, 32U}, std::pair{26U, 21U}, std::pair{64U, 64U}}) {
      Batch batch({.kv_heads = 1, .head_dim_k = k, .head_dim_v = 0, .format = format}, 3);
      batch.value_channels = values;
      batch.add_prefill(35);
      batch.add_sequence(60, {1, 16, 47, 48, 59});
      const auto out = batch.run_all(kernels());
      batch.expect_reference(out);
      ASSERT_TRUE(same_bits(out, batch.run_one_by_one(kernels())))
          << name(format) << ", " << values << " of " << k;
    }
  }
}

TEST_P(Attention, MatchesTheReferenceForEveryFormatAndBlockLength) {
  for (const StorageFormat format :
       {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2, StorageFormat::bf16, StorageFormat::f32,
        StorageFormat::int8, StorageFormat::int4}) {
    for (const std::uint32_t block_tokens : {1U, 2U, 8U, 15U, 16U, 32U, 64U}) {
      Batch batch({.block_tokens = block_tokens, .format = format}, 2);
      batch.add_sequence(130, {0, 1, 31, 63, 64, 100, 129});
      batch.expect_reference(batch.run_all(kernels()));
    }
  }
}

TEST_P(Attention, MatchesTheReferenceWithinAWindowWithTheSameBitsAlone) {
  for (const std::uint32_t block_tokens : {2U, 16U, 32U}) {
    for (const std::uint32_t window : {1U, 5U, 16U, 17U, 40U, 96U}) {
      Batch batch({.block_tokens = block_tokens}, 4);
      batch.window = window;
      batch.add_prefill(70);
      batch.add_sequence(130, {129, 47, 48, 64});
      const auto out = batch.run_all(kernels());
      batch.expect_reference(out);
      ASSERT_TRUE(same_bits(out, batch.run_one_by_one(kernels())))
          << block_tokens << " a block, window " << window;
    }
  }
}

TEST_P(Attention, MatchesTheReferenceWithSinksBeforeTheWindowWithTheSameBitsAlone) {
  for (const std::uint32_t block_tokens : {2U, 16U}) {
    for (const std::uint32_t sinks : {1U, 4U, 16U, 21U, 60U}) {
      for (const std::uint32_t window : {16U, 17U, 40U}) {
        Batch batch({.block_tokens = block_tokens}, 4);
        batch.window = window;
        batch.sinks = sinks;
        batch.add_prefill(70);
        batch.add_sequence(130, {129, 47, 48, 64});
        const auto out = batch.run_all(kernels());
        batch.expect_reference(out);
        ASSERT_TRUE(same_bits(out, batch.run_one_by_one(kernels())))
            << block_tokens << " a block, " << sinks << " sinks, window " << window;
      }
    }
  }
}

TEST_P(Attention, ARowIgnoresWhatLiesBeforeItsWindow) {
  Batch batch({}, 2);
  batch.window = 3;
  batch.add_sequence(20, {19});  // sees tokens 17, 18 and 19, of which 16 is a neighbour
  const auto clean = batch.run_all(kernels());
  for (const bool v : {false, true}) {
    auto& page = batch.sequences[0].exact_page(v, 1);
    for (std::size_t head = 0; head < 2; ++head) {
      for (std::size_t i = 0; i < 64; ++i) {
        page[head * 16 * 64 + i] = std::numeric_limits<float>::infinity();
      }
    }
  }
  EXPECT_TRUE(same_bits(clean, batch.run_all(kernels())));
}

TEST_P(Attention, SequencesInOneCallDoNotSeeEachOther) {
  Batch batch({}, 4);
  batch.add_prefill(40);
  batch.add_sequence(100, {99});
  batch.add_sequence(17, {16});
  batch.add_prefill(33);
  batch.expect_reference(batch.run_all(kernels()));
}

TEST_P(Attention, RowsMayComeInAnyOrder) {
  Batch batch({}, 2);
  batch.add_sequence(80, {79, 3, 16, 64, 0, 64, 31});
  batch.expect_reference(batch.run_all(kernels()));
}

TEST_P(Attention, ARowHasTheSameBitsAloneOrAmongOthersOnAnyNumberOfThreads) {
  for (const std::uint32_t heads : {2U, 4U, 6U, 14U}) {
    for (const std::uint32_t dim : {8U, 64U, 96U}) {
      Batch batch({.head_dim_k = dim, .head_dim_v = dim}, heads);
      batch.add_prefill(150);
      batch.add_sequence(90, {89});
      batch.add_sequence(200, {160, 161, 162, 163, 199});
      set_cpu_threads(1);
      const auto alone = batch.run_one_by_one(kernels());
      for (const unsigned threads : {1U, 2U}) {
        set_cpu_threads(threads);
        ASSERT_TRUE(same_bits(alone, batch.run_all(kernels()))) << threads << " threads";
      }
    }
  }
}

TEST_P(Attention, ARowIgnoresWhatLiesBeyondItInItsBlock) {
  Batch batch({}, 2);
  batch.add_sequence(20, {17});
  const auto clean = batch.run_all(kernels());
  for (const bool v : {false, true}) {
    auto& page = batch.sequences[0].exact_page(v, 1);
    for (std::size_t head = 0; head < 2; ++head) {
      for (std::size_t i = 2 * 64; i < 16 * 64; ++i) {
        page[head * 16 * 64 + i] = v ? std::nanf("") : std::numeric_limits<float>::infinity();
      }
    }
  }
  EXPECT_TRUE(same_bits(clean, batch.run_all(kernels())));
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  Batch batch({}, 2);
  batch.add_sequence(60, {59});
  for (float& x : batch.q) x *= 300;
  const auto out = batch.run_all(kernels());
  for (const float x : out) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(Attention, AgreesWithThePortableOne) {
  Batch batch({.head_dim_k = 128, .head_dim_v = 128}, 8);
  batch.add_prefill(100);
  const auto out = batch.run_all(kernels());
  const auto expected = batch.run_all(portable());
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 5e-6);
}

}  // namespace
}  // namespace kvtier::kernels
