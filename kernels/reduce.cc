#include "kernels/reduce.h"

#include <algorithm>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "kernels/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels {
namespace HWY_NAMESPACE {

// Sums one block with four independent vector accumulators.
template <typename T>
T SumBlock(const T* x, size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, x + i));
    b = hn::Add(b, hn::LoadU(d, x + i + lanes));
    c = hn::Add(c, hn::LoadU(d, x + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, x + i + 3 * lanes));
  }
  for (; i + lanes <= count; i += lanes) a = hn::Add(a, hn::LoadU(d, x + i));
  if (i < count) b = hn::Add(b, LoadPartial(d, x + i, count - i, T{0}));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

template <typename T>
T SumPairwise(const T* x, size_t count) {
  constexpr size_t kBlock = 1024;
  if (count <= kBlock) return SumBlock(x, count);
  const size_t half = (count / 2 + kBlock - 1) / kBlock * kBlock;
  return SumPairwise(x, half) + SumPairwise(x + half, count - half);
}

// Sums one vector of columns over all rows: first in blocks of rows, whose sums are then added.
template <class D, class Load>
HWY_INLINE hn::Vec<D> SumColumnVector(D d, size_t rows, Load load) {
  constexpr size_t kBlock = 64;
  auto total = hn::Zero(d);
  for (size_t row0 = 0; row0 < rows; row0 += kBlock) {
    const size_t row1 = row0 + kBlock < rows ? row0 + kBlock : rows;
    auto block = hn::Zero(d);
    for (size_t row = row0; row < row1; ++row) block = hn::Add(block, load(d, row));
    total = hn::Add(total, block);
  }
  return total;
}

template <typename T>
struct LoadFull {
  const T* x;
  size_t cols;
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, size_t row) const {
    return hn::LoadU(d, x + row * cols);
  }
};

template <typename T>
struct LoadRest {
  const T* x;
  size_t cols;
  size_t count;
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, size_t row) const {
    return LoadPartial(d, x + row * cols, count, T{0});
  }
};

template <typename T>
void SumColumnsT(const T* x, size_t rows, size_t cols, T* out) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  size_t col = 0;
  for (; col + lanes <= cols; col += lanes)
    hn::StoreU(SumColumnVector(d, rows, LoadFull<T>{x + col, cols}), d, out + col);
  if (col == cols) return;
  const LoadRest<T> load{x + col, cols, cols - col};
  StorePartial(d, SumColumnVector(d, rows, load), out + col, cols - col);
}

float SumF32(const float* x, size_t count) {
  return SumPairwise(x, count);
}
double SumF64(const double* x, size_t count) {
  return SumPairwise(x, count);
}
void SumColumnsF32(const float* x, size_t rows, size_t cols, float* out) {
  SumColumnsT(x, rows, cols, out);
}
void SumColumnsF64(const double* x, size_t rows, size_t cols, double* out) {
  SumColumnsT(x, rows, cols, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace psd::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(SumF32);
HWY_EXPORT(SumF64);
HWY_EXPORT(SumColumnsF32);
HWY_EXPORT(SumColumnsF64);

namespace {

template <typename T>
void SumColumnsIntegers(const T* x, size_t rows, size_t cols, T* out) {
  using U = std::make_unsigned_t<T>;
  std::fill(out, out + cols, T{0});
  for (size_t row = 0; row < rows; ++row)
    for (size_t col = 0; col < cols; ++col)
      out[col] = static_cast<T>(static_cast<U>(out[col]) + static_cast<U>(x[row * cols + col]));
}

template <typename T>
T SumIntegers(const T* x, size_t count) {
  using U = std::make_unsigned_t<T>;
  U total = 0;
  for (size_t i = 0; i < count; ++i) total += static_cast<U>(x[i]);
  return static_cast<T>(total);
}

}  // namespace

float Sum(const float* x, size_t count) {
  return HWY_DYNAMIC_DISPATCH(SumF32)(x, count);
}
double Sum(const double* x, size_t count) {
  return HWY_DYNAMIC_DISPATCH(SumF64)(x, count);
}
int32_t Sum(const int32_t* x, size_t count) {
  return SumIntegers(x, count);
}
int64_t Sum(const int64_t* x, size_t count) {
  return SumIntegers(x, count);
}

void SumColumns(const float* x, size_t rows, size_t cols, float* out) {
  HWY_DYNAMIC_DISPATCH(SumColumnsF32)(x, rows, cols, out);
}
void SumColumns(const double* x, size_t rows, size_t cols, double* out) {
  HWY_DYNAMIC_DISPATCH(SumColumnsF64)(x, rows, cols, out);
}
void SumColumns(const int32_t* x, size_t rows, size_t cols, int32_t* out) {
  SumColumnsIntegers(x, rows, cols, out);
}
void SumColumns(const int64_t* x, size_t rows, size_t cols, int64_t* out) {
  SumColumnsIntegers(x, rows, cols, out);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
