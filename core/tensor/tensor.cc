#include "core/tensor/tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/memory_budget.h"
#include "core/base/memory_scope.h"
#include "core/base/remedy.h"
#include "core/base/result_memory.h"
#include "core/base/small_charges.h"
#include "core/base/small_memory.h"
#include "core/base/stream.h"
#include "core/tensor/strided_copy.h"
#include "kernels/convert.h"
#include "kernels/strided.h"

namespace psd {
namespace {

// The elements of tensors up to this size follow their description, so there is one piece of memory
// instead of two to allocate, free and fetch.
constexpr size_t kMaxBytesInOnePiece = size_t{64} << 10;

template <typename T>
void Fill(std::byte* to, int64_t count, T value) {
  T* elements = reinterpret_cast<T*>(to);
  std::fill(elements, elements + count, value);
}

void FillAs(DType dtype, std::byte* to, int64_t count, double value) {
  switch (dtype) {
    case DType::kF32:
      return Fill(to, count, static_cast<float>(value));
    case DType::kF64:
      return Fill(to, count, value);
    case DType::kI64:
      return Fill(to, count, kernels::Convert<int64_t>(value));
    case DType::kI32:
      return Fill(to, count, kernels::Convert<int32_t>(value));
    case DType::kU8:
      return Fill(to, count, kernels::Convert<uint8_t>(value));
    case DType::kBool:
      return Fill(to, count, kernels::Convert<bool>(value));
    case DType::kF16:
      return Fill(to, count, kernels::Convert<kernels::Half>(value));
    case DType::kBF16:
      return Fill(to, count, kernels::Convert<kernels::BFloat16>(value));
  }
}

// A small tensor is also charged for the record of the operator that made it, and for its places in
// the tables of its program.
constexpr size_t kBesideTensorBytes = 192;

// Returns the size of the memory for `bytes` of elements. It is rounded up so that code may read
// the last elements as a whole vector.
size_t BytesBehind(size_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// This function is not inlined: otherwise each way to free a tensor would save the registers that
// the others need.
template <typename T>
ABSL_ATTRIBUTE_NOINLINE void DestroyPiece(T* object, size_t bytes) {
  object->~T();
  GiveSmallMemory(object, bytes);
}

void CheckCount(size_t values, const Shape& shape) {
  PSD_CHECK(static_cast<int64_t>(values) == shape.NumElements(),
            absl::StrCat(values, " values for shape ", shape.ToString()));
}

template <typename T, typename Values>
Tensor CopyOf(const Shape& shape, const Values& values) {
  CheckCount(values.size(), shape);
  const MemoryScope uncharged(nullptr);  // the code's own constants are not refused by a budget
  absl::StatusOr<Tensor> tensor = Tensor::Empty(shape, DTypeOf<T>::value);
  PSD_CHECK(tensor.ok(), tensor.status().message());
  std::copy(values.begin(), values.end(), tensor->mutable_data<T>());
  return *std::move(tensor);
}

// Returns the allocator for results on the device of `x`. Null stands for the host's allocator.
Allocator* AllocatorBeside(const Tensor& x) {
  return x.OnHost() ? nullptr : &x.device()->memory();
}

// Whether elements may be read where they are. Another process may change lent bytes at any time.
// That does no harm to floats, which can be anything, but an index that has been checked would no
// longer be in range.
bool IsStable(const Buffer& bytes, DType dtype) {
  return IsFloating(dtype) || bytes.place().kind() != MemoryPlace::Kind::kForeign;
}

bool IsAligned(const std::byte* data, size_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

}  // namespace

struct Tensor::ViewImpl : Impl {
  ViewImpl(const Shape& shape, int64_t elements, const std::byte* data, const Tensor& base)
      : Impl(shape, elements, base.dtype(), Keeper::kBase, data), base(base) {
    on_host = base.OnHost();
  }

  Tensor base;      // not a view itself
  Strides strides;  // set for Layout::kOther only
};

// Keeps the storage of a run of tensors. The descriptions of these tensors follow it in the same
// allocation.
struct alignas(kBlockAlignment) Tensor::Owner {
  Owner(std::shared_ptr<const void> storage, const Block* block, size_t size)
      : storage(std::move(storage)),
        block(block),
        size(static_cast<uint32_t>(size)),
        in_use(this->size),
        on_host(block == nullptr || block->place().host_readable()) {}

  static size_t BytesFor(size_t size) { return sizeof(Owner) + size * sizeof(Impl); }
  static Owner* Create(std::shared_ptr<const void> storage, const Block* block, size_t size) {
    return new (TakeSmallMemory(BytesFor(size))) Owner(std::move(storage), block, size);
  }
  static Owner* Of(Impl* impl) {
    return reinterpret_cast<Owner*>(impl - impl->number.load(std::memory_order_relaxed)) - 1;
  }

  // Creates tensor `number`. Must be called once for each number below `size`.
  Tensor Make(size_t number, const Shape& shape, int64_t elements, DType dtype,
              const std::byte* data) {
    Impl* impl = reinterpret_cast<Impl*>(this + 1) + number;
    new (impl) Impl(shape, elements, dtype, Keeper::kOwner, data);
    impl->number.store(static_cast<uint32_t>(number), std::memory_order_relaxed);
    impl->on_host = on_host;
    return Tensor(impl);
  }

  const std::shared_ptr<const void> storage;
  // The block that contains the elements, or null; `storage` keeps it alive.
  const Block* const block;
  const uint32_t size;
  std::atomic<uint32_t> in_use;  // how many of its tensors are alive
  const bool on_host;
};

// Returns the size of a description of Keeper::kItself together with its elements.
inline size_t Tensor::PieceBytes(const Impl& impl) {
  return sizeof(Impl) + BytesBehind(static_cast<size_t>(impl.num_elements) * ItemSize(impl.dtype));
}

size_t Tensor::SmallChargeBytes() const {
  const bool charged = defined() && impl_->keeper == Keeper::kItself &&
                       impl_->number.load(std::memory_order_relaxed) != 0;
  return charged ? PieceBytes(*impl_) + kBesideTensorBytes : 0;
}

void Tensor::MoveSmallCharge(SmallChargesId to) const {
  const size_t bytes = PieceBytes(*impl_) + kBesideTensorBytes;
  SmallChargesId from = impl_->number.load(std::memory_order_relaxed);
  if (from == to) return;
  AddSmallPiece(to, bytes);
  // Another thread may have moved the charge meanwhile.
  const bool moved = impl_->number.compare_exchange_strong(from, to, std::memory_order_relaxed);
  CreditSmallPiece(moved ? from : to, bytes);
}

void Tensor::Free(Impl* impl) {
  switch (impl->keeper) {
    case Keeper::kItself: {
      const size_t bytes = PieceBytes(*impl);
      const SmallChargesId charges = impl->number.load(std::memory_order_relaxed);
      if (charges != 0) CreditSmallPiece(charges, bytes + kBesideTensorBytes);
      return DestroyPiece(impl, bytes);
    }
    case Keeper::kBase:
      return DestroyPiece(static_cast<ViewImpl*>(impl), sizeof(ViewImpl));
    case Keeper::kOwner: {
      Owner* owner = Owner::Of(impl);
      impl->~Impl();
      if (WasLast(owner->in_use)) DestroyPiece(owner, Owner::BytesFor(owner->size));
      return;
    }
  }
}

Tensor::Layout Tensor::LayoutOf(const Shape& shape, int64_t elements, const Strides& strides) {
  if (elements == 0) return Layout::kContiguous;
  bool contiguous = true;
  bool one_number = true;
  int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape[axis] == 1) continue;
    contiguous = contiguous && strides[axis] == step;
    one_number = one_number && strides[axis] == 0;
    step *= shape[axis];
  }
  return contiguous ? Layout::kContiguous : one_number ? Layout::kOneNumber : Layout::kOther;
}

inline absl::StatusOr<Tensor> Tensor::InOnePiece(const Shape& shape, int64_t elements, DType dtype,
                                                 size_t bytes) {
  const MemoryAccount* const memory = MemoryScope::Current();
  const SmallChargesId charges = memory == nullptr ? 0 : memory->small_charges();
  const size_t piece_bytes = sizeof(Impl) + BytesBehind(bytes);
  if (charges != 0)
    PSD_RETURN_IF_ERROR(ChargeSmallPiece(charges, piece_bytes + kBesideTensorBytes));
  void* piece = TakeSmallMemory(piece_bytes);
  const std::byte* data = static_cast<const std::byte*>(piece) + sizeof(Impl);
  Impl* const impl = new (piece) Impl(shape, elements, dtype, Keeper::kItself, data);
  impl->number.store(charges, std::memory_order_relaxed);
  return Tensor(impl);
}

Tensor Tensor::OfStorage(const Shape& shape, int64_t elements, DType dtype,
                         std::shared_ptr<const void> owner, const std::byte* data,
                         const Block* block) {
  return Owner::Create(std::move(owner), block, 1)->Make(0, shape, elements, dtype, data);
}

const Tensor::Undefined Tensor::undefined_;

absl::StatusOr<Tensor> Tensor::Empty(const Shape& shape, DType dtype, Allocator* allocator) {
  return EmptyOf(shape, shape.NumElements(), dtype, allocator);
}

absl::StatusOr<Tensor> Tensor::EmptyBeside(const Tensor& x, const Shape& shape, DType dtype) {
  return EmptyOf(shape, shape.NumElements(), dtype, AllocatorBeside(x));
}

absl::StatusOr<Tensor> Tensor::EmptyLike(const Tensor& x) {
  return EmptyOf(x.shape(), x.NumElements(), x.dtype(), AllocatorBeside(x));
}

absl::StatusOr<Tensor> Tensor::EmptyOf(const Shape& shape, int64_t elements, DType dtype,
                                       Allocator* allocator) {
  const size_t bytes = static_cast<size_t>(elements) * ItemSize(dtype);
  if (allocator == nullptr) {
    if (bytes <= kMaxBytesInOnePiece) return InOnePiece(shape, elements, dtype, bytes);
    allocator = MemoryScope::Current();
  }
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block, allocator != nullptr
                                                         ? allocator->Allocate(bytes)
                                                         : ResultMemory()->Allocate(bytes));
  const Block* const identity = block.get();
  return OfStorage(shape, elements, dtype, std::move(block), identity->data(), identity);
}

absl::StatusOr<Tensor> Tensor::Zeros(const Shape& shape, DType dtype, Allocator* allocator) {
  PSD_ASSIGN_OR_RETURN(Tensor tensor, Empty(shape, dtype, allocator));
  if (!tensor.OnHost()) {
    tensor = Tensor();  // Full allocates
    return Full(shape, dtype, 0, allocator);
  }
  if (tensor.NumBytes() > 0) std::memset(tensor.mutable_raw_data(), 0, tensor.NumBytes());
  return tensor;
}

namespace {

// Sets all elements of a tensor on a device, which takes no other memory.
absl::Status FillThere(Tensor& tensor, double value) {
  if (tensor.NumElements() == 0) return absl::OkStatus();
  Device* const device = tensor.device();
  PSD_ASSIGN_OR_RETURN(const Tensor one, Tensor::Full(Shape{}, tensor.dtype(), value));
  std::byte* const first = tensor.mutable_address();
  PSD_RETURN_IF_ERROR(CopyBytes(device, first, nullptr, one.raw_data(), one.NumBytes()));
  if (const auto kernel = KernelOf(kStridedCopy, *device); kernel.ok()) {
    const int64_t others = tensor.NumElements() - 1;
    const int64_t stays = 0;
    if (others > 0)
      (*kernel)(CurrentStream(device), first, &others, &stays, 1, one.NumBytes(),
                first + one.NumBytes());
    return absl::OkStatus();
  }
  // The device has no kernels. Each copy doubles what has the value.
  for (size_t filled = one.NumBytes(); filled < tensor.NumBytes();) {
    const size_t bytes = std::min(filled, tensor.NumBytes() - filled);
    PSD_RETURN_IF_ERROR(CopyBytes(device, first + filled, device, first, bytes));
    filled += bytes;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensor> Tensor::Full(const Shape& shape, DType dtype, double value,
                                    Allocator* allocator) {
  PSD_ASSIGN_OR_RETURN(Tensor tensor, Empty(shape, dtype, allocator));
  if (!tensor.OnHost()) {
    PSD_RETURN_IF_ERROR(FillThere(tensor, value));
    return tensor;
  }
  FillAs(dtype, tensor.mutable_raw_data(), tensor.NumElements(), value);
  return tensor;
}

template <typename T>
Tensor Tensor::Of(const Shape& shape, absl::Span<const T> values) {
  return CopyOf<T>(shape, values);
}

template <typename T>
Tensor Tensor::Of(const Shape& shape, const std::vector<T>& values) {
  return CopyOf<T>(shape, values);
}

template <typename T>
Tensor Tensor::Of(const Shape& shape, std::vector<T>&& values) {
  if constexpr (!std::is_same_v<T, bool>) {  // std::vector<bool> packs its bits
    if (values.size() * sizeof(T) > kMaxBytesInOnePiece) {
      CheckCount(values.size(), shape);
      auto owner = std::make_shared<std::vector<T>>(std::move(values));
      const auto* data = reinterpret_cast<const std::byte*>(owner->data());
      return OfStorage(shape, shape.NumElements(), DTypeOf<T>::value, std::move(owner), data,
                       /*block=*/nullptr);
    }
  }
  return CopyOf<T>(shape, values);
}

#define PSD_INSTANTIATE_OF(T)                                      \
  template Tensor Tensor::Of(const Shape&, absl::Span<const T>);   \
  template Tensor Tensor::Of(const Shape&, const std::vector<T>&); \
  template Tensor Tensor::Of(const Shape&, std::vector<T>&&)
PSD_INSTANTIATE_OF(float);
PSD_INSTANTIATE_OF(double);
PSD_INSTANTIATE_OF(int64_t);
PSD_INSTANTIATE_OF(int32_t);
PSD_INSTANTIATE_OF(uint8_t);
PSD_INSTANTIATE_OF(bool);
#undef PSD_INSTANTIATE_OF

absl::StatusOr<Tensor> Tensor::FromBuffer(const Shape& shape, DType dtype, Buffer bytes) {
  const int64_t elements = shape.NumElements();
  const size_t need = static_cast<size_t>(elements) * ItemSize(dtype);
  if (bytes.size() != need) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "a tensor ", DTypeName(dtype), shape.ToString(), " has ", need,
                          " bytes of elements, but the payload has ", bytes.size())),
                      "send exactly its elements");
  }
  if (IsStable(bytes, dtype) && bytes.owner() != nullptr &&
      IsAligned(bytes.data(), ItemSize(dtype))) {
    const std::byte* data = bytes.data();
    const Block* block = bytes.block();
    return OfStorage(shape, elements, dtype, std::move(bytes).owner(), data, block);
  }
  if (!bytes.place().host_readable()) return NotOnDevice("FromBuffer", bytes.place().device());
  PSD_ASSIGN_OR_RETURN(Tensor copy, Empty(shape, dtype));
  if (need > 0) std::memcpy(copy.mutable_raw_data(), bytes.data(), need);
  return copy;
}

absl::Status Tensor::CutRun(const Shape& shape, DType dtype, const Buffer& bytes, size_t step,
                            size_t count, std::vector<Tensor>* tensors) {
  if (count == 0) return absl::OkStatus();
  const int64_t elements = shape.NumElements();
  const size_t need = static_cast<size_t>(elements) * ItemSize(dtype);
  PSD_CHECK(
      count <= std::numeric_limits<uint32_t>::max() && bytes.size() == (count - 1) * step + need,
      "a run of tensors cut from bytes of another size");
  if (!IsStable(bytes, dtype) || bytes.owner() == nullptr ||
      !IsAligned(bytes.data(), ItemSize(dtype)) || step % ItemSize(dtype) != 0) {
    for (size_t i = 0; i < count; ++i) {
      PSD_ASSIGN_OR_RETURN(Tensor copy, FromBuffer(shape, dtype, bytes.Slice(i * step, need)));
      tensors->push_back(std::move(copy));
    }
    return absl::OkStatus();
  }
  Owner* owner = Owner::Create(bytes.owner(), bytes.block(), count);
  for (size_t i = 0; i < count; ++i) {
    tensors->push_back(owner->Make(i, shape, elements, dtype, bytes.data() + i * step));
  }
  return absl::OkStatus();
}

Tensor::ViewImpl* Tensor::NewView(const Shape& shape, int64_t elements,
                                  const std::byte* data) const {
  const Tensor& base =
      impl_->keeper == Keeper::kBase ? static_cast<const ViewImpl*>(impl_)->base : *this;
  return new (TakeSmallMemory(sizeof(ViewImpl))) ViewImpl(shape, elements, data, base);
}

Tensor Tensor::View(const Shape& shape, const Strides& strides, int64_t offset_elements) const {
  const int64_t elements = shape.NumElements();
  ViewImpl* view = NewView(shape, elements,
                           address() + offset_elements * static_cast<int64_t>(ItemSize(dtype())));
  view->layout = LayoutOf(shape, elements, strides);
  if (view->layout == Layout::kOther) view->strides = strides;
  return Tensor(view);
}

Tensor Tensor::Repeated(const Shape& shape) const {
  const int64_t elements = shape.NumElements();
  ViewImpl* view = NewView(shape, elements, address());
  view->layout = elements <= 1 ? Layout::kContiguous : Layout::kOneNumber;
  return Tensor(view);
}

Strides Tensor::StridesOfView() const {
  return static_cast<const ViewImpl*>(impl_)->strides;
}

std::shared_ptr<const void> Tensor::storage() const {
  if (impl_ == nullptr) return nullptr;
  switch (impl_->keeper) {
    case Keeper::kItself: {
      auto handle = std::allocate_shared<const Tensor>(SmallMemoryAllocator<Tensor>(), *this);
      return std::shared_ptr<const void>(std::move(handle), impl_);
    }
    case Keeper::kBase:
      return static_cast<const ViewImpl*>(impl_)->base.storage();
    case Keeper::kOwner:
      return Owner::Of(impl_)->storage;
  }
  return nullptr;
}

const Block* Tensor::block() const {
  if (impl_ == nullptr) return nullptr;
  if (impl_->keeper == Keeper::kBase) return static_cast<const ViewImpl*>(impl_)->base.block();
  return impl_->keeper == Keeper::kOwner ? Owner::Of(impl_)->block : nullptr;
}

const MemoryPlace& Tensor::place() const {
  const Block* const identity = block();
  return identity == nullptr ? kHeapPlace : identity->place();
}

absl::Status Tensor::CheckOnHost(absl::string_view operation) const {
  if (OnHost()) return absl::OkStatus();
  return NotOnDevice(absl::StrCat(operation, " of ", ToString()), device());
}

absl::StatusOr<Tensor> Tensor::CloneThere(Allocator* allocator) const {
  PSD_ASSIGN_OR_RETURN(Tensor copy, Empty(shape(), dtype(), allocator));
  if (IsContiguous()) {
    PSD_RETURN_IF_ERROR(
        CopyBytes(copy.device(), copy.mutable_address(), device(), address(), NumBytes()));
    return copy;
  }
  if (device() != copy.device()) {
    PSD_ASSIGN_OR_RETURN(const Tensor dense, Clone());
    return dense.Clone(allocator);
  }
  PSD_ASSIGN_OR_RETURN(StridedCopyKernel* const kernel, KernelOf(kStridedCopy, *device()));
  kernel(CurrentStream(device()), address(), shape().extents().data(), strides().data(), rank(),
         ItemSize(dtype()), copy.mutable_address());
  return copy;
}

absl::StatusOr<Tensor> Tensor::Clone(Allocator* allocator) const {
  if (!OnHost()) return CloneThere(allocator != nullptr ? allocator : &device()->memory());
  PSD_ASSIGN_OR_RETURN(Tensor copy, Empty(shape(), dtype(), allocator));
  if (!copy.OnHost()) {
    PSD_ASSIGN_OR_RETURN(const Tensor dense, Contiguous());
    PSD_RETURN_IF_ERROR(
        CopyBytes(copy.device(), copy.mutable_address(), nullptr, dense.raw_data(), NumBytes()));
    return copy;
  }
  kernels::StridedCopy(raw_data(), shape().extents().data(), strides().data(), rank(),
                       ItemSize(dtype()), copy.mutable_raw_data());
  return copy;
}

absl::StatusOr<Tensor> Tensor::ToHost(Allocator* allocator) const {
  if (OnHost()) return *this;
  PSD_ASSIGN_OR_RETURN(const Tensor dense, Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor copy, Empty(shape(), dtype(), allocator));
  PSD_RETURN_IF_ERROR(
      CopyBytes(nullptr, copy.mutable_raw_data(), dense.device(), dense.address(), NumBytes()));
  return copy;
}

bool Tensor::IsExclusive() const {
  // Memory order acquire: all reads by former holders have happened before the caller writes.
  return impl_ != nullptr && impl_->keeper == Keeper::kItself &&
         impl_->handles.load(std::memory_order_acquire) == 1;
}

std::string Tensor::ToString() const {
  if (!defined()) return "undefined";
  return absl::StrCat(DTypeName(dtype()), shape().ToString());
}

}  // namespace psd
