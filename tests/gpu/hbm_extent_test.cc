// Extents of GPU memory: made without a context, taken over by their descriptors, the same memory
// wherever they are mapped; and that what core/base/cuda_driver_abi.h says is what cuda.h says.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/base/cuda_driver.h"
#include "core/base/cuda_driver_abi.h"
#include "core/base/units.h"
#include "storage/memory/extent.h"

namespace kvtier::storage {
namespace {

namespace abi = cuda_abi;
static_assert(sizeof(abi::AllocationProp) == sizeof(CUmemAllocationProp));
static_assert(offsetof(abi::AllocationProp, handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(abi::AllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(abi::AllocationProp, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(abi::AccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(abi::AccessDesc, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(abi::AllocationHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(abi::Address) == sizeof(CUdeviceptr));
static_assert(abi::kPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(abi::kPosixDescriptor == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(abi::kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(abi::kRecommended == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
static_assert(abi::kReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(abi::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(abi::kVirtualMemorySupported ==
              CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(abi::kDescriptorSupported ==
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);

class HbmExtentTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto driver = CudaDriver::get();
    if (!driver) GTEST_SKIP() << driver.error().message;
    if ((*driver)->devices().value() == 0) GTEST_SKIP() << "no GPU here";
    extents = std::move(*make_cuda_extents(0));
    shape = {4 * extents->granularity(), 64_KiB};
  }
  static UniqueFd copy_of(int fd) { return UniqueFd(::dup(fd)); }

  std::unique_ptr<MemoryExtents> extents;
  Extent::Shape shape;
};

TEST_F(HbmExtentTest, no_context_is_made_and_no_byte_can_be_addressed) {
  auto extent = std::move(*extents->create(ExtentId(7), shape));
  EXPECT_EQ(extent->kind(), Extent::Kind::cuda);
  EXPECT_EQ(extent->tier(), Tier::device);
  EXPECT_TRUE(extent->slot(0).empty());
  EXPECT_EQ(extent->shape().slots(), shape.bytes / 64_KiB);
}

TEST_F(HbmExtentTest, what_is_written_through_one_mapping_is_there_in_an_adopted_one) {
  auto extent = std::move(*extents->create(ExtentId(8), shape));
  extent->table().set_reserved(3, {10, 20});
  UniqueFd memory = copy_of(extent->memory_fd());
  UniqueFd table = copy_of(extent->table().fd());
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  const CudaDriver& driver = *CudaDriver::get().value();
  {
    const auto mapped = driver.map(extent->memory_fd(), shape.bytes, 0);
    ASSERT_TRUE(mapped) << mapped.error().message;
    ASSERT_EQ(cudaMemset(mapped->data(), 0x5A, shape.bytes), cudaSuccess);
    driver.unmap(*mapped);
  }
  extent.reset();  // the descriptor alone holds the memory
  auto adopted = adopt_cuda_extent(0, std::move(memory), std::move(table));
  ASSERT_TRUE(adopted) << adopted.error().message;
  EXPECT_EQ((*adopted)->id(), ExtentId(8));
  EXPECT_EQ((*adopted)->table().entry(3).owner_pid, 10U);
  const auto mapped = driver.map((*adopted)->memory_fd(), shape.bytes, 0);
  ASSERT_TRUE(mapped);
  std::vector<std::byte> bytes(shape.bytes);
  ASSERT_EQ(cudaMemcpy(bytes.data(), mapped->data(), shape.bytes, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0x5A}; }));
  driver.unmap(*mapped);
}

TEST_F(HbmExtentTest, fresh_memory_is_zero) {
  auto extent = std::move(*extents->create(ExtentId(9), shape));
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  const CudaDriver& driver = *CudaDriver::get().value();
  const auto mapped = driver.map(extent->memory_fd(), shape.bytes, 0);
  ASSERT_TRUE(mapped);
  std::vector<std::byte> bytes(shape.bytes, std::byte{1});
  ASSERT_EQ(cudaMemcpy(bytes.data(), mapped->data(), shape.bytes, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; }));
  driver.unmap(*mapped);
}

TEST_F(HbmExtentTest, another_kind_of_device_file_is_not_adopted) {
  auto extent = std::move(*extents->create(ExtentId(10), shape));
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const auto adopted = adopt_cuda_extent(0, std::move(null), copy_of(extent->table().fd()));
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().code, Errc::corrupt);
}

TEST_F(HbmExtentTest, more_than_there_is_is_no_space) {
  const std::uint64_t much = 1ULL << 40;
  const auto extent = extents->create(ExtentId(11), {much, 64_KiB});
  ASSERT_FALSE(extent);
  EXPECT_EQ(extent.error().code, Errc::no_space) << extent.error().message;
}

TEST_F(HbmExtentTest, a_gpu_that_is_not_there_is_named) {
  const auto missing = make_cuda_extents(63);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::invalid);
  EXPECT_NE(missing.error().message.find("there is no GPU 63"), std::string::npos);
}

}  // namespace
}  // namespace kvtier::storage
