#pragma once

// A dense tensor: a shape, strides, a dtype and a device over shared storage.
//
// A tensor is immutable while it is shared. Whoever allocated one may write through mutable_data()
// until there is another handle, a view or a buffer of it, and again when IsExclusive() says that
// there is none any more. Everything else (saved tensors in autograd, arguments by value, slices on
// the wire) relies on this.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/tensor/device.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd {

// A value: copies share the elements. Thread-compatible; concurrent readers are fine.
class Tensor {
 public:
  // Undefined: no elements, no dtype. Only defined() and assignment are legal.
  Tensor() = default;

  // Contiguous, contents undefined, memory from `allocator` (null: ordinary process memory).
  // Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<Tensor> Empty(const Shape& shape, DType dtype,
                                      Allocator* allocator = nullptr);
  // Of the shape and dtype of `x`, as by Empty.
  static absl::StatusOr<Tensor> EmptyLike(const Tensor& x);
  static absl::StatusOr<Tensor> Zeros(const Shape& shape, DType dtype,
                                      Allocator* allocator = nullptr);
  // Every element is `value`, converted to `dtype`.
  static absl::StatusOr<Tensor> Full(const Shape& shape, DType dtype, double value,
                                     Allocator* allocator = nullptr);

  // Row-major elements `values`. Requires: values.size() == shape.NumElements(). For constants and
  // tests: stops the process when there is no memory.
  template <typename T>
  static Tensor Of(const Shape& shape, absl::Span<const T> values);
  template <typename T>
  static Tensor Of(const Shape& shape, std::initializer_list<T> values) {
    return Of<T>(shape, absl::MakeConstSpan(values.begin(), values.size()));
  }
  template <typename T>
  static Tensor Scalar(T value) {
    return Of<T>(Shape{}, {value});
  }

  // A contiguous tensor over bytes that arrived or that live elsewhere; they are not copied unless
  // their address is not a multiple of the element size.
  // Errors: INVALID_ARGUMENT unless bytes.size() is exactly what shape and dtype need.
  static absl::StatusOr<Tensor> FromBuffer(const Shape& shape, DType dtype, Buffer bytes);

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const { return impl().shape; }
  Strides strides() const {
    if (IsContiguous()) return ContiguousStrides(shape());
    return IsOneNumber() ? Strides(static_cast<size_t>(rank()), 0) : impl().strides;
  }
  DType dtype() const { return impl().dtype; }
  Device device() const { return impl().device; }
  int rank() const { return shape().rank(); }
  int64_t NumElements() const { return impl().num_elements; }
  size_t NumBytes() const { return static_cast<size_t>(NumElements()) * ItemSize(dtype()); }
  bool IsContiguous() const { return impl().layout == Layout::kContiguous; }
  // Not contiguous, but one number at every place: an expanded scalar.
  bool IsOneNumber() const { return impl().layout == Layout::kOneNumber; }

  // The first element. Requires: T matches dtype(); the device is a CPU.
  template <typename T>
  const T* data() const {
    PSD_CHECK(defined() && DTypeOf<T>::value == dtype(), "tensor read with another element type");
    return reinterpret_cast<const T*>(raw_data());
  }
  const std::byte* raw_data() const { return impl().data; }

  // Requires: this is the only handle to freshly allocated memory (see above), or IsExclusive().
  template <typename T>
  T* mutable_data() {
    PSD_CHECK(defined() && DTypeOf<T>::value == dtype(),
              "tensor written with another element type");
    return reinterpret_cast<T*>(mutable_raw_data());
  }
  std::byte* mutable_raw_data() { return const_cast<std::byte*>(impl().data); }

  // A view of the same elements. Requires: what the views in ops/shape_ops.h check.
  Tensor View(const Shape& shape, const Strides& strides, int64_t offset_elements) const;
  // A view of `shape` that has the first element at every place.
  Tensor Repeated(const Shape& shape) const;

  // This tensor if contiguous, else a contiguous copy.
  absl::StatusOr<Tensor> Contiguous(Allocator* allocator = nullptr) const& {
    return IsContiguous() ? absl::StatusOr<Tensor>(*this) : Clone(allocator);
  }
  absl::StatusOr<Tensor> Contiguous(Allocator* allocator = nullptr) && {
    return IsContiguous() ? absl::StatusOr<Tensor>(std::move(*this)) : Clone(allocator);
  }
  // A contiguous copy in memory of its own.
  absl::StatusOr<Tensor> Clone(Allocator* allocator = nullptr) const;

  // The elements as bytes, shared, not copied. Requires: IsContiguous().
  Buffer AsBuffer() const { return Buffer(storage(), raw_data(), NumBytes()); }
  // Whether nobody else can see the elements: no other handle, no view, no buffer. False too for
  // elements in memory of their own, of which that is not known.
  bool IsExclusive() const;

  // What keeps the elements alive; the identity of the storage.
  std::shared_ptr<const void> storage() const {
    return impl().owner != nullptr ? impl().owner : std::shared_ptr<const void>(impl_);
  }

  // "f32[128, 784]", "undefined".
  std::string ToString() const;

 private:
  enum class Layout : uint8_t { kContiguous, kOneNumber, kOther };
  static Layout LayoutOf(const Shape& shape, int64_t elements, const Strides& strides);

  // All that a tensor is, in one piece, so that a handle is as cheap to pass on as a pointer. With
  // its counts it takes two cache lines.
  struct Impl {
    Impl() = default;
    Impl(const Shape& shape, int64_t num_elements, DType dtype)
        : shape(shape), num_elements(num_elements), dtype(dtype) {}

    Shape shape;
    Strides strides;  // of Layout::kOther
    int64_t num_elements = 0;
    // Shared by all views of the same storage; null: the elements lie behind this piece, in the
    // same memory.
    std::shared_ptr<const void> owner;
    const std::byte* data = nullptr;  // the first element, offset included
    DType dtype = DType::kF32;
    Layout layout = Layout::kContiguous;
    Device device;
  };
  static_assert(sizeof(Impl) <= 104);
  explicit Tensor(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  // Contiguous, elements not filled, behind the rest in one piece of small memory.
  static Tensor InOnePiece(const Shape& shape, int64_t elements, DType dtype, size_t bytes);
  static absl::StatusOr<Tensor> EmptyOf(const Shape& shape, int64_t elements, DType dtype,
                                        Allocator* allocator);
  static Tensor OfStorage(const Shape& shape, int64_t elements, DType dtype,
                          std::shared_ptr<const void> owner, const std::byte* data);

  // What an undefined tensor reads as; never destroyed.
  union Undefined {
    Undefined() : impl() {}
    ~Undefined() {}
    Impl impl;
  };
  static const Undefined undefined_;

  const Impl& impl() const { return impl_ != nullptr ? *impl_ : undefined_.impl; }

  std::shared_ptr<const Impl> impl_;  // null: undefined; shared by all copies
};

}  // namespace psd
