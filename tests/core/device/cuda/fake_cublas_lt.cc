// A cublasLt without GPUs, as a library that a test loads instead of the real one. It goes with the
// fake of CUDA's runtime (fake_cuda.h), which the test exports to it (-rdynamic): products are work
// of the fake's streams. It offers what core/device/cuda/matrix_products.cc calls, and refuses what
// that never asks for.

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/core/device/cuda/fake_cuda.h"

struct cublasLtContext {
  int unused = 0;
};

namespace {

using psd::testing::BeginFakeCall;
using psd::testing::CountFakeObjects;

// The positions of the attributes in the arrays of the opaque objects.
enum Operation { kCompute, kScale, kTransA, kTransB };
enum Layout { kType, kRows, kCols, kStride };
enum Preference { kWorkspace, kAlignment };  // of A, B, C and D
constexpr uint64_t kWorkspaceBytes = 1000;

cublasStatus_t Begin(const char* function) {
  return static_cast<cublasStatus_t>(BeginFakeCall(function));
}

template <typename T>
cublasStatus_t Create(const char* function, T** made, const T& value) {
  const cublasStatus_t status = Begin(function);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  *made = new T(value);
  CountFakeObjects(1);
  return status;
}

template <typename T>
cublasStatus_t Destroy(T* object) {
  delete object;
  CountFakeObjects(-1);
  return CUBLAS_STATUS_SUCCESS;
}

// One operand or the result.
struct Matrix {
  Matrix(const void* address, const cublasLtMatrixLayoutOpaque_t& layout, bool is_transposed)
      : data(static_cast<const unsigned char*>(address)),
        wide(layout.data[kType] == CUDA_R_64F),
        transposed(is_transposed),
        rows(layout.data[is_transposed ? kCols : kRows]),
        cols(layout.data[is_transposed ? kRows : kCols]),
        stride(layout.data[kStride]) {}

  size_t OffsetOf(size_t row, size_t col) const {
    if (transposed) std::swap(row, col);
    return (col * stride + row) * (wide ? sizeof(double) : sizeof(float));
  }
  double At(size_t row, size_t col) const {
    if (wide) return Read<double>(data + OffsetOf(row, col));
    return Read<float>(data + OffsetOf(row, col));
  }
  void Set(size_t row, size_t col, double value) const {
    auto* const to = const_cast<unsigned char*>(data) + OffsetOf(row, col);
    const auto narrow = static_cast<float>(value);
    wide ? std::memcpy(to, &value, sizeof(value)) : std::memcpy(to, &narrow, sizeof(narrow));
  }
  template <typename T>
  static T Read(const void* from) {
    T value = 0;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }

  const unsigned char* data;
  bool wide, transposed;
  size_t rows, cols, stride;
};

struct Product {
  Matrix a, b, c;
  double alpha, beta;
  void* workspace;
  size_t workspace_bytes;
  bool tf32;
};

// Rounds to the 11 significant bits of TF32.
double RoundedToTf32(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}

void Run(void* argument) {
  const std::unique_ptr<Product> product(static_cast<Product*>(argument));
  std::memset(product->workspace, 0x55, product->workspace_bytes);
  const Matrix &a = product->a, &b = product->b, &c = product->c;
  const auto factor = [tf32 = product->tf32](double x) { return tf32 ? RoundedToTf32(x) : x; };
  for (size_t col = 0; col < c.cols; ++col) {
    for (size_t row = 0; row < c.rows; ++row) {
      double sum = 0;
      for (size_t i = 0; i < a.cols; ++i) sum += factor(a.At(row, i)) * factor(b.At(i, col));
      const double old = product->beta == 0 ? 0 : product->beta * c.At(row, col);
      c.Set(row, col, product->alpha * sum + old);
    }
  }
}

// Whether the library computes this, in f32, with or without TF32, or in f64.
bool IsSupported(const cublasLtMatmulDescOpaque_t& operation, const cublasLtMatrixLayoutOpaque_t& a,
                 const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& c) {
  const uint64_t type = operation.data[kScale], compute = operation.data[kCompute];
  const bool suits = type == CUDA_R_64F
                         ? compute == CUBLAS_COMPUTE_64F
                         : compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (!suits) return false;
  for (const auto* layout : {&a, &b, &c}) {
    if (layout->data[kType] != type || layout->data[kRows] == 0 || layout->data[kCols] == 0 ||
        layout->data[kStride] < layout->data[kRows])
      return false;
  }
  const Matrix left(nullptr, a, operation.data[kTransA] == CUBLAS_OP_T);
  const Matrix right(nullptr, b, operation.data[kTransB] == CUBLAS_OP_T);
  return left.cols == right.rows && left.rows == c.data[kRows] && right.cols == c.data[kCols];
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() {
  const int other = BeginFakeCall("cublasLtGetVersion");
  return other != 0 ? static_cast<size_t>(other) : CUBLAS_VERSION;
}
const char* cublasLtGetStatusName(cublasStatus_t /*status*/) {
  return "CUBLAS_STATUS_OF_THE_FAKE";
}
const char* cublasLtGetStatusString(cublasStatus_t /*status*/) {
  return "a status of the fake";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return Create("cublasLtCreate", handle, cublasLtContext());
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return Destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  cublasLtMatmulDescOpaque_t made = {};
  made.data[kCompute] = compute;
  made.data[kScale] = scale;
  made.data[kTransA] = made.data[kTransB] = CUBLAS_OP_N;
  return Create("cublasLtMatmulDescCreate", operation, made);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  return Destroy(operation);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  const bool is_a = attribute == CUBLASLT_MATMUL_DESC_TRANSA;
  if ((!is_a && attribute != CUBLASLT_MATMUL_DESC_TRANSB) || size != sizeof(int32_t))
    return CUBLAS_STATUS_INVALID_VALUE;
  operation->data[is_a ? kTransA : kTransB] = Matrix::Read<int32_t>(value);
  return Begin("cublasLtMatmulDescSetAttribute");
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride) {
  return Create("cublasLtMatrixLayoutCreate", layout,
                {{static_cast<uint64_t>(type), rows, cols, static_cast<uint64_t>(stride)}});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Destroy(layout);
}

// Without a preference, the library takes addresses for aligned to 256 bytes and has no workspace.
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return Create("cublasLtMatmulPreferenceCreate", preference, {{0, 256, 256, 256, 256}});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && size == sizeof(uint64_t)) {
    preference->data[kWorkspace] = Matrix::Read<uint64_t>(value);
  } else if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
             attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES && size == sizeof(uint32_t)) {
    const int which = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    preference->data[kAlignment + which] = Matrix::Read<uint32_t>(value);
  } else {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return Begin("cublasLtMatmulPreferenceSetAttribute");
}

// The algorithm keeps the alignments that it relies on.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t /*d*/,
    cublasLtMatmulPreference_t preference, int /*wanted*/,
    cublasLtMatmulHeuristicResult_t results[], int* found) {
  const cublasStatus_t status = Begin("cublasLtMatmulAlgoGetHeuristic");
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  *found = 0;
  if (!IsSupported(*operation, *a, *b, *c)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *found = 1;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].workspaceSize = std::min(preference->data[kWorkspace], kWorkspaceBytes);
  std::copy_n(preference->data + kAlignment, 4, results[0].algo.data);
  return status;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t /*d_layout*/, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const cublasStatus_t status = Begin("cublasLtMatmul");
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const void* const addresses[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (reinterpret_cast<uintptr_t>(addresses[i]) % algo->data[i] != 0)
      return CUBLAS_STATUS_INVALID_VALUE;
  if (c != d || (workspace == nullptr) != (workspace_bytes == 0) ||
      !IsSupported(*operation, *a_layout, *b_layout, *c_layout))
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool wide = operation->data[kScale] == CUDA_R_64F;
  const auto number = [wide](const void* at) {
    return wide ? Matrix::Read<double>(at) : Matrix::Read<float>(at);
  };
  auto product = std::make_unique<Product>(
      Product{Matrix(a, *a_layout, operation->data[kTransA] == CUBLAS_OP_T),
              Matrix(b, *b_layout, operation->data[kTransB] == CUBLAS_OP_T),
              Matrix(d, *c_layout, false), number(alpha), number(beta), workspace, workspace_bytes,
              operation->data[kCompute] == CUBLAS_COMPUTE_32F_FAST_TF32});
  if (cudaLaunchHostFunc(stream, Run, product.get()) != cudaSuccess)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  static_cast<void>(product.release());  // Run has it
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
