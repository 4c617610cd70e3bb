#include "kernels/cuda/gemm.h"

#include <cublasLt.h>

#include <compare>
#include <map>
#include <string>

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

// From a row of a matrix to the next, and from a head's to the next head's.
struct Steps {
  std::size_t row = 0, head = 0;
  friend auto operator<=>(const Steps&, const Steps&) = default;
};

struct Shape {
  std::size_t rows, n, k;
  cudaDataType_t out_type;
  bool bias;
  Tuning tuning;
  std::size_t heads;
  Steps x, w, out;
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

Shape plain_shape(std::size_t rows, std::size_t n, std::size_t k, cudaDataType_t out_type,
                  bool bias, Tuning tuning) {
  return {rows, n, k, out_type, bias, tuning, 1, {.row = k}, {.row = k}, {.row = n}};
}

// A row-major matrix [rows][columns] is the column-major [columns, rows] that cuBLAS means.
class Layout {
 public:
  Layout(cudaDataType_t type, std::size_t rows, std::size_t columns, const Steps& steps,
         std::size_t heads) {
    check_blas(cublasLtMatrixLayoutCreate(&layout_, type, columns, rows,
                                          static_cast<std::int64_t>(steps.row)),
               "cublasLtMatrixLayoutCreate");
    if (heads == 1) return;
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(heads));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, static_cast<std::int64_t>(steps.head));
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const noexcept { return layout_; }

 private:
  template <typename T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
    check_blas(cublasLtMatrixLayoutSetAttribute(layout_, attribute, &value, sizeof value),
               "cublasLtMatrixLayoutSetAttribute");
  }

  cublasLtMatrixLayout_t layout_ = nullptr;
};

// One shape's description and the algorithm found for it.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Shape& shape)
      : aligned_(shape.heads == 1),
        w_(CUDA_R_16BF, shape.n, shape.k, shape.w, shape.heads),
        x_(CUDA_R_16BF, shape.rows, shape.k, shape.x, shape.heads),
        out_(shape.out_type, shape.rows, shape.n, shape.out, shape.heads) {
    check_blas(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (shape.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    if (shape.tuning == Tuning::rows) {
      find_algorithm(handle, x_, out_, Wanted::best);
    } else {
      const std::size_t rows = shape.tuning == Tuning::prompt ? kPromptRows : kAnswerRows;
      const Layout x(CUDA_R_16BF, rows, shape.k, shape.x, shape.heads);
      const Layout out(shape.out_type, rows, shape.n, shape.out, shape.heads);
      find_algorithm(handle, x, out,
                     shape.tuning == Tuning::prompt ? Wanted::for_all_unsplit : Wanted::for_all);
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

  enum class Wanted : std::uint8_t { best, for_all, for_all_unsplit };

  // The first that the heuristic names: the same in every process, so that two runs of one prompt
  // round alike. (Timing the others would not be.) For all numbers of rows: the first that takes
  // the shape at hand, too. Unsplit: that adds up each sum in one go; few rows are too slow that
  // way, and parts of a fixed number are added up in a fixed order.
  void find_algorithm(cublasLtHandle_t handle, const Layout& x, const Layout& out, Wanted wanted) {
    const bool unsplit = wanted == Wanted::for_all_unsplit;
    const bool for_all = wanted != Wanted::best;
    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    cublasLtMatmulHeuristicResult_t found[kCandidates]{};
    int count = 0;
    cublasStatus_t status =
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &kWorkspaceBytes, sizeof kWorkspaceBytes);
    if (status == CUBLAS_STATUS_SUCCESS && !aligned_) status = take_any_place(preference);
    if (status == CUBLAS_STATUS_SUCCESS && unsplit) {
      const std::uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
      status = cublasLtMatmulPreferenceSetAttribute(
          preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = cublasLtMatmulAlgoGetHeuristic(handle, operation_, w_.get(), x.get(), out.get(),
                                              out.get(), preference, for_all ? kCandidates : 1,
                                              found, &count);
    }
    cublasLtMatmulPreferenceDestroy(preference);
    check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; ++i) {
      if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
      if (unsplit && !adds_in_one_go(found[i].algo)) continue;
      if (for_all && !takes_shape(handle, found[i].algo)) continue;
      algorithm_ = found[i].algo;
      return;
    }
    check_blas(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic");
  }

  // A head's matrix begins anywhere, by 16 bytes.
  static cublasStatus_t take_any_place(cublasLtMatmulPreference_t preference) {
    constexpr std::uint32_t kBytes = 16;
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      const cublasStatus_t status =
          cublasLtMatmulPreferenceSetAttribute(preference, attribute, &kBytes, sizeof kBytes);
      if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
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

  bool aligned_;
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

  void run(const Bf16* x, const Bf16* w, const Bf16* bias, void* out, const Shape& shape,
           StreamView stream) {
    if (shape.rows == 0) return;
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
  state_->run(x, w, bias, out, plain_shape(rows, n, k, CUDA_R_16BF, bias != nullptr, tuning),
              stream);
}

void Gemm::run(const Bf16* x, const Bf16* w, float* out, std::size_t rows, std::size_t n,
               std::size_t k, StreamView stream, Tuning tuning) {
  state_->run(x, w, nullptr, out, plain_shape(rows, n, k, CUDA_R_32F, false, tuning), stream);
}

void Gemm::run(const HeadProducts& of, StreamView stream, Tuning tuning) {
  const Shape shape{of.rows,
                    of.n,
                    of.k,
                    CUDA_R_16BF,
                    false,
                    tuning,
                    of.heads,
                    {of.x_row, of.x_head},
                    {of.k, of.w_head},
                    {of.out_row, of.out_head}};
  state_->run(of.x, of.w, nullptr, of.out, shape, stream);
}

}  // namespace kvtier::kernels::cuda
