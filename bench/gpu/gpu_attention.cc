#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "bench/gpu/gpu_commands.h"
#include "bench/gpu/gpu_memory.h"
#include "kernels/cuda/kernels.h"

namespace kvtier::bench {
namespace {

using kernels::cuda::Bf16;
using kernels::cuda::check;
using kernels::cuda::ExactPage;
using kernels::cuda::kTileTokens;

constexpr std::uint32_t kLayers = 32;
constexpr std::uint32_t kHeads = 32;
constexpr std::uint32_t kKvHeads = 8;
constexpr int kRounds = 7;

RecordLayout layout_of(StorageFormat format, std::uint32_t head_dim) {
  Namespace ns;
  ns.model = "bench";
  ns.layers = kLayers;
  ns.kv_heads = kKvHeads;
  ns.head_dim_k = ns.head_dim_v = head_dim;
  ns.block_tokens = kTileTokens;
  ns.format = format;
  return RecordLayout::of(ns);
}

// Sequences of the given lengths whose records lie anywhere in one piece of memory, and one exact
// page for each.
struct DecodeStep {
  DecodeStep(const RecordLayout& record_layout, const std::vector<std::uint32_t>& tokens)
      : layout(record_layout),
        rows(static_cast<std::uint32_t>(tokens.size())),
        blocks(count_blocks(tokens)),
        records(blocks * layout.record_bytes),
        pages(rows * page_bytes()),
        table(blocks * sizeof(std::byte*)),
        tables(rows * sizeof(std::byte* const*)),
        page_list(rows * sizeof(ExactPage)),
        positions(rows * sizeof(std::uint32_t)),
        row_index(rows * sizeof(std::uint32_t)) {
    fill_with_numbers(records);
    fill_with_numbers(pages);
    std::vector<std::byte*> pointers;
    for (std::size_t block = 0; block < blocks; ++block) {
      pointers.push_back(records.as<std::byte>() + block * layout.record_bytes);
    }
    std::shuffle(pointers.begin(), pointers.end(), std::mt19937(3));
    upload(table, pointers);
    std::vector<std::byte* const*> firsts;
    std::vector<ExactPage> page_values;
    std::vector<std::uint32_t> last;
    std::size_t first = 0;
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      firsts.push_back(table.as<std::byte*>() + first);
      page_values.push_back({reinterpret_cast<Bf16*>(pages.as<std::byte>() + row * page_bytes()),
                             page_bytes() / sizeof(Bf16) / kLayers});
      last.push_back(tokens[row] - 1);
      first += tokens[row] / kTileTokens;
    }
    upload(tables, firsts);
    upload(page_list, page_values);
    upload(positions, last);
    std::vector<std::uint32_t> index(rows);
    std::iota(index.begin(), index.end(), 0U);
    upload(row_index, index);
  }

  static std::size_t count_blocks(const std::vector<std::uint32_t>& tokens) {
    std::size_t blocks = 0;
    for (const std::uint32_t count : tokens) blocks += count / kTileTokens;
    return blocks;
  }
  std::size_t page_bytes() const {
    return std::size_t{kLayers} * 2 * kKvHeads * kTileTokens * layout.head_dim_k * sizeof(Bf16);
  }

  RecordLayout layout;
  std::uint32_t rows;
  std::size_t blocks;
  DeviceMemory records, pages, table, tables, page_list, positions, row_index;
};

// Bytes of K and V read a second; every layer is other memory, more of it than the caches hold.
double decode_bandwidth(StorageFormat format, const std::vector<std::uint32_t>& tokens) {
  const DecodeStep step(layout_of(format, 128), tokens);
  const std::uint32_t context_max = *std::max_element(tokens.begin(), tokens.end());
  const std::size_t q_bytes = std::size_t{step.rows} * kHeads * 128 * sizeof(Bf16);
  const DeviceMemory q(q_bytes);
  const DeviceMemory out(q_bytes);
  const DeviceMemory workspace(
      kernels::cuda::decode_workspace_bytes(step.layout, step.rows, kHeads, context_max));
  fill_with_numbers(q);
  const double seconds = graph_seconds(
      [&](StreamView stream) {
        kernels::cuda::DecodeAttentionArgs args;
        args.layout = step.layout;
        args.step = {step.rows,
                     step.positions.as<std::uint32_t>(),
                     step.row_index.as<std::uint32_t>(),
                     step.row_index.as<std::uint32_t>(),
                     step.page_list.as<ExactPage>(),
                     step.tables.as<std::byte* const*>()};
        args.heads = kHeads;
        args.context_max = context_max;
        args.scale = 0.088F;
        args.q = q.as<Bf16>();
        args.out = out.as<Bf16>();
        args.workspace = workspace.as<void>();
        for (args.layer = 0; args.layer < kLayers; ++args.layer) {
          kernels::cuda::decode_attention(args, stream);
        }
      },
      kRounds);
  return static_cast<double>(step.blocks * step.layout.payload_bytes) / seconds;
}

// The last `rows` of a prompt of `tokens`, likewise: bytes of K and V before their block read a
// second.
double tail_bandwidth(StorageFormat format, std::uint32_t tokens, std::uint32_t rows) {
  const DecodeStep step(layout_of(format, 128), {tokens});
  const std::uint32_t start = tokens - rows;
  const DeviceMemory q(std::size_t{rows} * kHeads * 128 * sizeof(Bf16));
  const DeviceMemory out(q.bytes());
  const DeviceMemory workspace(
      kernels::cuda::tail_workspace_bytes(step.layout, kHeads, start, rows));
  const DeviceMemory row_page(rows * sizeof(std::uint32_t));
  upload(row_page, std::vector<std::uint32_t>(rows, 0));
  fill_with_numbers(q);
  const double seconds = graph_seconds(
      [&](StreamView stream) {
        kernels::cuda::TailAttentionArgs args;
        args.layout = step.layout;
        args.heads = kHeads;
        args.start = start;
        args.rows = rows;
        args.scale = 0.088F;
        args.q = q.as<Bf16>();
        args.out = out.as<Bf16>();
        args.block_table = step.table.as<std::byte*>();
        args.pages = step.page_list.as<ExactPage>();
        args.row_page = row_page.as<std::uint32_t>();
        args.workspace = workspace.as<void>();
        for (args.layer = 0; args.layer < kLayers; ++args.layer) {
          kernels::cuda::tail_attention(args, stream);
        }
      },
      kRounds);
  return static_cast<double>(start / kTileTokens * step.layout.payload_bytes) / seconds;
}

// Operations a second: 4 * head_dim for each pair of a row and a token that it sees.
double prefill_rate(std::uint32_t tokens, std::uint32_t head_dim, bool portable) {
  const std::size_t row_bytes = head_dim * sizeof(Bf16);
  const DeviceMemory q(tokens * kHeads * row_bytes);
  const DeviceMemory out(q.bytes());
  const DeviceMemory k(kKvHeads * tokens * row_bytes);
  const DeviceMemory v(k.bytes());
  const std::size_t blocks = tokens / kTileTokens;
  const std::size_t page_elements = std::size_t{2} * kKvHeads * kTileTokens * head_dim;
  const DeviceMemory page_values(blocks * page_elements * sizeof(Bf16));
  const DeviceMemory pages(blocks * sizeof(ExactPage));
  const DeviceMemory row_page(tokens * sizeof(std::uint32_t));
  for (const DeviceMemory* memory : {&q, &k, &v, &page_values}) fill_with_numbers(*memory);
  std::vector<ExactPage> page_list;
  std::vector<std::uint32_t> page_of_row;
  for (std::uint32_t row = 0; row < tokens; ++row) page_of_row.push_back(row / kTileTokens);
  for (std::size_t block = 0; block < blocks; ++block) {
    page_list.push_back({page_values.as<Bf16>() + block * page_elements, 0});
  }
  upload(pages, page_list);
  upload(row_page, page_of_row);

  kernels::cuda::PrefillAttentionArgs args;
  args.heads = kHeads;
  args.kv_heads = kKvHeads;
  args.head_dim = head_dim;
  args.rows = tokens;
  args.scale = 0.088F;
  args.q = q.as<Bf16>();
  args.out = out.as<Bf16>();
  args.stored_k = k.as<Bf16>();
  args.stored_v = v.as<Bf16>();
  args.tokens_stride = tokens;
  args.pages = pages.as<ExactPage>();
  args.row_page = row_page.as<std::uint32_t>();
  args.portable = portable;
  const double seconds = graph_seconds(
      [&](StreamView stream) { kernels::cuda::prefill_attention(args, stream); }, kRounds);
  return 4.0 * head_dim * kHeads * 0.5 * tokens * tokens / seconds;
}

}  // namespace

void measure_decode_attention(Report& report) {
  const double copy = copy_bandwidth() * 1e-9;
  report.add("hbm copy", copy, "GB/s");
  std::vector<std::uint32_t> sixteen;
  for (std::uint32_t i = 0; i < 16; ++i) sixteen.push_back((2048 + i * 409) / 16 * 16);
  const struct {
    const char* name;
    std::vector<std::uint32_t> tokens;
  } steps[] = {{"1 x 32k", {32768}}, {"16 x 2k..8k", sixteen}};
  for (const auto& step : steps) {
    for (const StorageFormat format : {StorageFormat::bf16, StorageFormat::fp8_e4m3}) {
      const bool bf16 = format == StorageFormat::bf16;
      report.add(std::string("decode attention ") + (bf16 ? "bf16 " : "fp8 ") + step.name,
                 decode_bandwidth(format, step.tokens) * 1e-9, "GB/s", (bf16 ? 0.80 : 0.70) * copy);
    }
  }
}

void measure_tail_attention(Report& report) {
  const double copy = copy_bandwidth() * 1e-9;
  for (const StorageFormat format : {StorageFormat::bf16, StorageFormat::fp8_e4m3}) {
    for (const std::uint32_t tokens : {2048U, 8192U, 32768U}) {
      report.add("tail attention " + std::string(format == StorageFormat::bf16 ? "bf16" : "fp8") +
                     " 16 rows at " + std::to_string(tokens / 1024) + "k",
                 tail_bandwidth(format, tokens, 16) * 1e-9, "GB/s", copy);
    }
  }
}

void measure_prefill_attention(Report& report) {
  for (const bool portable : {false, true}) {
    for (const std::uint32_t head_dim : {128U, 64U}) {
      for (const std::uint32_t tokens : {2048U, 8192U, 32768U}) {
        report.add(std::string(portable ? "portable " : "") + "prefill attention dim " +
                       std::to_string(head_dim) + " " + std::to_string(tokens / 1024) + "k",
                   prefill_rate(tokens, head_dim, portable) * 1e-12, "TFLOP/s");
      }
    }
  }
}

}  // namespace kvtier::bench
