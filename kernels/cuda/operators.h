#pragma once

// Operators whose elements are computed one by one, for GPUs and their emulation. They are
// documented in kernels/elementwise.h, convert.h, reduce.h, strided.h, random.h and rows/rows.h.
//
// A body has the arrays and numbers of one call. body(i) computes element i of the result, and
// body.VisitArrays(visit) calls visit(array) for each of its arrays. Each With function below calls
// run(body, count) with the body of a call and the number of elements; nothing is run for 0.
// make(address, size) makes an array from a typed address (kernels/cuda/arrays.h).
//
// Sums are in double and in a fixed order, so results repeat. Where the CPU rounds once too, the
// bits are the CPU's, except those of NaN: arithmetic, gradients, maxima, casts, copies and random
// numbers. Exp, log and tanh, and what is computed of them, differ in the last bits.

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/convert.h"
#include "kernels/cuda/numbers.h"
#include "kernels/host_device.h"

namespace psd::kernels::cuda {

// A bool in memory, as a byte that need not be 0 or 1.
struct Truth {
  uint8_t byte;
};
template <typename T>
PSD_HOST_DEVICE T NumberAt(T element) {
  return element;
}
PSD_HOST_DEVICE inline uint8_t NumberAt(Truth element) {
  return element.byte != 0 ? 1 : 0;
}

// ---- arithmetic. Integers wrap around.

struct AddOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct SubOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
    } else {
      return a - b;
    }
  }
};
struct MulOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    } else {
      return a * b;
    }
  }
};
// Requires: T is a floating-point type.
struct DivOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T a, T b) const {
    return a / b;
  }
};

// ---- functions

struct NegOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(U{0} - static_cast<U>(x));
    } else {
      return -x;
    }
  }
};
struct ReluOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T x) const {
    return x < 0 ? T{0} : x;
  }
};
struct ExpOp {
  PSD_HOST_DEVICE float operator()(float x) const { return ::expf(x); }
  PSD_HOST_DEVICE double operator()(double x) const { return ::exp(x); }
};
struct LogOp {
  PSD_HOST_DEVICE float operator()(float x) const { return ::logf(x); }
  PSD_HOST_DEVICE double operator()(double x) const { return ::log(x); }
};
struct TanhOp {
  PSD_HOST_DEVICE float operator()(float x) const { return ::tanhf(x); }
  PSD_HOST_DEVICE double operator()(double x) const { return ::tanh(x); }
};
struct SigmoidOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T x) const {
    return 1 / (1 + ExpOp()(-x));
  }
};
struct SqrtOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T x) const {
    return SquareRoot(x);
  }
};

// ---- gradients, from the result y and its gradient g

struct ReluGradientOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T y, T g) const {
    return y <= 0 ? T{0} : g;
  }
};
struct SigmoidGradientOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T y, T g) const {
    return g * (y * (1 - y));
  }
};
struct TanhGradientOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T y, T g) const {
    return g * (1 - y * y);
  }
};
struct SqrtGradientOp {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T y, T g) const {
    return g / (y + y);
  }
};

// ---- strided arrays

// The most axes of a strided array.
inline constexpr int kMostAxes = 16;

// Where the elements of a strided array lie. A value, so that it can be an argument of a kernel.
struct StridedPlaces {
  int rank = 0;
  int64_t extents[kMostAxes] = {};
  int64_t strides[kMostAxes] = {};  // in elements
  // The places of the elements that are first and last in memory.
  int64_t lowest = 0, highest = 0;

  StridedPlaces() = default;
  StridedPlaces(const int64_t* from_extents, const int64_t* from_strides, int from_rank)
      : rank(from_rank) {
    for (int axis = 0; axis < rank; ++axis) {
      extents[axis] = from_extents[axis];
      strides[axis] = from_strides[axis];
      const int64_t farthest = (extents[axis] - 1) * strides[axis];
      (farthest < 0 ? lowest : highest) += farthest;
    }
  }

  size_t count() const {
    size_t count = 1;
    for (int axis = 0; axis < rank; ++axis) count *= static_cast<size_t>(extents[axis]);
    return count;
  }
  // The elements of memory from the lowest place to the highest. Requires: count() > 0.
  size_t reach() const { return static_cast<size_t>(highest - lowest + 1); }
  // Returns the place of element i, in row-major order, counted from the lowest one.
  PSD_HOST_DEVICE size_t Of(size_t i) const {
    int64_t place = -lowest;
    auto rest = static_cast<int64_t>(i);
    for (int axis = rank - 1; axis >= 0; --axis) {
      place += rest % extents[axis] * strides[axis];
      rest /= extents[axis];
    }
    return static_cast<size_t>(place);
  }
};

// ---- reductions

// A dense array seen as [outer, length, inner], where `length` is the extent of the reduced axis.
struct ReducedAxis {
  size_t outer = 1, length = 1, inner = 1;

  // Returns the index of the first element that result i is made of. The others follow at a
  // distance of `inner`.
  PSD_HOST_DEVICE size_t First(size_t i) const { return i / inner * length * inner + i % inner; }
};

// Sums floating-point numbers in double, and integers so that they wrap around.
template <typename T>
using SumType = std::conditional_t<std::is_integral_v<T>, T, double>;

template <typename T, typename Array>
PSD_HOST_DEVICE T SumAlong(const Array& x, const ReducedAxis& axis, size_t i) {
  SumType<T> sum = 0;
  const size_t first = axis.First(i);
  for (size_t k = 0; k < axis.length; ++k)
    sum = AddOp()(sum, static_cast<SumType<T>>(x[first + k * axis.inner]));
  return static_cast<T>(sum);
}

// Returns the position along the axis of the first maximum. A NaN counts as larger than any number.
template <typename T, typename Array>
PSD_HOST_DEVICE size_t ArgMaxAlong(const Array& x, const ReducedAxis& axis, size_t i) {
  const size_t first = axis.First(i);
  size_t best = 0;
  T most = x[first];
  for (size_t k = 1; k < axis.length; ++k) {
    const T value = x[first + k * axis.inner];
    if (value > most || (value != value && most == most)) {
      best = k;
      most = value;
    }
  }
  return best;
}

// ---- bodies

template <typename T, class Op, template <typename> class ArrayOf>
struct BinaryBody {
  ArrayOf<const T> a, b;
  ArrayOf<T> out;
  StridedPlaces a_places, b_places;

  PSD_HOST_DEVICE void operator()(size_t i) const {
    out[i] = Op()(a[a_places.Of(i)], b[b_places.Of(i)]);
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(a), visit(b), visit(out);
  }
};

template <typename T, class Op, template <typename> class ArrayOf>
struct UnaryBody {
  ArrayOf<const T> x;
  ArrayOf<T> out;

  PSD_HOST_DEVICE void operator()(size_t i) const { out[i] = Op()(x[i]); }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(x), visit(out);
  }
};

template <typename T, class Op, template <typename> class ArrayOf>
struct GradientBody {
  ArrayOf<const T> y, g;
  ArrayOf<T> out;

  PSD_HOST_DEVICE void operator()(size_t i) const { out[i] = Op()(y[i], g[i]); }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(y), visit(g), visit(out);
  }
};

template <typename From, typename To, template <typename> class ArrayOf>
struct CastBody {
  ArrayOf<const From> x;
  ArrayOf<To> out;

  PSD_HOST_DEVICE void operator()(size_t i) const { out[i] = Convert<To>(NumberAt(x[i])); }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(x), visit(out);
  }
};

enum class Reduction { kSum, kMax, kArgMax };

template <typename T, Reduction kReduction, template <typename> class ArrayOf>
struct ReduceBody {
  using Result = std::conditional_t<kReduction == Reduction::kArgMax, int64_t, T>;
  ArrayOf<const T> x;
  ArrayOf<Result> out;
  ReducedAxis axis;

  PSD_HOST_DEVICE void operator()(size_t i) const {
    if constexpr (kReduction == Reduction::kSum) {
      out[i] = SumAlong<T>(x, axis, i);
    } else if constexpr (kReduction == Reduction::kMax) {
      out[i] = x[axis.First(i) + ArgMaxAlong<T>(x, axis, i) * axis.inner];
    } else {
      out[i] = static_cast<int64_t>(ArgMaxAlong<T>(x, axis, i));
    }
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(x), visit(out);
  }
};

// An element has the size of Item.
template <typename Item, template <typename> class ArrayOf>
struct StridedCopyBody {
  ArrayOf<const Item> from;
  ArrayOf<Item> to;
  StridedPlaces places;

  PSD_HOST_DEVICE void operator()(size_t i) const { to[i] = from[places.Of(i)]; }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(from), visit(to);
  }
};

// Copies rows from or to the places `ids` of a table. A row has `width` items.
template <typename Item, bool kGather, template <typename> class ArrayOf>
struct CopyRowsBody {
  ArrayOf<Item> table;
  ArrayOf<const int64_t> ids;
  ArrayOf<Item> rows;
  size_t width;

  PSD_HOST_DEVICE void operator()(size_t i) const {
    const size_t place = static_cast<size_t>(ids[i / width]) * width + i % width;
    if constexpr (kGather) {
      rows[i] = table[place];
    } else {
      table[place] = rows[i];
    }
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(table), visit(ids), visit(rows);
  }
};

template <class Numbers, typename T, template <typename> class ArrayOf>
struct RandomBody {
  Numbers numbers;
  ArrayOf<T> out;

  PSD_HOST_DEVICE void operator()(size_t i) const { out[i] = numbers(i); }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(out);
  }
};

// ---- dispatch

enum class NumberType : uint8_t { kF32, kF64, kF16, kBF16, kI32, kI64, kU8, kBool };

// Calls f with a value of the type. Requires: for WithFloatType, f32 or f64; for WithNumberType,
// also i32 or i64.
template <typename F>
void WithFloatType(NumberType type, const F& f) {
  type == NumberType::kF64 ? f(double{}) : f(float{});
}
template <typename F>
void WithNumberType(NumberType type, const F& f) {
  if (type == NumberType::kI32) return f(int32_t{});
  if (type == NumberType::kI64) return f(int64_t{});
  WithFloatType(type, f);
}
template <typename F>
void WithAnyType(NumberType type, const F& f) {
  switch (type) {
    case NumberType::kF16:
      return f(Half{});
    case NumberType::kBF16:
      return f(BFloat16{});
    case NumberType::kU8:
      return f(uint8_t{});
    case NumberType::kBool:
      return f(bool{});
    default:
      return WithNumberType(type, f);
  }
}

// Calls f with the widest item of which rows or elements of `bytes` bytes consist.
template <typename F>
void WithItem(size_t bytes, const F& f) {
  if (bytes % 8 == 0) return f(uint64_t{});
  if (bytes % 4 == 0) return f(uint32_t{});
  if (bytes % 2 == 0) return f(uint16_t{});
  f(uint8_t{});
}

template <typename T>
const T* As(const void* address) {
  return static_cast<const T*>(address);
}
template <typename T>
T* As(void* address) {
  return static_cast<T*>(address);
}

template <class Op, template <typename> class ArrayOf, typename Make, typename Run>
void WithBinary(NumberType type, const void* a, const StridedPlaces& a_places, const void* b,
                const StridedPlaces& b_places, void* out, const Make& make, const Run& run) {
  const auto with = [&](auto zero) {
    using T = decltype(zero);
    const size_t count = a_places.count();
    if (count == 0) return;
    run(BinaryBody<T, Op, ArrayOf>{make(As<T>(a) + a_places.lowest, a_places.reach()),
                                   make(As<T>(b) + b_places.lowest, b_places.reach()),
                                   make(As<T>(out), count), a_places, b_places},
        count);
  };
  if constexpr (std::is_same_v<Op, DivOp>) {
    WithFloatType(type, with);
  } else {
    WithNumberType(type, with);
  }
}

template <class Op, template <typename> class ArrayOf, typename Make, typename Run>
void WithUnary(NumberType type, const void* x, void* out, size_t count, const Make& make,
               const Run& run) {
  const auto with = [&](auto zero) {
    using T = decltype(zero);
    if (count == 0) return;
    run(UnaryBody<T, Op, ArrayOf>{make(As<T>(x), count), make(As<T>(out), count)}, count);
  };
  if constexpr (std::is_same_v<Op, NegOp>) {
    WithNumberType(type, with);
  } else {
    WithFloatType(type, with);
  }
}

template <class Op, template <typename> class ArrayOf, typename Make, typename Run>
void WithGradient(NumberType type, const void* y, const void* g, void* out, size_t count,
                  const Make& make, const Run& run) {
  if (count == 0) return;
  WithFloatType(type, [&](auto zero) {
    using T = decltype(zero);
    run(GradientBody<T, Op, ArrayOf>{make(As<T>(y), count), make(As<T>(g), count),
                                     make(As<T>(out), count)},
        count);
  });
}

template <template <typename> class ArrayOf, typename Make, typename Run>
void WithCast(NumberType from, const void* x, NumberType to, void* out, size_t count,
              const Make& make, const Run& run) {
  if (count == 0) return;
  WithAnyType(from, [&](auto source) {
    // A bool is read as a byte, so that other bytes than 0 and 1 are safe, and becomes 0 or 1.
    using From =
        std::conditional_t<std::is_same_v<decltype(source), bool>, Truth, decltype(source)>;
    WithAnyType(to, [&](auto target) {
      using To = decltype(target);
      run(CastBody<From, To, ArrayOf>{make(As<From>(x), count), make(As<To>(out), count)}, count);
    });
  });
}

template <Reduction kReduction, template <typename> class ArrayOf, typename Make, typename Run>
void WithReduction(NumberType type, const void* x, const ReducedAxis& axis, void* out,
                   const Make& make, const Run& run) {
  const size_t count = axis.outer * axis.inner;
  if (count == 0) return;
  WithNumberType(type, [&](auto zero) {
    using T = decltype(zero);
    using Body = ReduceBody<T, kReduction, ArrayOf>;
    run(Body{make(As<T>(x), count * axis.length), make(As<typename Body::Result>(out), count),
             axis},
        count);
  });
}

// Requires: item_bytes is 1, 2, 4 or 8.
template <template <typename> class ArrayOf, typename Make, typename Run>
void WithStridedCopy(const void* from, const StridedPlaces& places, size_t item_bytes, void* to,
                     const Make& make, const Run& run) {
  const size_t count = places.count();
  if (count == 0) return;
  WithItem(item_bytes, [&](auto zero) {
    using Item = decltype(zero);
    run(StridedCopyBody<Item, ArrayOf>{make(As<Item>(from) + places.lowest, places.reach()),
                                       make(As<Item>(to), count), places},
        count);
  });
}

// `table_bytes` is the size of the table, or of what is known of it.
template <bool kGather, template <typename> class ArrayOf, typename Make, typename Run>
void WithRows(void* table, size_t table_bytes, size_t row_bytes, const int64_t* ids, size_t count,
              void* rows, const Make& make, const Run& run) {
  if (count == 0 || row_bytes == 0) return;
  // A view may start anywhere in its block, so the addresses limit the width of an item too.
  const size_t width_bits =
      row_bytes | reinterpret_cast<uintptr_t>(table) | reinterpret_cast<uintptr_t>(rows);
  WithItem(width_bits, [&](auto zero) {
    using Item = decltype(zero);
    const size_t width = row_bytes / sizeof(Item);
    run(CopyRowsBody<Item, kGather, ArrayOf>{make(As<Item>(table), table_bytes / sizeof(Item)),
                                             make(ids, count), make(As<Item>(rows), count * width),
                                             width},
        count * width);
  });
}

template <template <typename> class Numbers, template <typename> class ArrayOf, typename Make,
          typename Run>
void WithRandom(NumberType type, uint64_t seed, double first, double second, void* out,
                size_t count, const Make& make, const Run& run) {
  if (count == 0) return;
  WithFloatType(type, [&](auto zero) {
    using T = decltype(zero);
    run(RandomBody<Numbers<T>, T, ArrayOf>{Numbers<T>{seed, first, second},
                                           make(As<T>(out), count)},
        count);
  });
}

}  // namespace psd::kernels::cuda
