// What one step computes, as arrays that the kernels read, and the launches' own numbers.
//
// Rows are ordered so that single rows of Stage::answer, which attend one by one
// (decode_attention), come before the other inputs, each of which attends as a piece of its
// sequence: those of Stage::answer, then those of Stage::prompt.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine_adapter/reference/model/cuda/step_arena.h"
#include "engine_adapter/reference/model/model.h"
#include "kernels/cuda/kernels.h"

namespace kvtier::engine::cuda {

// Rows of one sequence that attend together.
struct PrefillPiece {
  std::uint32_t sequence;  // in block_tables
  std::uint32_t first_row;
  std::uint32_t start;  // position of the first row
  std::uint32_t rows;
  Stage stage;
};

struct CudaPlan {
  kernels::cuda::StepRows step;   // device arrays
  const std::uint32_t* ids;       // [rows]
  std::uint32_t alone_rows = 0;   // the leading rows that attend one by one, padding included
  std::uint32_t context_max = 0;  // of those: no position is at or beyond it; a power of two
  std::uint32_t answer_rows = 0;  // the leading rows of Stage::answer, padding included
  std::vector<PrefillPiece> pieces;
  bool prompt = false;                    // whether rows are of Stage::prompt
  std::vector<std::byte* const*> tables;  // [sequences], device

  std::uint32_t completed = 0;  // with padding
  const std::uint32_t* completed_pages = nullptr;
  std::byte* const* completed_records = nullptr;
  const std::byte* const* headers_from = nullptr;
  std::byte* const* headers_to = nullptr;

  std::uint32_t logit_rows = 0;
  const std::uint32_t* logit_index = nullptr;         // [logit_rows] -> row
  const kernels::cuda::SampleRow* samples = nullptr;  // [logit_rows], where tokens are chosen
};

// Numbers of the model and the engine that a plan depends on.
struct PlanShape {
  RecordLayout layout;
  std::size_t page_elements = 0;           // K and V of one block in one layer
  kernels::cuda::Bf16* scratch = nullptr;  // pages of scratch_layers, for whole blocks
  std::uint32_t scratch_layers = 1;        // 1: of one layer at a time
  std::byte* spare = nullptr;  // [rows of a padded step][header_bytes]: written, not read
};

std::size_t header_bytes(const RecordLayout& layout) noexcept;

class Planner {
 public:
  explicit Planner(const PlanShape& shape) : shape_(shape) {}

  // Plans `inputs` and appends their tokens to their sequences, whose blocks are reserved.
  // `padded_rows`: for a step of one row an input, the rows it is padded to; else 0. `choices` is
  // empty where no tokens are chosen. The plan is good until the next.
  const CudaPlan& plan(std::span<const StepInput> inputs, std::span<const Choice> choices,
                       std::uint32_t padded_rows);
  // Whether the arrays of the last plan are elsewhere than those of the one before.
  bool moved() const noexcept { return moved_; }
  void send(StreamView stream) { arena_.send(stream); }

 private:
  // Host views of the arrays that are filled.
  struct Arrays {
    Staged<std::uint32_t> ids, positions, row_sequence, row_page, completed_pages, logit_index;
    Staged<kernels::cuda::ExactPage> pages;
    Staged<std::byte*> completed_records, headers_to;
    Staged<const std::byte*> headers_from;
    Staged<std::byte> headers;
    Staged<kernels::cuda::SampleRow> samples;
    Staged<std::byte* const*> tables;
  };
  struct Counts {
    std::uint32_t rows = 0, pages = 0, completed = 0, logits = 0, sequences = 0;
    std::size_t blocks = 0;
  };

  Counts count(std::span<const StepInput> inputs, std::uint32_t padded_rows) const;
  void take(const Counts& counts, bool choosing);
  void place(const StepInput& input, std::uint32_t sequence, bool alone);
  void place_blocks(const StepInput& input, std::uint32_t first_row);
  void place_headers(const StepInput& input);
  void place_table(const StepInput& input, std::uint32_t sequence);

  PlanShape shape_;
  StepArena arena_;
  bool moved_ = false;
  CudaPlan plan_;
  Arrays arrays_;
  std::uint32_t rows_ = 0, pages_ = 0, scratch_pages_ = 0, completed_ = 0;
  std::vector<std::byte> header_;  // of one record
};

}  // namespace kvtier::engine::cuda
