// One sequence of random K and V for tests: exact pages, and records of its complete blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace kvtier::kernels {

inline constexpr std::byte kPoison{0xA5};  // what was not written
inline constexpr StorageFormat kFormats[] = {StorageFormat::fp8_e4m3, StorageFormat::fp8_e5m2,
                                             StorageFormat::bf16,     StorageFormat::f32,
                                             StorageFormat::int8,     StorageFormat::int4};
inline constexpr DType kPageTypes[] = {DType::f32, DType::f16, DType::bf16};

struct KvShape {
  std::uint32_t kv_heads = 2;
  std::uint32_t head_dim_k = 64;
  std::uint32_t head_dim_v = 64;
  std::uint32_t block_tokens = 16;
  StorageFormat format = StorageFormat::fp8_e4m3;
  std::uint32_t layers = 2;

  RecordLayout layout() const;
  std::size_t k_page_elements() const { return std::size_t{kv_heads} * block_tokens * head_dim_k; }
  std::size_t v_page_elements() const { return std::size_t{kv_heads} * block_tokens * head_dim_v; }
};

// One stored number, by the definition of its format.
float stored_value(const RecordLayout& layout, const std::byte* record, std::uint32_t layer, bool v,
                   std::size_t head, std::size_t token, std::size_t dim);

class KvSequence {
 public:
  static constexpr std::uint32_t kLayer = 1;

  KvSequence(const KvShape& shape, std::size_t tokens, unsigned seed);

  // What a kernel may read for rows at `positions`: the exact pages of their own blocks only.
  SequenceKv view(const std::vector<std::uint32_t>& positions);

  // What the row at `position` sees of `token` ("as stored" before its own block).
  float seen_value(std::uint32_t position, bool v, std::size_t head, std::uint32_t token,
                   std::size_t dim) const;

  std::vector<float>& exact_page(bool v, std::size_t block) {
    return (v ? exact_v_ : exact_k_)[block];
  }

 private:
  KvShape shape_;
  RecordLayout layout_;
  std::vector<std::vector<float>> exact_k_;
  std::vector<std::vector<float>> exact_v_;
  std::vector<std::vector<std::byte>> records_;
  std::vector<const std::byte*> record_pointers_;
  std::vector<const float*> k_pointers_;
  std::vector<const float*> v_pointers_;
};

}  // namespace kvtier::kernels
