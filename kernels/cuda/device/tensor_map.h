// Tensor maps for the tensor memory accelerator, by the driver's own function, which is looked up:
// nothing links with the driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "core/base/check.h"
#include "kernels/cuda/error.h"

namespace kvtier::kernels::cuda::device {

// A three-dimensional array of BF16, the innermost dimension dense; boxes are copied with 128-byte
// rows, swizzled, and with zeros where they reach outside.
struct TensorMapOptions {
  const void* memory = nullptr;            // 16-byte aligned
  std::array<std::uint64_t, 3> sizes{};    // elements, innermost first
  std::array<std::uint64_t, 2> strides{};  // bytes, of the second and third dimension
  std::array<std::uint32_t, 3> box{};
};

inline CUtensorMap tensor_map(const TensorMapOptions& options) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    KVTIER_CHECK(found == cudaDriverEntryPointSuccess);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  constexpr std::array<std::uint32_t, 3> kEveryElement = {1, 1, 1};
  CUtensorMap map = {};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(options.memory),
             options.sizes.data(), options.strides.data(), options.box.data(), kEveryElement.data(),
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  KVTIER_CHECK(result == CUDA_SUCCESS);
  return map;
}

}  // namespace kvtier::kernels::cuda::device
