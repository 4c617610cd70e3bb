// What the kernels of every instruction set share: threads, scratch memory, checks, and where one
// layer lies in a record. Nothing here is inline: these functions must not be emitted by a
// translation unit that is compiled for an instruction set the processor may lack.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"

namespace kvtier::kernels {

using TaskFunction = void (*)(const void* context, std::size_t task);

// Runs task 0 .. tasks-1, each once, in any order, on the calling thread and, where `work`
// (roughly, the multiply-adds of all tasks together) is worth waking them, on the pool's. Returns
// when all are done. Any number of threads may call it at once. A task must not call it.
void parallel_for(std::size_t tasks, std::size_t work, TaskFunction function, const void* context);

// The calling thread's buffer of at least `bytes`, 64-byte aligned; grows once to the largest size
// asked for. The contents last until the same thread asks for the same slot again.
enum class ScratchSlot : std::uint8_t { call, task };
void* scratch(ScratchSlot slot, std::size_t bytes);

// Aborts with `what` where the caller broke a kernel's contract.
void check_shape(bool holds, const char* what) noexcept;

// K or V of one layer: head h's elements at payload_offset + h * head_bytes of the record, its
// scale at scale_offset + h * 4.
struct SideView {
  std::size_t payload_offset;
  std::size_t head_bytes;
  std::size_t scale_offset;
  std::size_t head_dim;
  // Of integers in groups (kvtier/groups.h); else 0.
  std::size_t row_bytes;
  std::size_t group_tokens;
  std::size_t group_channels;
  std::size_t channel_groups;
  std::size_t group_scales_offset;  // in a head
};

struct LayerView {
  SideView k;
  SideView v;
  std::size_t kv_heads;
  std::size_t block_tokens;
  int integer_bits;  // 8 or 4: integers in groups; 0: elements that stand alone,
  DType type;        // of this type
  bool scaled;
  float largest_finite;  // of the stored type, where scaled
};

LayerView layer_view(const LayerLayout& layout) noexcept;
// Of a record whose layers are alike.
LayerView layer_view(const RecordLayout& layout, std::uint32_t layer) noexcept;

}  // namespace kvtier::kernels
