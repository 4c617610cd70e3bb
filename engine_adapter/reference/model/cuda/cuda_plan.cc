#include "engine_adapter/reference/model/cuda/cuda_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/check.h"
#include "engine_adapter/reference/model/step_blocks.h"

namespace kvtier::engine::cuda {

using kernels::cuda::ExactPage;
using kernels::cuda::kNoSequence;
using kernels::cuda::SampleRow;

namespace {

// Contexts are rounded up to powers of two from here, for few different graphs.
constexpr std::uint32_t kContextMin = 1024;

// In the order of their rows.
enum class Group : std::uint8_t { alone, answer, prompt };
constexpr Group kGroups[] = {Group::alone, Group::answer, Group::prompt};

Group group_of(const StepInput& input) noexcept {
  if (input.stage == Stage::prompt) return Group::prompt;
  return input.tokens.size() == 1 ? Group::alone : Group::answer;
}

}  // namespace

// Header and proof; the scales behind them are the kernels'.
std::size_t header_bytes(const RecordLayout& layout) noexcept {
  return layout.proof_offset + std::size_t{layout.block_tokens} * sizeof(Token);
}

Planner::Counts Planner::count(std::span<const StepInput> inputs, std::uint32_t padded_rows) const {
  Counts counts;
  for (const StepInput& input : inputs) {
    counts.rows += static_cast<std::uint32_t>(input.tokens.size());
    counts.logits += input.logit_rows;
    counts.blocks += input.sequence->records().size();
    for_each_touched(input, shape_.layout.block_tokens, [&](const TouchedBlock& touched) {
      ++counts.pages;
      if (touched.completed) ++counts.completed;
    });
  }
  counts.sequences = static_cast<std::uint32_t>(inputs.size());
  if (padded_rows != 0) {
    KVTIER_CHECK(counts.rows == inputs.size() && counts.rows <= padded_rows);
    counts.rows = counts.pages = counts.completed = counts.sequences = padded_rows;
    if (counts.logits != 0) counts.logits = padded_rows;
  }
  return counts;
}

// The tables, whose sizes change from step to step, come last: all else stays where it is.
void Planner::take(const Counts& counts, bool choosing) {
  const std::size_t header = header_bytes(shape_.layout);
  const std::size_t room =
      StepArena::room<std::uint32_t>(counts.rows) * 4 + StepArena::room<ExactPage>(counts.pages) +
      StepArena::room<std::byte>(counts.completed * (header + 4 * sizeof(void*))) +
      StepArena::room<std::byte>(0) * 4 + StepArena::room<std::uint32_t>(counts.logits) +
      StepArena::room<SampleRow>(counts.logits) + StepArena::room<void*>(counts.sequences) +
      StepArena::room<void*>(1) * counts.sequences + counts.blocks * sizeof(void*);
  moved_ = arena_.begin(room);
  arrays_.ids = arena_.take<std::uint32_t>(counts.rows);
  arrays_.positions = arena_.take<std::uint32_t>(counts.rows);
  arrays_.row_sequence = arena_.take<std::uint32_t>(counts.rows);
  arrays_.row_page = arena_.take<std::uint32_t>(counts.rows);
  arrays_.pages = arena_.take<ExactPage>(counts.pages);
  arrays_.completed_pages = arena_.take<std::uint32_t>(counts.completed);
  arrays_.completed_records = arena_.take<std::byte*>(counts.completed);
  arrays_.headers_from = arena_.take<const std::byte*>(counts.completed);
  arrays_.headers_to = arena_.take<std::byte*>(counts.completed);
  arrays_.headers = arena_.take<std::byte>(counts.completed * header);
  arrays_.logit_index = arena_.take<std::uint32_t>(counts.logits);
  arrays_.samples = arena_.take<SampleRow>(choosing ? counts.logits : 0);
  arrays_.tables = arena_.take<std::byte* const*>(counts.sequences);
  for (std::uint32_t& sequence : arrays_.row_sequence.host) sequence = kNoSequence;
  for (std::uint32_t i = 0; i < counts.completed; ++i) {
    arrays_.headers_from.host[i] = arrays_.headers.device + i * header;
    // Where a padded step completes nothing in this place.
    arrays_.headers_to.host[i] = shape_.spare + i * header;
  }
}

const CudaPlan& Planner::plan(std::span<const StepInput> inputs, std::span<const Choice> choices,
                              std::uint32_t padded_rows) {
  const Counts counts = count(inputs, padded_rows);
  take(counts, !choices.empty());
  rows_ = pages_ = scratch_pages_ = completed_ = 0;
  plan_.pieces.clear();
  plan_.tables.assign(inputs.size(), nullptr);
  plan_.context_max = 0;
  plan_.prompt = false;
  std::vector<std::uint32_t> first_rows(inputs.size());
  for (const Group group : kGroups) {
    for (std::uint32_t i = 0; i < inputs.size(); ++i) {
      if (group_of(inputs[i]) != group) continue;
      first_rows[i] = rows_;
      place(inputs[i], i, group == Group::alone);
    }
    const std::uint32_t rows = padded_rows != 0 ? padded_rows : rows_;
    if (group == Group::alone) plan_.alone_rows = rows;
    if (group == Group::answer) plan_.answer_rows = rows;
  }
  std::uint32_t logit = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto tokens = static_cast<std::uint32_t>(inputs[i].tokens.size());
    KVTIER_CHECK(inputs[i].logit_rows <= tokens);
    if (!choices.empty() && inputs[i].logit_rows == 1) {
      const Choice& choice = choices[i];
      arrays_.samples.host[logit] = {.temperature = static_cast<float>(choice.options.temperature),
                                     .top_k = choice.options.top_k,
                                     .top_p = static_cast<float>(choice.options.top_p),
                                     .uniform = choice.unit};
    }
    for (std::uint32_t row = tokens - inputs[i].logit_rows; row < tokens; ++row) {
      arrays_.logit_index.host[logit++] = first_rows[i] + row;
    }
  }
  plan_.step = {.rows = counts.rows,
                .positions = arrays_.positions.device,
                .row_sequence = arrays_.row_sequence.device,
                .row_page = arrays_.row_page.device,
                .pages = arrays_.pages.device,
                .block_tables = arrays_.tables.device};
  plan_.ids = arrays_.ids.device;
  plan_.completed = counts.completed;
  plan_.completed_pages = arrays_.completed_pages.device;
  plan_.completed_records = arrays_.completed_records.device;
  plan_.headers_from = arrays_.headers_from.device;
  plan_.headers_to = arrays_.headers_to.device;
  plan_.logit_rows = counts.logits;
  plan_.logit_index = arrays_.logit_index.device;
  plan_.samples = choices.empty() ? nullptr : arrays_.samples.device;
  plan_.context_max = std::bit_ceil(std::max(plan_.context_max, kContextMin));
  return plan_;
}

void Planner::place(const StepInput& input, std::uint32_t sequence, bool alone) {
  const std::uint32_t start = input.sequence->length();
  const auto tokens = static_cast<std::uint32_t>(input.tokens.size());
  const std::uint32_t first_row = rows_;
  for (std::uint32_t i = 0; i < tokens; ++i, ++rows_) {
    arrays_.ids.host[rows_] = input.tokens[i];
    arrays_.positions.host[rows_] = start + i;
    arrays_.row_sequence.host[rows_] = sequence;
  }
  if (alone) {
    plan_.context_max = std::max(plan_.context_max, start + tokens);
  } else {
    plan_.pieces.push_back({sequence, first_row, start, tokens, input.stage});
    plan_.prompt = plan_.prompt || input.stage == Stage::prompt;
  }
  place_blocks(input, first_row);
  place_table(input, sequence);
  place_headers(input);
}

void Planner::place_blocks(const StepInput& input, std::uint32_t first_row) {
  const Sequence& sequence = *input.sequence;
  for_each_touched(input, shape_.layout.block_tokens, [&](const TouchedBlock& touched) {
    ExactPage& page = arrays_.pages.host[pages_];
    if (touched.is_whole()) {
      page = {.values =
                  shape_.scratch + scratch_pages_++ * shape_.page_elements * shape_.scratch_layers,
              .layer_stride = shape_.scratch_layers > 1 ? shape_.page_elements : 0};
    } else {
      const ExactBlock block =
          touched.was_open() ? sequence.open_block() : sequence.next_open_block();
      page = {.values = reinterpret_cast<kernels::cuda::Bf16*>(block.values),
              .layer_stride = shape_.page_elements};
    }
    for (std::uint32_t token = 0; token < touched.tokens; ++token) {
      arrays_.row_page.host[first_row + touched.first_row + token] = pages_;
    }
    if (touched.completed) {
      std::byte* const record = sequence.records()[touched.block];
      arrays_.completed_pages.host[completed_] = pages_;
      arrays_.completed_records.host[completed_] = record;
      arrays_.headers_to.host[completed_++] = record;
    }
    ++pages_;
  });
}

// Appends the tokens, which makes the keys, and lays the headers of the blocks that they complete
// where place_blocks() said they would be.
void Planner::place_headers(const StepInput& input) {
  Sequence& sequence = *input.sequence;
  const std::uint32_t first = sequence.blocks_complete();
  sequence.append(input.tokens);
  const std::uint32_t made = sequence.blocks_complete() - first;
  const std::size_t bytes = header_bytes(shape_.layout);
  header_.resize(shape_.layout.header_bytes);
  for (std::uint32_t i = 0; i < made; ++i) {
    sequence.write_header(first + i, header_);
    std::memcpy(arrays_.headers.host.data() + (completed_ - made + i) * bytes, header_.data(),
                bytes);
  }
}

void Planner::place_table(const StepInput& input, std::uint32_t sequence) {
  const auto records = input.sequence->records();
  const Staged<std::byte*> table = arena_.take<std::byte*>(records.size());
  std::ranges::copy(records, table.host.begin());
  arrays_.tables.host[sequence] = table.device;
  plan_.tables[sequence] = table.device;
}

}  // namespace kvtier::engine::cuda
