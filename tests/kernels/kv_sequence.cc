#include "tests/kernels/kv_sequence.h"

#include <cstring>

#include "kvtier/namespace.h"
#include "tests/kernels/isa.h"
#include "tests/kernels/reference_head.h"

namespace kvtier::kernels {

RecordLayout KvShape::layout() const {
  Namespace ns;
  ns.model = "test";
  ns.layers = layers;
  ns.kv_heads = kv_heads;
  ns.head_dim_k = head_dim_k;
  ns.head_dim_v = head_dim_v;
  ns.block_tokens = block_tokens;
  ns.format = format;
  return RecordLayout::of(ns);
}

float stored_value(const RecordLayout& layout, const std::byte* record, std::uint32_t layer, bool v,
                   std::size_t head, std::size_t token, std::size_t dim) {
  const HeadShape shape{layout.format, layout.block_tokens,
                        v ? layout.head_dim_v : layout.head_dim_k, v};
  float scale = 1;
  if (has_scales(layout.format)) {
    std::memcpy(&scale, record + layout.scale_offset(layer, v, head), sizeof scale);
  }
  const std::byte* bytes =
      record + (v ? layout.v_offset(layer, head) : layout.k_offset(layer, head));
  return reference_value(shape, bytes, scale, token, dim);
}

KvSequence::KvSequence(const KvShape& shape, std::size_t tokens, unsigned seed)
    : shape_(shape), layout_(shape.layout()) {
  const std::size_t blocks = (tokens + shape.block_tokens - 1) / shape.block_tokens;
  const std::size_t complete = tokens / shape.block_tokens;
  std::vector<void*> k_pages;
  std::vector<void*> v_pages;
  std::vector<std::byte*> records;
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto block_seed = static_cast<unsigned>(seed * 1000 + block * 2);
    exact_k_.push_back(random_floats(shape.k_page_elements(), block_seed));
    exact_v_.push_back(random_floats(shape.v_page_elements(), block_seed + 1));
  }
  for (std::size_t block = 0; block < complete; ++block) {
    records_.emplace_back(layout_.record_bytes);
    k_pages.push_back(exact_k_[block].data());
    v_pages.push_back(exact_v_[block].data());
    records.push_back(records_.back().data());
    record_pointers_.push_back(records.back());
  }
  const LayerLayout of_layer = layout_.layer(kLayer);
  cpu_kernels_named("portable")
      ->quantise_and_scatter(
          {.layout = &of_layer,
           .blocks = static_cast<std::uint32_t>(complete),
           .page_tokens = shape.block_tokens,
           .page_type = DType::f32,
           .k = head_major(k_pages.data(), shape.block_tokens, shape.head_dim_k, DType::f32),
           .v = head_major(v_pages.data(), shape.block_tokens, shape.head_dim_v, DType::f32),
           .records = records.data()});
}

SequenceKv KvSequence::view(const std::vector<std::uint32_t>& positions) {
  k_pointers_.assign(exact_k_.size(), nullptr);
  v_pointers_.assign(exact_v_.size(), nullptr);
  for (const std::uint32_t position : positions) {
    const std::size_t block = position / shape_.block_tokens;
    k_pointers_[block] = exact_k_[block].data();
    v_pointers_[block] = exact_v_[block].data();
  }
  return {record_pointers_.data(), k_pointers_.data(), v_pointers_.data()};
}

float KvSequence::seen_value(std::uint32_t position, bool v, std::size_t head, std::uint32_t token,
                             std::size_t dim) const {
  const std::size_t block = token / shape_.block_tokens;
  const std::size_t in_block = token % shape_.block_tokens;
  if (block != position / shape_.block_tokens) {
    return stored_value(layout_, records_[block].data(), kLayer, v, head, in_block, dim);
  }
  const std::size_t head_dim = v ? shape_.head_dim_v : shape_.head_dim_k;
  const auto& page = (v ? exact_v_ : exact_k_)[block];
  return page[(head * shape_.block_tokens + in_block) * head_dim + dim];
}

}  // namespace kvtier::kernels
