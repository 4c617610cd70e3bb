// What launching the kernels of several files needs: types to template arguments, index arithmetic,
// the layout of a record as a kernel argument.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/base/check.h"
#include "kernels/cuda/error.h"
#include "kvtier/dtype.h"
#include "kvtier/record_layout.h"

namespace kvtier::kernels::cuda {

template <DType kValue>
struct TypeTag {
  static constexpr DType kType = kValue;
};

// f(TypeTag<type>) for a type of pages.
template <typename F>
void with_page_type(DType type, const F& f) {
  switch (type) {
    case DType::f32:
      return f(TypeTag<DType::f32>{});
    case DType::f16:
      return f(TypeTag<DType::f16>{});
    case DType::bf16:
      return f(TypeTag<DType::bf16>{});
    default:
      check_failed("pages are f32, f16 or bf16", __FILE__, __LINE__);
  }
}

// f(TypeTag<type of the stored elements>).
template <typename F>
void with_stored_type(StorageFormat format, const F& f) {
  switch (format) {
    case StorageFormat::fp8_e4m3:
      return f(TypeTag<DType::fp8_e4m3>{});
    case StorageFormat::fp8_e5m2:
      return f(TypeTag<DType::fp8_e5m2>{});
    case StorageFormat::bf16:
      return f(TypeTag<DType::bf16>{});
    case StorageFormat::f32:
      return f(TypeTag<DType::f32>{});
    case StorageFormat::raw:
    case StorageFormat::int8:
    case StorageFormat::int4:
      break;
  }
  check_failed("a storage format without elements", __FILE__, __LINE__);
}

// Division of numbers below 2^31 by one found at run time: a multiplication and a shift (Granlund,
// Montgomery: Division by invariant integers using multiplication, 1994).
class FastDivide {
 public:
  static constexpr std::uint64_t kLimit = 1ULL << 31;

  explicit FastDivide(std::uint32_t divisor)
      : divisor_(divisor), shift_(31 + std::bit_width(divisor - 1)) {
    KVTIER_CHECK(divisor != 0 && divisor < kLimit);
    factor_ = static_cast<std::uint32_t>(((1ULL << shift_) + divisor - 1) / divisor);
  }
  __host__ __device__ std::uint32_t quotient(std::uint32_t n) const {
    return static_cast<std::uint32_t>((static_cast<std::uint64_t>(n) * factor_) >> shift_);
  }
  __host__ __device__ std::uint32_t divisor() const { return divisor_; }

 private:
  std::uint32_t divisor_;
  std::uint32_t shift_;
  std::uint32_t factor_;
};

// K's and V's heads of one layer: [K then V][head][elements], elements being block_tokens *
// head_dim.
struct SideLayout {
  std::uint32_t kv_heads;
  std::uint32_t k_elements;
  std::uint32_t v_elements;
  std::uint64_t header_bytes;
  std::uint64_t layer_bytes;
  std::uint64_t scales_offset;

  explicit SideLayout(const RecordLayout& layout)
      : kv_heads(layout.kv_heads),
        k_elements(layout.block_tokens * layout.head_dim_k),
        v_elements(layout.block_tokens * layout.head_dim_v),
        header_bytes(layout.header_bytes),
        layer_bytes(layout.layer_bytes),
        scales_offset(layout.scales_offset) {}

  // Of K, then of V, of a layer.
  __device__ std::uint64_t scale_offset(std::uint32_t layer, std::uint32_t side_head) const {
    return scales_offset + (static_cast<std::uint64_t>(layer) * 2 * kv_heads + side_head) * 4;
  }
};

// Multiprocessors of the current device.
inline std::uint32_t processors() {
  int device = 0;
  int count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  return static_cast<std::uint32_t>(count);
}

constexpr std::uint32_t divided_up(std::uint64_t n, std::uint64_t d) {
  return static_cast<std::uint32_t>((n + d - 1) / d);
}

}  // namespace kvtier::kernels::cuda
