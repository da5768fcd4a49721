#include "core/device/cuda/matrix_products.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/device/cuda/cublas_lt.h"
#include "core/device/cuda/cuda_stream.h"

namespace psd::cuda {
namespace {

// An object of cublasLt, which its function destroys.
template <typename T>
using Owned = std::unique_ptr<T, cublasStatus_t (*)(T*)>;

// The largest alignment that cublasLt asks for.
constexpr uint64_t kMostAlignment = 256;

int64_t AlignmentOf(const void* address) {
  const auto number = reinterpret_cast<uintptr_t>(address) | kMostAlignment;
  return static_cast<int64_t>(number & (~number + 1));  // the lowest bit
}

std::string Described(const MatrixProduct& product, const CudaStream& stream) {
  return absl::StrCat("the product of ", product.wide ? "f64[" : "f32[", product.m, ", ", product.k,
                      "] and [", product.k, ", ", product.n, "] on ", stream.name());
}

}  // namespace

// The loaded library, with a handle for one device. Thread-safe.
class MatrixProducts::Library {
 public:
  static absl::StatusOr<std::unique_ptr<const Library>> Load(std::shared_ptr<CudaContext> context,
                                                             const std::string& file,
                                                             CudaStream& stream) {
    PSD_ASSIGN_OR_RETURN(const CublasLt lt, LoadCublasLt(context->name(), file));
    PSD_RETURN_IF_ERROR(context->Enter());
    std::unique_ptr<Library> library(new Library(std::move(context), lt));
    const cublasStatus_t created = lt.Create(&library->handle_);
    // This is also what it returns when a call of CUDA fails in it, for example for want of memory.
    if (created == CUBLAS_STATUS_NOT_INITIALIZED) {
      PSD_RETURN_IF_ERROR(library->context_->Probe(stream.handle(), "cublasLtCreate"));
      return library->NoMemoryFor("cublasLtCreate", created, stream);
    }
    PSD_RETURN_IF_ERROR(library->Check(created, stream, "cublasLtCreate"));
    return library;
  }
  ~Library() {
    if (handle_ != nullptr && context_->Enter().ok()) lt_.Destroy(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  const CublasLt& lt() const { return lt_; }
  cublasLtHandle_t handle() const { return handle_; }

  // Returns the error of a call that was to add `operation` to the stream. cublasLt does not say
  // whether the device is lost, so CUDA is asked. Requires: the device is the current one.
  absl::Status Check(cublasStatus_t status, CudaStream& stream, absl::string_view operation) const {
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    PSD_RETURN_IF_ERROR(context_->Probe(stream.handle(), operation));
    if (status == CUBLAS_STATUS_ALLOC_FAILED) return NoMemoryFor(operation, status, stream);
    return absl::InternalError(
        absl::StrCat(context_->name(), " refused ", operation, ": ", Described(status)));
  }

 private:
  Library(std::shared_ptr<CudaContext> context, const CublasLt& lt)
      : context_(std::move(context)), lt_(lt) {}

  std::string Described(cublasStatus_t status) const {
    return absl::StrCat(lt_.GetStatusName(status), " (", static_cast<int>(status), "), ",
                        lt_.GetStatusString(status));
  }
  // The budget leaves out the memory of the library itself, because nothing tells its size.
  absl::Status NoMemoryFor(absl::string_view operation, cublasStatus_t status,
                           CudaStream& stream) const {
    return WithRemedy(
        absl::ResourceExhaustedError(absl::StrCat(
            context_->name(), " has too little memory outside its budget of ",
            stream.device().budget_bytes(), " bytes for what cublasLt needs for ", operation, ": ",
            context_->FreeBytes(), " bytes are free on the GPU (", Described(status), ")")),
        "end other programs that use the GPU, or lower the budget of the device");
  }

  const std::shared_ptr<CudaContext> context_;  // shared by the device's parts and events
  const CublasLt lt_;
  cublasLtHandle_t handle_ = nullptr;
};

// How one kind of product is computed.
//
// cublasLt takes columns where psd has rows. A row-major matrix is the transpose of a matrix with
// columns, so the product is computed as transposed(c) = transposed(b) * transposed(a): cublasLt's
// first operand is `b`, its second one is `a`, and both are transposed where psd's are.
struct MatrixProducts::Plan {
  explicit Plan(const CublasLt& lt)
      : operation(nullptr, lt.MatmulDescDestroy),
        b(nullptr, lt.MatrixLayoutDestroy),
        a(nullptr, lt.MatrixLayoutDestroy),
        c(nullptr, lt.MatrixLayoutDestroy) {}

  absl::Status Make(const Library& library, CudaStream& stream, const MatrixProduct& product,
                    bool allow_tf32);

  Owned<cublasLtMatmulDescOpaque_t> operation;
  Owned<cublasLtMatrixLayoutOpaque_t> b, a, c;
  cublasLtMatmulAlgo_t algorithm = {};
  size_t workspace_bytes = 0;
};

absl::Status MatrixProducts::Plan::Make(const Library& library, CudaStream& stream,
                                        const MatrixProduct& product, bool allow_tf32) {
  const CublasLt& lt = library.lt();
  // The first error of the calls below. None of them is made after an error.
  cublasStatus_t failed = CUBLAS_STATUS_SUCCESS;
  const auto make = [&](auto& owned, const auto& create, auto... arguments) {
    typename std::decay_t<decltype(owned)>::pointer made = nullptr;
    if (failed == CUBLAS_STATUS_SUCCESS) failed = create(&made, arguments...);
    if (failed == CUBLAS_STATUS_SUCCESS) owned.reset(made);
  };
  const auto set = [&](const auto& owned, const auto& set_attribute, auto attribute, auto value) {
    if (failed == CUBLAS_STATUS_SUCCESS)
      failed = set_attribute(owned.get(), attribute, &value, sizeof(value));
  };

  const cudaDataType_t type = product.wide ? CUDA_R_64F : CUDA_R_32F;
  const cublasComputeType_t narrow = allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  make(operation, lt.MatmulDescCreate, product.wide ? CUBLAS_COMPUTE_64F : narrow, type);
  const auto turned = [](const MatrixOperand& x) -> int32_t {
    return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(operation, lt.MatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_TRANSA, turned(product.b));
  set(operation, lt.MatmulDescSetAttribute, CUBLASLT_MATMUL_DESC_TRANSB, turned(product.a));

  // The columns of cublasLt's matrix are the rows in memory.
  const auto layout = [&](auto& owned, int64_t rows, int64_t cols, const MatrixOperand& x) {
    make(owned, lt.MatrixLayoutCreate, type, static_cast<uint64_t>(x.transposed ? rows : cols),
         static_cast<uint64_t>(x.transposed ? cols : rows), x.stride);
  };
  layout(b, product.k, product.n, product.b);
  layout(a, product.m, product.k, product.a);
  layout(c, product.m, product.n, {product.c, product.n, false});

  Owned<cublasLtMatmulPreferenceOpaque_t> wanted(nullptr, lt.MatmulPreferenceDestroy);
  make(wanted, lt.MatmulPreferenceCreate);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    set(wanted, lt.MatmulPreferenceSetAttribute, attribute, value);
  };
  const auto alignment = [](const void* address) {
    return static_cast<uint32_t>(AlignmentOf(address));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         uint64_t{std::min(kMostWorkspaceBytes, stream.device().budget_bytes() / kBudgetParts)});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(product.b.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(product.a.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(product.c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(product.c));

  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  if (failed == CUBLAS_STATUS_SUCCESS)
    failed = lt.MatmulAlgoGetHeuristic(library.handle(), operation.get(), b.get(), a.get(), c.get(),
                                       c.get(), wanted.get(), 1, &best, &found);
  if (failed == CUBLAS_STATUS_SUCCESS)
    failed = found > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED;
  algorithm = best.algo;
  workspace_bytes = best.workspaceSize;
  if (failed == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return library.Check(failed, stream, Described(product, stream));
}

MatrixProducts::MatrixProducts(std::shared_ptr<CudaContext> context, std::string file,
                               bool allow_tf32)
    : context_(std::move(context)), file_(std::move(file)), allow_tf32_(allow_tf32) {}

MatrixProducts::~MatrixProducts() = default;

absl::Status MatrixProducts::Add(CudaStream& stream, const MatrixProduct& product) {
  if (product.m == 0 || product.n == 0) return context_->health();
  if (product.k == 0) {
    if (product.adds) return context_->health();
    const size_t bytes = static_cast<size_t>(product.m * product.n) *
                         (product.wide ? sizeof(double) : sizeof(float));
    return stream.Add("Matmul", [&](CUstream_st* handle) {
      return cudaMemsetAsync(product.c, 0, bytes, handle);
    });
  }
  PSD_ASSIGN_OR_RETURN(const Library* const library, LibraryFor(stream));
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<const Plan> plan, PlanFor(*library, stream, product));
  std::shared_ptr<Block> workspace;  // freed behind the product
  if (plan->workspace_bytes > 0) {
    PSD_ASSIGN_OR_RETURN(workspace, stream.Allocate(plan->workspace_bytes));
  }
  PSD_RETURN_IF_ERROR(context_->Enter());
  // The numbers have the type of the elements.
  const float one = 1, old = product.adds ? 1 : 0;
  const double wide_one = one, wide_old = old;
  const cublasStatus_t added = library->lt().Matmul(
      library->handle(), plan->operation.get(),
      product.wide ? static_cast<const void*>(&wide_one) : &one, product.b.data, plan->b.get(),
      product.a.data, plan->a.get(), product.wide ? static_cast<const void*>(&wide_old) : &old,
      product.c, plan->c.get(), product.c, plan->c.get(), &plan->algorithm,
      workspace == nullptr ? nullptr : workspace->data(), plan->workspace_bytes, stream.handle());
  if (added == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return library->Check(added, stream, Described(product, stream));
}

absl::StatusOr<const MatrixProducts::Library*> MatrixProducts::LibraryFor(CudaStream& stream) {
  {
    MutexLock lock(mutex_);
    if (library_ != nullptr) return library_.get();
  }
  // Two threads may load it at once; then one of the two handles is destroyed again.
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<const Library> loaded,
                       Library::Load(context_, file_, stream));
  MutexLock lock(mutex_);
  if (library_ == nullptr) library_.swap(loaded);
  return library_.get();
}

MatrixProducts::Kind MatrixProducts::KindOf(const MatrixProduct& product) {
  return {product.wide,
          product.m,
          product.n,
          product.k,
          product.a.stride,
          product.a.transposed,
          product.b.stride,
          product.b.transposed,
          AlignmentOf(product.a.data),
          AlignmentOf(product.b.data),
          AlignmentOf(product.c)};
}

absl::StatusOr<std::shared_ptr<const MatrixProducts::Plan>> MatrixProducts::PlanFor(
    const Library& library, CudaStream& stream, const MatrixProduct& product) {
  const Kind kind = KindOf(product);
  {
    MutexLock lock(mutex_);
    const auto known = plans_.find(kind);
    if (known != plans_.end()) return known->second;
  }
  PSD_RETURN_IF_ERROR(context_->Enter());
  auto plan = std::make_shared<Plan>(library.lt());
  PSD_RETURN_IF_ERROR(plan->Make(library, stream, product, allow_tf32_));
  std::map<Kind, std::shared_ptr<const Plan>> dropped;  // without the lock
  MutexLock lock(mutex_);
  if (plans_.size() >= kMostPlans) plans_.swap(dropped);
  plans_[kind] = plan;
  return plan;
}

}  // namespace psd::cuda
