#pragma once

// Matrix products of a CUDA device, by cublasLt.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/device/cuda/cuda_context.h"

namespace psd {
class CudaStream;  // core/device/cuda/cuda_stream.h
}

namespace psd::cuda {

// A matrix in the device's memory, row-major with `stride` elements from one row to the next. If
// `transposed`, it stands for the transpose of the matrix in memory.
struct MatrixOperand {
  const void* data = nullptr;
  int64_t stride = 1;
  bool transposed = false;
};

// c = a * b, or c += a * b if `adds`, where a is m x k, b is k x n, and c is m x n and dense.
// Elements are f64 if `wide`, and otherwise f32. Addresses are aligned to them.
struct MatrixProduct {
  bool wide = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  MatrixOperand a;
  MatrixOperand b;
  bool adds = false;
  void* c = nullptr;
};

// The products of one device. cublasLt is loaded for the first product.
//
// cublasLt has many algorithms, whose results differ in their last bits. The algorithm is the first
// one that the library recommends for the sizes, the strides and the alignments of the addresses,
// whatever has been multiplied before. So equal products have equal bits on one kind of GPU with
// one version of the library, unless a device's budget is so small that it limits the workspace.
// The choice is remembered for kMostPlans kinds of products.
// Thread-safe. Requires: when this object is destroyed, all products have been computed, or the
// device is lost.
class MatrixProducts {
 public:
  static constexpr size_t kMostPlans = 1024;
  // The most memory that one product takes from the device's budget while it is computed: this, and
  // not more than one of kBudgetParts equal parts of the budget, so that products run on a device
  // with a small budget too.
  static constexpr size_t kMostWorkspaceBytes = size_t{32} << 20;
  static constexpr size_t kBudgetParts = 16;

  // `file` is that of cublasLt; see LoadCublasLt. If `allow_tf32`, the library may round factors of
  // f32 to TF32, which has 10 bits behind the point; their products are summed in f32.
  MatrixProducts(std::shared_ptr<CudaContext> context, std::string file, bool allow_tf32);
  ~MatrixProducts();
  MatrixProducts(const MatrixProducts&) = delete;
  MatrixProducts& operator=(const MatrixProducts&) = delete;

  // Adds a product to the stream, which is one of the device. Errors, all of which mean that
  // nothing was added: FAILED_PRECONDITION if there is no cublasLt (see LoadCublasLt);
  // RESOURCE_EXHAUSTED if the device has no room for the product's workspace, or the GPU none for
  // the library besides the budget; UNAVAILABLE if the device is lost; INTERNAL naming the product
  // and cublasLt's error for all others.
  absl::Status Add(CudaStream& stream, const MatrixProduct& product);

 private:
  class Library;
  struct Plan;
  // All numbers of a product on which its plan depends.
  using Kind = std::array<int64_t, 11>;
  static Kind KindOf(const MatrixProduct& product);

  // Returns the library, and loads it if need be.
  absl::StatusOr<const Library*> LibraryFor(CudaStream& stream);
  absl::StatusOr<std::shared_ptr<const Plan>> PlanFor(const Library& library, CudaStream& stream,
                                                      const MatrixProduct& product);

  const std::shared_ptr<CudaContext> context_;  // shared by the device's parts and events
  const std::string file_;
  const bool allow_tf32_;

  Mutex mutex_;                                                    // leaf
  std::unique_ptr<const Library> library_ PSD_GUARDED_BY(mutex_);  // set once
  // Shared with the products that are being added.
  std::map<Kind, std::shared_ptr<const Plan>> plans_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::cuda
