// Where the library is built without CUDA.
#include "client/transfer/gpu.h"

namespace kvtier::transfer {

Result<std::shared_ptr<Gpu>> open_gpu(std::uint32_t cuda_device) {
  return make_error(Errc::unavailable, "cuda_device is " + std::to_string(cuda_device) +
                                           ", and this libkvtier was built without CUDA: build it "
                                           "with -DKVTIER_CUDA=ON, or leave cuda_device unset");
}

}  // namespace kvtier::transfer
