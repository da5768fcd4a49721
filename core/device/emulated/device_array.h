#pragma once

// Arguments of kernels that run on an emulated device.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/buffer.h"
#include "core/device/emulated/device_arena.h"

namespace psd {

// `size` elements in the memory of a device. The host can pass it on, but not use its elements.
// When a kernel runs, the launcher has replaced the address by one that works there.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  // Requires: `data` is an address of a device's memory.
  DeviceArray(T* data, size_t size) : data_(data), size_(size) {}
  // The elements of a block, without a rest that is smaller than an element.
  explicit DeviceArray(const Block& block)
      : DeviceArray(reinterpret_cast<T*>(block.data()), block.size() / sizeof(T)) {}

  T* data() const { return data_; }
  size_t size() const { return size_; }
  // For kernels. An index out of range ends the process, with a line that names the operation and
  // the index.
  T& operator[](size_t index) const {
    if (index >= size_) OutOfRange(index);
    return data_[index];
  }
  // For kernels that access several elements at once, from element `index` on. An address that is
  // not a multiple of `alignment` ends the process, with a line that names the operation.
  void RequireAligned(size_t index, size_t alignment) const {
    if (reinterpret_cast<uintptr_t>(data_ + index) % alignment != 0) Misaligned(index, alignment);
  }

 private:
  [[noreturn]] void OutOfRange(size_t index) const {
    const char* const operation = emulated::CurrentOperation();
    std::fprintf(stderr, "the operation %s used element %zu of an array of %zu elements\n",
                 operation == nullptr ? "(none: the host)" : operation, index, size_);
    std::abort();
  }

  [[noreturn]] void Misaligned(size_t index, size_t alignment) const {
    std::fprintf(
        stderr,
        "the operation %s accessed %zu bytes at once, but element %zu is not aligned to them\n",
        emulated::CurrentOperation(), alignment, index);
    std::abort();
  }

  T* data_ = nullptr;
  size_t size_ = 0;
};

namespace emulated {

template <typename Argument, typename Visit, typename = void>
struct VisitsItself : std::false_type {};
template <typename Argument, typename Visit>
struct VisitsItself<
    Argument, Visit,
    std::void_t<decltype(std::declval<Argument&>().VisitArrays(std::declval<Visit&>()))>>
    : std::true_type {};

// Calls `visit` for every DeviceArray in an argument of a kernel: an array, a vector of arguments,
// or a struct with a member function template VisitArrays(visit) that calls VisitArrays for each of
// its parts. Other arguments have none.
template <typename T, typename Visit>
void VisitArrays(DeviceArray<T>& array, Visit& visit) {
  visit(array);
}
template <typename Argument, typename Visit>
void VisitArrays(Argument& argument, Visit& visit) {
  if constexpr (VisitsItself<Argument, Visit>::value) {
    argument.VisitArrays(visit);
  } else {
    static_assert(!std::is_pointer_v<Argument>,
                  "a kernel gets arrays, because pointers are not "
                  "translated");
  }
}
template <typename Argument, typename Visit>
void VisitArrays(std::vector<Argument>& arguments, Visit& visit) {
  for (Argument& each : arguments) VisitArrays(each, visit);
}

}  // namespace emulated
}  // namespace psd
