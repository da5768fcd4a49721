#include "kernels/elementwise.h"

#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
#include "kernels/map-inl.h"
#include "kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels {
namespace HWY_NAMESPACE {

struct AddF {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Add(a, b);
  }
};
struct SubF {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Sub(a, b);
  }
};
struct MulF {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Mul(a, b);
  }
};
struct DivF {
  template <class D, class V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Div(a, b);
  }
};
struct NegF {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x) const {
    return hn::Neg(x);
  }
};
struct ReluF {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
  }
};
struct SigmoidF {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    const V one = hn::Set(d, hn::TFromD<D>{1});
    return hn::Div(one, hn::Add(one, SafeExp(d, hn::Neg(x))));
  }
};
struct TanhF {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return SafeTanh(d, x);
  }
};
struct ExpF {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return SafeExp(d, x);
  }
};
struct LogF {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return SafeLog(d, x);
  }
};
struct SqrtF {
  template <class D, class V>
  HWY_INLINE V operator()(D, V x) const {
    return hn::Sqrt(x);
  }
};
struct ReluGradientF {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V y, V g) const {
    return hn::IfThenZeroElse(hn::Le(y, hn::Zero(d)), g);
  }
};
struct SigmoidGradientF {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V y, V g) const {
    const V one = hn::Set(d, hn::TFromD<D>{1});
    return hn::Mul(g, hn::Mul(y, hn::Sub(one, y)));
  }
};
struct TanhGradientF {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V y, V g) const {
    const V one = hn::Set(d, hn::TFromD<D>{1});
    return hn::Mul(g, hn::Sub(one, hn::Mul(y, y)));
  }
};
struct SqrtGradientF {
  template <class D, class V>
  HWY_INLINE V operator()(D, V y, V g) const {
    return hn::Div(g, hn::Add(y, y));
  }
};

template <class F, typename T>
void BinaryBy(F f, const T* a, size_t a_step, const T* b, size_t b_step, T* out, size_t count) {
  const hn::ScalableTag<T> d;
  if (count == 0) return;
  if (a_step == 0) return Map2(d, f, Same<T>{*a}, Run<T>{b}, out, count);
  if (b_step == 0) return Map2(d, f, Run<T>{a}, Same<T>{*b}, out, count);
  Map2(d, f, Run<T>{a}, Run<T>{b}, out, count);
}

template <typename T>
void BinaryT(BinaryOp op, const T* a, size_t a_step, const T* b, size_t b_step, T* out,
             size_t count) {
  switch (op) {
    case BinaryOp::kAdd:
      return BinaryBy(AddF(), a, a_step, b, b_step, out, count);
    case BinaryOp::kSub:
      return BinaryBy(SubF(), a, a_step, b, b_step, out, count);
    case BinaryOp::kMul:
      return BinaryBy(MulF(), a, a_step, b, b_step, out, count);
    case BinaryOp::kDiv:
      return BinaryBy(DivF(), a, a_step, b, b_step, out, count);
  }
}

template <typename T>
void UnaryT(UnaryOp op, const T* x, T* out, size_t count) {
  const hn::ScalableTag<T> d;
  const Run<T> run{x};
  switch (op) {
    case UnaryOp::kNeg:
      return Map(d, NegF(), run, out, count);
    case UnaryOp::kRelu:
      return Map(d, ReluF(), run, out, count);
    case UnaryOp::kSigmoid:
      return Map(d, SigmoidF(), run, out, count);
    case UnaryOp::kTanh:
      return Map(d, TanhF(), run, out, count);
    case UnaryOp::kExp:
      return Map(d, ExpF(), run, out, count);
    case UnaryOp::kLog:
      return Map(d, LogF(), run, out, count);
    case UnaryOp::kSqrt:
      return Map(d, SqrtF(), run, out, count);
  }
}

template <typename T>
void UnaryGradientT(UnaryGradientOp op, const T* y, const T* g, T* out, size_t count) {
  const hn::ScalableTag<T> d;
  const Run<T> ys{y};
  const Run<T> gs{g};
  switch (op) {
    case UnaryGradientOp::kRelu:
      return Map2(d, ReluGradientF(), ys, gs, out, count);
    case UnaryGradientOp::kSigmoid:
      return Map2(d, SigmoidGradientF(), ys, gs, out, count);
    case UnaryGradientOp::kTanh:
      return Map2(d, TanhGradientF(), ys, gs, out, count);
    case UnaryGradientOp::kSqrt:
      return Map2(d, SqrtGradientF(), ys, gs, out, count);
  }
}

void BinaryF32(BinaryOp op, const float* a, size_t a_step, const float* b, size_t b_step,
               float* out, size_t count) {
  BinaryT(op, a, a_step, b, b_step, out, count);
}
void BinaryF64(BinaryOp op, const double* a, size_t a_step, const double* b, size_t b_step,
               double* out, size_t count) {
  BinaryT(op, a, a_step, b, b_step, out, count);
}
void UnaryF32(UnaryOp op, const float* x, float* out, size_t count) {
  UnaryT(op, x, out, count);
}
void UnaryF64(UnaryOp op, const double* x, double* out, size_t count) {
  UnaryT(op, x, out, count);
}
void UnaryGradientF32(UnaryGradientOp op, const float* y, const float* g, float* out,
                      size_t count) {
  UnaryGradientT(op, y, g, out, count);
}
void UnaryGradientF64(UnaryGradientOp op, const double* y, const double* g, double* out,
                      size_t count) {
  UnaryGradientT(op, y, g, out, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace psd::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(BinaryF32);
HWY_EXPORT(BinaryF64);
HWY_EXPORT(UnaryF32);
HWY_EXPORT(UnaryF64);
HWY_EXPORT(UnaryGradientF32);
HWY_EXPORT(UnaryGradientF64);

namespace {

// Integers have no vector kernels: compilers vectorise these loops, and no hot path uses them. The
// arithmetic is unsigned, so that overflow is defined.
template <typename T>
void BinaryIntegers(BinaryOp op, const T* a, size_t a_step, const T* b, size_t b_step, T* out,
                    size_t count) {
  using U = std::make_unsigned_t<T>;
  for (size_t i = 0; i < count; ++i) {
    const U x = static_cast<U>(a[i * a_step]);
    const U y = static_cast<U>(b[i * b_step]);
    out[i] = static_cast<T>(op == BinaryOp::kAdd ? x + y : op == BinaryOp::kSub ? x - y : x * y);
  }
}

template <typename T>
void NegateIntegers(const T* x, T* out, size_t count) {
  using U = std::make_unsigned_t<T>;
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<T>(U{0} - static_cast<U>(x[i]));
}

}  // namespace

void Binary(BinaryOp op, const float* a, size_t a_step, const float* b, size_t b_step, float* out,
            size_t count) {
  HWY_DYNAMIC_DISPATCH(BinaryF32)(op, a, a_step, b, b_step, out, count);
}
void Binary(BinaryOp op, const double* a, size_t a_step, const double* b, size_t b_step,
            double* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(BinaryF64)(op, a, a_step, b, b_step, out, count);
}
void Binary(BinaryOp op, const int32_t* a, size_t a_step, const int32_t* b, size_t b_step,
            int32_t* out, size_t count) {
  BinaryIntegers(op, a, a_step, b, b_step, out, count);
}
void Binary(BinaryOp op, const int64_t* a, size_t a_step, const int64_t* b, size_t b_step,
            int64_t* out, size_t count) {
  BinaryIntegers(op, a, a_step, b, b_step, out, count);
}

void Unary(UnaryOp op, const float* x, float* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(UnaryF32)(op, x, out, count);
}
void Unary(UnaryOp op, const double* x, double* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(UnaryF64)(op, x, out, count);
}
void Negate(const int32_t* x, int32_t* out, size_t count) {
  NegateIntegers(x, out, count);
}
void Negate(const int64_t* x, int64_t* out, size_t count) {
  NegateIntegers(x, out, count);
}

void UnaryGradient(UnaryGradientOp op, const float* y, const float* g, float* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(UnaryGradientF32)(op, y, g, out, count);
}
void UnaryGradient(UnaryGradientOp op, const double* y, const double* g, double* out,
                   size_t count) {
  HWY_DYNAMIC_DISPATCH(UnaryGradientF64)(op, y, g, out, count);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
