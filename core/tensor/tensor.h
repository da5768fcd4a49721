#pragma once

// A dense tensor: a shape, strides, a dtype and a device over shared storage.
//
// A tensor is immutable while it is shared. Whoever allocated one may write through mutable_data()
// until there is another handle, a view or a buffer of it, and again when IsExclusive() says that
// there is none any more. Everything else (saved tensors in autograd, arguments by value, slices on
// the wire) relies on this.

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
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
  Tensor(const Tensor& other) : impl_(other.impl_) {
    if (impl_ != nullptr) impl_->handles.fetch_add(1, std::memory_order_relaxed);
  }
  Tensor(Tensor&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
  }
  ~Tensor() {
    if (impl_ != nullptr && WasLast(impl_->handles)) Free(impl_);
  }

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

  // Row-major elements `values`: Of({2, 1}, a_vector), Of({2}, {0.5f, 1.5f}). T is float, double,
  // int64_t, int32_t, uint8_t or bool; it needs its name only where the values are of another type:
  // Of<float>({2}, {1, 2}). The values are copied, but for a vector that is moved in: if it has
  // more than 64 KiB, the tensor keeps its memory. Requires: values.size() == shape.NumElements().
  // Stops the process when there is no memory.
  template <typename T>
  static Tensor Of(const Shape& shape, absl::Span<const T> values);
  template <typename T>
  static Tensor Of(const Shape& shape, std::initializer_list<T> values) {
    return Of<T>(shape, absl::MakeConstSpan(values.begin(), values.size()));
  }
  template <typename T>
  static Tensor Of(const Shape& shape, const std::vector<T>& values);
  template <typename T>
  static Tensor Of(const Shape& shape, std::vector<T>&& values);
  template <typename T>
  static Tensor Scalar(T value) {
    return Of<T>(Shape{}, {value});
  }

  // A contiguous tensor over bytes that arrived or that live elsewhere; they are not copied unless
  // their address is not a multiple of the element size.
  // Errors: INVALID_ARGUMENT unless bytes.size() is exactly what shape and dtype need.
  static absl::StatusOr<Tensor> FromBuffer(const Shape& shape, DType dtype, Buffer bytes);
  // Appends `count` tensors that are alike, the first over the first bytes and each other `step`
  // bytes behind the one before, as by FromBuffer. What is known of them lies in one piece of
  // memory: one that is kept keeps a cache line for each, and like every slice the whole buffer.
  // Requires: the bytes end with the last tensor; count fits 32 bits.
  // Errors: RESOURCE_EXHAUSTED for a copy. Then those before it are appended.
  static absl::Status CutRun(const Shape& shape, DType dtype, const Buffer& bytes, size_t step,
                             size_t count, std::vector<Tensor>* tensors);

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const { return impl().shape; }
  Strides strides() const {
    if (IsContiguous()) return ContiguousStrides(shape());
    return IsOneNumber() ? Strides(static_cast<size_t>(rank()), 0) : StridesOfView();
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

  // What keeps the elements alive; its address is the identity of the storage.
  std::shared_ptr<const void> storage() const;

  // "f32[128, 784]", "undefined".
  std::string ToString() const;

 private:
  enum class Layout : uint8_t { kContiguous, kOneNumber, kOther };
  // What keeps the elements alive.
  enum class Keeper : uint8_t {
    kItself,  // they lie behind the description, in the same memory
    kBase,    // the tensor that this is a view of: a ViewImpl
    kOwner,   // what lies before the descriptions of one tensor, or of a run of them: an Owner
  };
  struct ViewImpl;
  struct Owner;

  // All that a tensor is, in one cache line, so that a handle is as cheap to pass on as a pointer.
  struct alignas(kBlockAlignment) Impl {
    Impl() = default;
    Impl(const Shape& shape, int64_t num_elements, DType dtype, Keeper keeper,
         const std::byte* data)
        : shape(shape), num_elements(num_elements), data(data), dtype(dtype), keeper(keeper) {}

    Shape shape;
    int64_t num_elements = 0;
    const std::byte* data = nullptr;  // the first element, offset included
    std::atomic<uint32_t> handles{1};
    uint32_t number = 0;  // in its run
    DType dtype = DType::kF32;
    Layout layout = Layout::kContiguous;
    Keeper keeper = Keeper::kItself;
    Device device;
  };
  static_assert(sizeof(Impl) == kBlockAlignment);
  // Takes over the one handle that a new description counts.
  explicit Tensor(Impl* impl) : impl_(impl) {}

  // Gives up one of `count`. The last needs no locked instruction: nobody else can count then.
  static bool WasLast(std::atomic<uint32_t>& count) {
    return count.load(std::memory_order_acquire) == 1 ||
           count.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  static void Free(Impl* impl);

  static Layout LayoutOf(const Shape& shape, int64_t elements, const Strides& strides);
  // Contiguous, elements not filled, behind the rest in one piece of small memory.
  static Tensor InOnePiece(const Shape& shape, int64_t elements, DType dtype, size_t bytes);
  static absl::StatusOr<Tensor> EmptyOf(const Shape& shape, int64_t elements, DType dtype,
                                        Allocator* allocator);
  static Tensor OfStorage(const Shape& shape, int64_t elements, DType dtype,
                          std::shared_ptr<const void> owner, const std::byte* data);
  // A view of `shape` from `data` on, layout and strides not yet set.
  ViewImpl* NewView(const Shape& shape, int64_t elements, const std::byte* data) const;
  Strides StridesOfView() const;

  // What an undefined tensor reads as; never destroyed.
  union Undefined {
    Undefined() : impl() {}
    ~Undefined() {}
    Impl impl;
  };
  static const Undefined undefined_;

  const Impl& impl() const { return impl_ != nullptr ? *impl_ : undefined_.impl; }

  Impl* impl_ = nullptr;  // null: undefined; shared by all copies
};

}  // namespace psd
