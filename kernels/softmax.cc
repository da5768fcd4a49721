#include "kernels/softmax.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "kernels/map-inl.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels {
namespace HWY_NAMESPACE {

// Returns the maximum of a row. If the row holds a NaN, the result may be any number or NaN; the
// NaN still reaches the softmax by x - maximum.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE T RowMax(D d, const T* x, size_t cols) {
  const size_t lanes = hn::Lanes(d);
  const T lowest = -std::numeric_limits<T>::infinity();
  auto most = hn::Set(d, lowest);
  size_t i = 0;
  for (; i + lanes <= cols; i += lanes) most = hn::Max(most, hn::LoadU(d, x + i));
  if (i < cols) most = hn::Max(most, LoadPartial(d, x + i, cols - i, lowest));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// Returns the sum of f(x[i]) over the row. Requires: f(fill) is zero.
template <class D, class F, typename T = hn::TFromD<D>>
HWY_INLINE T RowSum(D d, F f, const T* x, size_t cols, T fill) {
  const size_t lanes = hn::Lanes(d);
  auto total = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= cols; i += lanes) total = hn::Add(total, f(d, hn::LoadU(d, x + i)));
  if (i < cols) total = hn::Add(total, f(d, LoadPartial(d, x + i, cols - i, fill)));
  return hn::GetLane(hn::SumOfLanes(d, total));
}

template <class D, typename T = hn::TFromD<D>>
HWY_INLINE T RowDot(D d, const T* x, const T* y, size_t cols) {
  const size_t lanes = hn::Lanes(d);
  auto total = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= cols; i += lanes)
    total = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), total);
  if (i < cols)
    total = hn::MulAdd(LoadPartial(d, x + i, cols - i, T{0}), LoadPartial(d, y + i, cols - i, T{0}),
                       total);
  return hn::GetLane(hn::SumOfLanes(d, total));
}

struct Identity {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x) const {
    return x;
  }
};

template <typename T>
struct ExpLess {
  T less;
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return SafeExp(d, hn::Sub(x, hn::Set(d, less)));
  }
};

template <typename T>
struct Times {
  T factor;
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::Mul(x, hn::Set(d, factor));
  }
};

template <typename T>
struct Less {
  T less;
  T more;
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::Sub(hn::Sub(x, hn::Set(d, less)), hn::Set(d, more));
  }
};

template <typename T>
struct SoftmaxGradientF {
  T dot;
  template <class D, class V>
  HWY_INLINE V operator()(D d, V y, V g) const {
    return hn::Mul(y, hn::Sub(g, hn::Set(d, dot)));
  }
};

template <typename T>
struct LogSoftmaxGradientF {
  T sum;
  template <class D, class V>
  HWY_INLINE V operator()(D d, V y, V g) const {
    return hn::Sub(g, hn::Mul(SafeExp(d, y), hn::Set(d, sum)));
  }
};

template <typename T>
struct ScaledExp {
  T scale;
  template <class D, class V>
  HWY_INLINE V operator()(D d, V y) const {
    return hn::Mul(SafeExp(d, y), hn::Set(d, scale));
  }
};

template <typename T>
void SoftmaxT(const T* x, size_t rows, size_t cols, T* y) {
  const hn::ScalableTag<T> d;
  for (size_t row = 0; row < rows; ++row, x += cols, y += cols) {
    Map(d, ExpLess<T>{RowMax(d, x, cols)}, Run<T>{x}, y, cols);
    const T sum = RowSum(d, Identity(), y, cols, T{0});
    Map(d, Times<T>{T{1} / sum}, Run<T>{y}, y, cols);
  }
}

template <typename T>
void LogSoftmaxT(const T* x, size_t rows, size_t cols, T* y) {
  const hn::ScalableTag<T> d;
  for (size_t row = 0; row < rows; ++row, x += cols, y += cols) {
    const T most = RowMax(d, x, cols);
    const T fill = -std::numeric_limits<T>::infinity();
    const T sum = RowSum(d, ExpLess<T>{most}, x, cols, fill);
    Map(d, Less<T>{most, std::log(sum)}, Run<T>{x}, y, cols);
  }
}

template <typename T>
void SoftmaxGradientT(const T* y, const T* g, size_t rows, size_t cols, T* dx) {
  const hn::ScalableTag<T> d;
  for (size_t row = 0; row < rows; ++row, y += cols, g += cols, dx += cols)
    Map2(d, SoftmaxGradientF<T>{RowDot(d, y, g, cols)}, Run<T>{y}, Run<T>{g}, dx, cols);
}

template <typename T>
void LogSoftmaxGradientT(const T* y, const T* g, size_t rows, size_t cols, T* dx) {
  const hn::ScalableTag<T> d;
  for (size_t row = 0; row < rows; ++row, y += cols, g += cols, dx += cols) {
    const T sum = RowSum(d, Identity(), g, cols, T{0});
    Map2(d, LogSoftmaxGradientF<T>{sum}, Run<T>{y}, Run<T>{g}, dx, cols);
  }
}

template <typename T>
void CrossEntropyGradientT(const T* y, const int64_t* labels, T scale, size_t rows, size_t cols,
                           T* dx) {
  const hn::ScalableTag<T> d;
  Map(d, ScaledExp<T>{scale}, Run<T>{y}, dx, rows * cols);
  for (size_t row = 0; row < rows; ++row)
    dx[row * cols + static_cast<size_t>(labels[row])] -= scale;
}

void SoftmaxF32(const float* x, size_t rows, size_t cols, float* y) {
  SoftmaxT(x, rows, cols, y);
}
void SoftmaxF64(const double* x, size_t rows, size_t cols, double* y) {
  SoftmaxT(x, rows, cols, y);
}
void LogSoftmaxF32(const float* x, size_t rows, size_t cols, float* y) {
  LogSoftmaxT(x, rows, cols, y);
}
void LogSoftmaxF64(const double* x, size_t rows, size_t cols, double* y) {
  LogSoftmaxT(x, rows, cols, y);
}
void SoftmaxGradientF32(const float* y, const float* g, size_t rows, size_t cols, float* dx) {
  SoftmaxGradientT(y, g, rows, cols, dx);
}
void SoftmaxGradientF64(const double* y, const double* g, size_t rows, size_t cols, double* dx) {
  SoftmaxGradientT(y, g, rows, cols, dx);
}
void LogSoftmaxGradientF32(const float* y, const float* g, size_t rows, size_t cols, float* dx) {
  LogSoftmaxGradientT(y, g, rows, cols, dx);
}
void LogSoftmaxGradientF64(const double* y, const double* g, size_t rows, size_t cols, double* dx) {
  LogSoftmaxGradientT(y, g, rows, cols, dx);
}
void CrossEntropyGradientF32(const float* y, const int64_t* labels, float scale, size_t rows,
                             size_t cols, float* dx) {
  CrossEntropyGradientT(y, labels, scale, rows, cols, dx);
}
void CrossEntropyGradientF64(const double* y, const int64_t* labels, double scale, size_t rows,
                             size_t cols, double* dx) {
  CrossEntropyGradientT(y, labels, scale, rows, cols, dx);
}

}  // namespace HWY_NAMESPACE
}  // namespace psd::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(SoftmaxF32);
HWY_EXPORT(SoftmaxF64);
HWY_EXPORT(LogSoftmaxF32);
HWY_EXPORT(LogSoftmaxF64);
HWY_EXPORT(SoftmaxGradientF32);
HWY_EXPORT(SoftmaxGradientF64);
HWY_EXPORT(LogSoftmaxGradientF32);
HWY_EXPORT(LogSoftmaxGradientF64);
HWY_EXPORT(CrossEntropyGradientF32);
HWY_EXPORT(CrossEntropyGradientF64);

void Softmax(const float* x, size_t rows, size_t cols, float* y) {
  HWY_DYNAMIC_DISPATCH(SoftmaxF32)(x, rows, cols, y);
}
void Softmax(const double* x, size_t rows, size_t cols, double* y) {
  HWY_DYNAMIC_DISPATCH(SoftmaxF64)(x, rows, cols, y);
}
void LogSoftmax(const float* x, size_t rows, size_t cols, float* y) {
  HWY_DYNAMIC_DISPATCH(LogSoftmaxF32)(x, rows, cols, y);
}
void LogSoftmax(const double* x, size_t rows, size_t cols, double* y) {
  HWY_DYNAMIC_DISPATCH(LogSoftmaxF64)(x, rows, cols, y);
}
void SoftmaxGradient(const float* y, const float* g, size_t rows, size_t cols, float* dx) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradientF32)(y, g, rows, cols, dx);
}
void SoftmaxGradient(const double* y, const double* g, size_t rows, size_t cols, double* dx) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradientF64)(y, g, rows, cols, dx);
}
void LogSoftmaxGradient(const float* y, const float* g, size_t rows, size_t cols, float* dx) {
  HWY_DYNAMIC_DISPATCH(LogSoftmaxGradientF32)(y, g, rows, cols, dx);
}
void LogSoftmaxGradient(const double* y, const double* g, size_t rows, size_t cols, double* dx) {
  HWY_DYNAMIC_DISPATCH(LogSoftmaxGradientF64)(y, g, rows, cols, dx);
}
void CrossEntropyGradient(const float* y, const int64_t* labels, float scale, size_t rows,
                          size_t cols, float* dx) {
  HWY_DYNAMIC_DISPATCH(CrossEntropyGradientF32)(y, labels, scale, rows, cols, dx);
}
void CrossEntropyGradient(const double* y, const int64_t* labels, double scale, size_t rows,
                          size_t cols, double* dx) {
  HWY_DYNAMIC_DISPATCH(CrossEntropyGradientF64)(y, labels, scale, rows, cols, dx);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
