#pragma once

// A dense tensor: a shape, strides and a dtype over shared storage, which is on the host or on a
// device.
//
// A tensor is immutable while it is shared. The code that allocated it may write through
// mutable_data() until there is another handle, a view or a buffer of it, and again once
// IsExclusive() says that there is none any more. All other code (saved tensors in autograd,
// arguments by value, slices on the wire) relies on this rule.

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/memory_place.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd {

// A value: copies share the elements. Thread-compatible; concurrent readers are fine.
class Tensor {
 public:
  // An undefined tensor, without elements and dtype. Only defined(), ToString() and assignment are
  // meaningful for it.
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

  // Returns a contiguous tensor whose elements are not initialised. The memory comes from
  // `allocator`. If that is null, it is ordinary process memory or, for more than 64 KiB, the
  // memory of the thread's MemoryScope; without a scope, ResultMemory(). Errors:
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<Tensor> Empty(const Shape& shape, DType dtype,
                                      Allocator* allocator = nullptr);
  // As Empty, in memory of the device of `x`.
  static absl::StatusOr<Tensor> EmptyBeside(const Tensor& x, const Shape& shape, DType dtype);
  // As EmptyBeside, with the shape and dtype of `x`.
  static absl::StatusOr<Tensor> EmptyLike(const Tensor& x);
  // Zeros and Full also accept an `allocator` of a device. The elements are then set by work of the
  // CurrentStream there. Errors: those of Empty; UNIMPLEMENTED for a device that cannot copy
  // strided tensors; those of the device.
  static absl::StatusOr<Tensor> Zeros(const Shape& shape, DType dtype,
                                      Allocator* allocator = nullptr);
  // Returns a tensor in which every element is `value`, converted to `dtype`.
  static absl::StatusOr<Tensor> Full(const Shape& shape, DType dtype, double value,
                                     Allocator* allocator = nullptr);

  // Returns a tensor with the elements `values`, in row-major order: Of({2, 1}, a_vector), Of({2},
  // {0.5f, 1.5f}). T is float, double, int64_t, int32_t, uint8_t or bool; it must be named only if
  // the values have another type: Of<float>({2}, {1, 2}). The values are copied, unless they come
  // as a moved-in vector of more than 64 KiB, whose memory the tensor keeps. The process stops if
  // there is no memory. Requires: values.size() == shape.NumElements().
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

  // Returns a contiguous tensor over `bytes`, such as received bytes. They are shared, unless they
  // have no owner, their address is not a multiple of the element size, or `dtype` is not floating
  // and another process may change them (MemoryPlace::Kind::kForeign): then they are copied.
  // Errors: INVALID_ARGUMENT unless bytes.size() is exactly what shape and dtype need.
  static absl::StatusOr<Tensor> FromBuffer(const Shape& shape, DType dtype, Buffer bytes);
  // Appends `count` tensors of the same shape and dtype, each as by FromBuffer: the first over the
  // first bytes, and each further one `step` bytes behind the previous one. The descriptions of all
  // these tensors share one allocation. As long as one of the tensors is kept, it keeps a cache
  // line for each of them and, like every slice, the whole buffer. Requires: the bytes end with the
  // last tensor; count fits 32 bits. Errors: RESOURCE_EXHAUSTED for a copy; the tensors before that
  // copy have then been appended.
  static absl::Status CutRun(const Shape& shape, DType dtype, const Buffer& bytes, size_t step,
                             size_t count, std::vector<Tensor>* tensors);

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const { return impl().shape; }
  Strides strides() const {
    if (IsContiguous()) return ContiguousStrides(shape());
    return IsOneNumber() ? Strides(static_cast<size_t>(rank()), 0) : StridesOfView();
  }
  DType dtype() const { return impl().dtype; }
  // Whether the host may read the elements. If not, they are on device().
  bool OnHost() const { return impl().on_host; }
  // The device whose memory holds the elements; null for the host. It lives as long as the
  // elements.
  Device* device() const { return OnHost() ? nullptr : place().device(); }
  // The place of the elements.
  const MemoryPlace& place() const;
  int rank() const { return shape().rank(); }
  int64_t NumElements() const { return impl().num_elements; }
  size_t NumBytes() const { return static_cast<size_t>(NumElements()) * ItemSize(dtype()); }
  bool IsContiguous() const { return impl().layout == Layout::kContiguous; }
  // Whether this is a view with more than one element in which every element is the same number in
  // memory, such as an expanded scalar.
  bool IsOneNumber() const { return impl().layout == Layout::kOneNumber; }

  // Returns OK if the host may read the elements.
  // Errors: UNIMPLEMENTED naming `operation`, the tensor and its device.
  absl::Status CheckOnHost(absl::string_view operation) const;

  // Points to the first element. Requires: T matches dtype(); OnHost(), which is checked.
  template <typename T>
  const T* data() const {
    PSD_CHECK(defined() && DTypeOf<T>::value == dtype(), "tensor read with another element type");
    return reinterpret_cast<const T*>(raw_data());
  }
  const std::byte* raw_data() const {
    PSD_CHECK(OnHost(), "the host reads a tensor on a device");
    return impl().data;
  }

  // Requires: this is the only handle to freshly allocated memory (see above), or IsExclusive();
  // OnHost(), which is checked.
  template <typename T>
  T* mutable_data() {
    PSD_CHECK(defined() && DTypeOf<T>::value == dtype(),
              "tensor written with another element type");
    return reinterpret_cast<T*>(mutable_raw_data());
  }
  std::byte* mutable_raw_data() { return const_cast<std::byte*>(raw_data()); }

  // The address of the first element in the memory of device(). Only kernels and copies of that
  // device may follow it.
  const std::byte* address() const { return impl().data; }
  // Requires: what mutable_data requires, except OnHost().
  std::byte* mutable_address() { return const_cast<std::byte*>(impl().data); }

  // Returns a view that starts `offset_elements` after the first element. Requires: all elements of
  // the view are elements of this tensor; the functions of ops/shape_ops.h check that.
  Tensor View(const Shape& shape, const Strides& strides, int64_t offset_elements) const;
  // Returns a view of `shape` in which every element is the first element of this tensor.
  Tensor Repeated(const Shape& shape) const;

  // Returns this tensor if it is contiguous, otherwise a contiguous copy.
  // Errors: those of Clone.
  absl::StatusOr<Tensor> Contiguous(Allocator* allocator = nullptr) const& {
    return IsContiguous() ? absl::StatusOr<Tensor>(*this) : Clone(allocator);
  }
  absl::StatusOr<Tensor> Contiguous(Allocator* allocator = nullptr) && {
    return IsContiguous() ? absl::StatusOr<Tensor>(std::move(*this)) : Clone(allocator);
  }
  // Returns a contiguous copy in memory of `allocator`, which may be on another device. If that is
  // null, the copy is on the device of this tensor.
  // Errors: RESOURCE_EXHAUSTED; UNIMPLEMENTED for a strided tensor on a device without a kernel for
  // such copies; those of the device.
  absl::StatusOr<Tensor> Clone(Allocator* allocator = nullptr) const;
  // Returns this tensor if OnHost(), otherwise a contiguous copy in memory of the host. The memory
  // comes from `allocator`, or as for Empty if that is null. Errors: those of Clone.
  absl::StatusOr<Tensor> ToHost(Allocator* allocator = nullptr) const;

  // Returns the elements as bytes, which are shared, not copied. Requires: IsContiguous().
  Buffer AsBuffer() const { return Buffer(storage(), address(), NumBytes(), block()); }
  // Whether nobody else can see the elements: there is no other handle, view or buffer. Always
  // false for large tensors and tensors from buffers, whose elements are not in the same memory as
  // their description, because it cannot be known for them.
  bool IsExclusive() const;

  // Returns how many bytes of the tensor's small piece of memory are charged to an account
  // (MemoryScope). 0 if the elements are not a piece of their own, or are not charged.
  size_t SmallChargeBytes() const;
  // Charges that piece to the account `to` instead, a SmallChargesId (core/base/small_charges.h),
  // for as long as it lives. Requires: SmallChargeBytes() is not 0; room for the piece is reserved;
  // `to` is not 0. Thread-safe.
  void MoveSmallCharge(uint32_t to) const;

  // Returns the object that keeps the elements alive. Tensors with the same address here share
  // their storage.
  std::shared_ptr<const void> storage() const;
  // The block that contains the elements, which lives as long as storage(). Null for heap memory
  // that belongs to no block.
  const Block* block() const;

  // For example "f32[128, 784]", or "undefined".
  std::string ToString() const;

 private:
  enum class Layout : uint8_t { kContiguous, kOneNumber, kOther };
  // Says what keeps the elements alive.
  enum class Keeper : uint8_t {
    kItself,  // the description: the elements follow it in the same memory
    kBase,    // the tensor that this is a view of; the description is a ViewImpl
    kOwner,   // the Owner, which precedes the descriptions of its run of tensors in memory
  };
  struct ViewImpl;
  struct Owner;

  // The description of a tensor, in one cache line. A handle is a pointer to it.
  struct alignas(kBlockAlignment) Impl {
    Impl() = default;
    Impl(const Shape& shape, int64_t num_elements, DType dtype, Keeper keeper,
         const std::byte* data)
        : shape(shape), num_elements(num_elements), data(data), dtype(dtype), keeper(keeper) {}

    Shape shape;
    int64_t num_elements = 0;
    const std::byte* data = nullptr;  // the first element, offset included
    std::atomic<uint32_t> handles{1};
    // For kOwner, the number of the tensor in its run. For kItself, the id of the account that it
    // is charged to (SmallChargesId), or 0.
    std::atomic<uint32_t> number{0};
    DType dtype = DType::kF32;
    Layout layout = Layout::kContiguous;
    Keeper keeper = Keeper::kItself;
    bool on_host = true;
  };
  static_assert(sizeof(Impl) == kBlockAlignment);
  // Takes over the single handle that a new description starts with.
  explicit Tensor(Impl* impl) : impl_(impl) {}

  // Drops one from `count` and returns whether it was the last. The last holder needs no atomic
  // subtraction, because nobody else can change the count then.
  static bool WasLast(std::atomic<uint32_t>& count) {
    return count.load(std::memory_order_acquire) == 1 ||
           count.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  static void Free(Impl* impl);
  static size_t PieceBytes(const Impl& impl);

  static Layout LayoutOf(const Shape& shape, int64_t elements, const Strides& strides);
  // Returns a contiguous tensor whose uninitialised elements follow its description, in one
  // allocation of small memory. Errors: RESOURCE_EXHAUSTED from the thread's MemoryScope.
  static absl::StatusOr<Tensor> InOnePiece(const Shape& shape, int64_t elements, DType dtype,
                                           size_t bytes);
  static absl::StatusOr<Tensor> EmptyOf(const Shape& shape, int64_t elements, DType dtype,
                                        Allocator* allocator);
  // `block` is the block that contains `data`, or null.
  static Tensor OfStorage(const Shape& shape, int64_t elements, DType dtype,
                          std::shared_ptr<const void> owner, const std::byte* data,
                          const Block* block);
  // Returns a contiguous copy that the tensor's own device makes.
  absl::StatusOr<Tensor> CloneThere(Allocator* allocator) const;
  // Returns a view of `shape` that starts at `data`. The caller sets its layout and strides.
  ViewImpl* NewView(const Shape& shape, int64_t elements, const std::byte* data) const;
  Strides StridesOfView() const;

  // Holds the description that an undefined tensor reads. It is never destroyed.
  union Undefined {
    Undefined() : impl() {}
    ~Undefined() {}
    Impl impl;
  };
  static const Undefined undefined_;

  const Impl& impl() const { return impl_ != nullptr ? *impl_ : undefined_.impl; }

  Impl* impl_ = nullptr;  // shared by all copies; null if undefined
};

}  // namespace psd
