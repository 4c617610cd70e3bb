#include "kernels/cuda/gemm.h"

#include <cublasLt.h>

#include <map>
#include <string>
#include <tuple>

#include "core/base/check.h"
#include "kernels/cuda/error.h"

namespace kvtier::kernels::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = 32U << 20;  // what cuBLAS asks for on Hopper
// A prefill's last piece may have any number of rows.
constexpr std::size_t kPlansMax = 4096;

void check_blas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError((std::string(what) + ": " + cublasLtGetStatusName(status)).c_str(),
                  cudaErrorUnknown);
}

// Tuning::prompt and Tuning::answers take the algorithm for so many.
constexpr std::size_t kPromptRows = 2048;
constexpr std::size_t kAnswerRows = 64;
constexpr int kCandidates = 32;

// rows, n, k, type of the result, whether there is a bias, tuning.
using Shape = std::tuple<std::size_t, std::size_t, std::size_t, cudaDataType_t, bool, Tuning>;

// A row-major matrix [rows][columns] is the column-major [columns, rows] that cuBLAS means.
class Layout {
 public:
  Layout(cudaDataType_t type, std::size_t rows, std::size_t columns) {
    check_blas(cublasLtMatrixLayoutCreate(&layout_, type, columns, rows,
                                          static_cast<std::int64_t>(columns)),
               "cublasLtMatrixLayoutCreate");
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const noexcept { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

// One shape's description and the algorithm found for it.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Shape& shape)
      : w_(CUDA_R_16BF, std::get<1>(shape), std::get<2>(shape)),
        x_(CUDA_R_16BF, std::get<0>(shape), std::get<2>(shape)),
        out_(std::get<3>(shape), std::get<0>(shape), std::get<1>(shape)) {
    check_blas(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (std::get<4>(shape)) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    if (std::get<5>(shape) == Tuning::rows) {
      find_algorithm(handle, x_, out_, false);
    } else {
      const std::size_t rows = std::get<5>(shape) == Tuning::prompt ? kPromptRows : kAnswerRows;
      const Layout x(CUDA_R_16BF, rows, std::get<2>(shape));
      const Layout out(std::get<3>(shape), rows, std::get<1>(shape));
      find_algorithm(handle, x, out, true);
    }
  }
  ~Plan() { cublasLtMatmulDescDestroy(operation_); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  void run(cublasLtHandle_t handle, const Bf16* x, const Bf16* w, const Bf16* bias, void* out,
           void* workspace, StreamView stream) {
    if (bias != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const float one = 1;
    const float zero = 0;
    check_blas(
        cublasLtMatmul(handle, operation_, &one, w, w_.get(), x, x_.get(), &zero, out, out_.get(),
                       out, out_.get(), &algorithm_, workspace, kWorkspaceBytes, stream.get()),
        "cublasLtMatmul");
  }

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check_blas(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  }

  // The first that the heuristic names: the same in every process, so that two runs of one prompt
  // round alike. (Timing the others would not be.) `unsplit`: the first that adds up each sum in
  // one go and takes the shape at hand, too.
  void find_algorithm(cublasLtHandle_t handle, const Layout& x, const Layout& out, bool unsplit) {
    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    cublasLtMatmulHeuristicResult_t found[kCandidates]{};
    int count = 0;
    cublasStatus_t status =
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &kWorkspaceBytes, sizeof kWorkspaceBytes);
    if (status == CUBLAS_STATUS_SUCCESS && unsplit) {
      const std::uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
      status = cublasLtMatmulPreferenceSetAttribute(
          preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatmulAlgoGetHeuristic(handle, operation_, w_.get(), x.get(), out.get(),
                                              out.get(), preference, unsplit ? kCandidates : 1,
                                              found, &count);
    }
    cublasLtMatmulPreferenceDestroy(preference);
    check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; ++i) {
      if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
      if (unsplit && !(adds_in_one_go(found[i].algo) && takes_shape(handle, found[i].algo)))
        continue;
      algorithm_ = found[i].algo;
      return;
    }
    check_blas(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic");
  }

  static bool adds_in_one_go(const cublasLtMatmulAlgo_t& algorithm) {
    std::int32_t parts = 0;
    std::size_t written = 0;
    check_blas(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                    &parts, sizeof parts, &written),
               "cublasLtMatmulAlgoConfigGetAttribute");
    return parts <= 1;
  }
  bool takes_shape(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(handle, operation_, w_.get(), x_.get(), out_.get(), out_.get(),
                                   &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspaceBytes;
  }

  Layout w_;
  Layout x_;
  Layout out_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace

struct Gemm::State {
  State() {
    check_blas(cublasLtCreate(&handle), "cublasLtCreate");
    const cudaError_t code = cudaMalloc(&workspace, kWorkspaceBytes);
    if (code != cudaSuccess) cublasLtDestroy(handle);
    check(code, "cudaMalloc of the workspace of matrix products");
  }
  ~State() {
    plans.clear();
    cudaFree(workspace);
    cublasLtDestroy(handle);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void run(const Bf16* x, const Bf16* w, const Bf16* bias, void* out, cudaDataType_t out_type,
           std::size_t rows, std::size_t n, std::size_t k, StreamView stream, Tuning tuning) {
    if (rows == 0) return;
    const Shape shape{rows, n, k, out_type, bias != nullptr, tuning};
    auto place = plans.find(shape);
    if (place == plans.end()) {
      if (plans.size() >= kPlansMax) plans.clear();
      place = plans.try_emplace(shape, handle, shape).first;
    }
    place->second.run(handle, x, w, bias, out, workspace, stream);
  }

  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Shape, Plan> plans;
};

Gemm::Gemm() : state_(std::make_unique<State>()) {}
Gemm::~Gemm() = default;

void Gemm::run(const Bf16* x, const Bf16* w, const Bf16* bias, Bf16* out, std::size_t rows,
               std::size_t n, std::size_t k, StreamView stream, Tuning tuning) {
  state_->run(x, w, bias, out, CUDA_R_16BF, rows, n, k, stream, tuning);
}

void Gemm::run(const Bf16* x, const Bf16* w, float* out, std::size_t rows, std::size_t n,
               std::size_t k, StreamView stream, Tuning tuning) {
  state_->run(x, w, nullptr, out, CUDA_R_32F, rows, n, k, stream, tuning);
}

}  // namespace kvtier::kernels::cuda
