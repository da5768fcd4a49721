#include "kernels/rows/rows_optim.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/rows_optim.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/optim/optim-inl.h"
#include "kernels/rows/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

// The number of rows by which memory is prefetched ahead of the loop.
constexpr size_t kRowsAhead = 6;

template <typename T>
HWY_INLINE void PrefetchSpan(const T* from, size_t elements) {
  constexpr size_t kLine = 64 / sizeof(T);
  for (size_t i = 0; i < elements; i += kLine) hwy::Prefetch(from + i);
}

template <class Update, typename T>
HWY_INLINE void PrefetchRow(const Update& update, const RowBatch<T>& rows, size_t k) {
  if (k >= rows.count + rows.ahead) return;
  const auto id = static_cast<size_t>(rows.ids[k]);
  PrefetchSpan(rows.table + id * rows.stride, rows.width);
  update.Prefetch(id, rows.width);
  if (rows.begins[k] < rows.begins[k + 1])
    PrefetchSpan(rows.gradients + rows.positions[rows.begins[k]] * rows.width, rows.width);
}

// The summed gradients of rows, scaled and limited.
template <typename T>
struct RowGradients {
  RowSource<T> source;
  T factor, limit;

  // Calls use(d, gradient, column) for all columns of row k.
  template <class Use>
  HWY_INLINE void ForEach(size_t k, const Use& use) const {
    ForEachSum(source, k, [&](auto d, auto sum, size_t column) HWY_ATTR {
      use(d, Prepared(d, sum, factor, limit), column);
    });
  }
};

// Runs `update` over all rows of the batch. For each row it first calls update.Row(gradients, k,
// id), which may read the whole gradient of the row, and then update(d, w, g, at), which returns
// the new elements; `at` is their index in packed state arrays.
template <class Update, typename T>
HWY_INLINE void UpdateRows(Update update, bool maximize, const RowBatch<T>& rows) {
  const RowGradients<T> gradients{
      {rows.gradients, rows.width, rows.width, rows.begins, rows.positions},
      static_cast<T>(maximize ? -rows.gradient_scale : rows.gradient_scale),
      static_cast<T>(rows.gradient_limit)};
  for (size_t k = 0; k < rows.count; ++k) {
    PrefetchRow(update, rows, k + kRowsAhead);
    const auto id = static_cast<size_t>(rows.ids[k]);
    const T* w = rows.table + id * rows.stride;
    T* next = rows.next + k * rows.width;
    const size_t at = id * rows.width;
    update.Row(gradients, k, id);
    gradients.ForEach(k, [&](auto d, auto g, size_t j) HWY_ATTR {
      hn::StoreU(update(d, hn::LoadU(d, w + j), g, at + j), d, next + j);
    });
  }
}

// Base of updates that treat each element by itself.
template <typename T>
struct ElementUpdate {
  HWY_INLINE void Row(const RowGradients<T>&, size_t, size_t) const {}
};

template <typename T, bool kMomentum>
struct SgdRow : ElementUpdate<T> {
  T* buffer;
  T minus_lr, momentum, gradient_share;
  bool nesterov;

  HWY_INLINE void Prefetch(size_t id, size_t width) const {
    if (kMomentum) PrefetchSpan(buffer + id * width, width);
  }
  template <class D, class V>
  HWY_INLINE V operator()(D d, V w, V g, size_t at) const {
    V direction = g;
    if constexpr (kMomentum) {
      const V mu = hn::Set(d, momentum);
      const V share = hn::Mul(g, hn::Set(d, gradient_share));
      const V b = hn::MulAdd(hn::LoadU(d, buffer + at), mu, share);
      hn::StoreU(b, d, buffer + at);
      direction = nesterov ? hn::MulAdd(b, mu, g) : b;
    }
    return hn::MulAdd(direction, hn::Set(d, minus_lr), w);
  }
};

template <bool kMomentum, typename T>
HWY_INLINE void RunSgd(const RowSgdOptions& options, int64_t step, const RowBatch<T>& rows,
                       T* buffer) {
  SgdRow<T, kMomentum> update{};
  update.buffer = buffer;
  update.minus_lr = static_cast<T>(-options.lr);
  update.momentum = static_cast<T>(options.momentum);
  update.gradient_share = static_cast<T>(step == 1 ? 1 : 1 - options.dampening);
  update.nesterov = options.nesterov;
  UpdateRows(update, options.maximize, rows);
}

template <typename T>
HWY_INLINE void Sgd(const RowSgdOptions& options, int64_t step, const RowBatch<T>& rows,
                    T* buffer) {
  if (options.momentum == 0) {
    RunSgd<false>(options, step, rows, buffer);
  } else {
    RunSgd<true>(options, step, rows, buffer);
  }
}

template <typename T>
HWY_INLINE T MinusRate(const RowAdagradOptions& options, int64_t step) {
  return static_cast<T>(-options.lr / (1 + static_cast<double>(step - 1) * options.lr_decay));
}

template <typename T>
struct AdagradRow : ElementUpdate<T> {
  T* sum;
  T minus_rate, eps;

  HWY_INLINE void Prefetch(size_t id, size_t width) const { PrefetchSpan(sum + id * width, width); }
  template <class D, class V>
  HWY_INLINE V operator()(D d, V w, V g, size_t at) const {
    const V s = hn::MulAdd(g, g, hn::LoadU(d, sum + at));
    hn::StoreU(s, d, sum + at);
    const V root = hn::Add(hn::Sqrt(s), hn::Set(d, eps));
    return hn::MulAdd(hn::Set(d, minus_rate), hn::Div(g, root), w);
  }
};

template <typename T>
HWY_INLINE void Adagrad(const RowAdagradOptions& options, int64_t step, const RowBatch<T>& rows,
                        T* sum) {
  AdagradRow<T> update{};
  update.sum = sum;
  update.minus_rate = MinusRate<T>(options, step);
  update.eps = static_cast<T>(options.eps);
  UpdateRows(update, options.maximize, rows);
}

template <typename T>
struct RowwiseAdagradRow {
  T* sum;
  T minus_rate, eps;
  T scale = 0;  // minus_rate / (sqrt(s) + eps) for the present row

  HWY_INLINE void Prefetch(size_t id, size_t) const { hwy::Prefetch(sum + id); }
  HWY_INLINE void Row(const RowGradients<T>& gradients, size_t k, size_t id) {
    const hn::ScalableTag<T> whole;
    auto squares = hn::Zero(whole);
    T total = 0;
    gradients.ForEach(k, [&](auto d, auto g, size_t) HWY_ATTR {
      if constexpr (std::is_same_v<decltype(d), hn::ScalableTag<T>>) {
        squares = hn::MulAdd(g, g, squares);
      } else {
        total += hn::GetLane(g) * hn::GetLane(g);
      }
    });
    total += hn::GetLane(hn::SumOfLanes(whole, squares));
    const size_t width = gradients.source.width;
    sum[id] += total / static_cast<T>(width);
    scale = minus_rate / (std::sqrt(sum[id]) + eps);
  }
  template <class D, class V>
  HWY_INLINE V operator()(D d, V w, V g, size_t) const {
    return hn::MulAdd(hn::Set(d, scale), g, w);
  }
};

template <typename T>
HWY_INLINE void RowwiseAdagrad(const RowAdagradOptions& options, int64_t step,
                               const RowBatch<T>& rows, T* sum) {
  RowwiseAdagradRow<T> update{};
  update.sum = sum;
  update.minus_rate = MinusRate<T>(options, step);
  update.eps = static_cast<T>(options.eps);
  UpdateRows(update, options.maximize, rows);
}

template <typename T>
struct SparseAdamRow : ElementUpdate<T> {
  T *exp_avg, *exp_avg_sq;
  T minus_rate, share1, share2, eps;

  HWY_INLINE void Prefetch(size_t id, size_t width) const {
    PrefetchSpan(exp_avg + id * width, width);
    PrefetchSpan(exp_avg_sq + id * width, width);
  }
  template <class D, class V>
  HWY_INLINE V operator()(D d, V w, V g, size_t at) const {
    V m = hn::LoadU(d, exp_avg + at);
    V v = hn::LoadU(d, exp_avg_sq + at);
    m = hn::MulAdd(hn::Set(d, share1), hn::Sub(g, m), m);
    v = hn::MulAdd(hn::Set(d, share2), hn::MulSub(g, g, v), v);
    hn::StoreU(m, d, exp_avg + at);
    hn::StoreU(v, d, exp_avg_sq + at);
    const V root = hn::Add(hn::Sqrt(v), hn::Set(d, eps));
    return hn::MulAdd(hn::Set(d, minus_rate), hn::Div(m, root), w);
  }
};

template <typename T>
HWY_INLINE void SparseAdam(const SparseAdamOptions& options, int64_t step, const RowBatch<T>& rows,
                           T* exp_avg, T* exp_avg_sq) {
  const auto t = static_cast<double>(step);
  SparseAdamRow<T> update{};
  update.exp_avg = exp_avg;
  update.exp_avg_sq = exp_avg_sq;
  update.minus_rate = static_cast<T>(-options.lr * std::sqrt(1 - std::pow(options.beta2, t)) /
                                     (1 - std::pow(options.beta1, t)));
  update.share1 = static_cast<T>(1 - options.beta1);
  update.share2 = static_cast<T>(1 - options.beta2);
  update.eps = static_cast<T>(options.eps);
  UpdateRows(update, options.maximize, rows);
}

void SgdF32(const RowSgdOptions& o, int64_t step, const RowBatch<float>& rows, float* b) {
  Sgd(o, step, rows, b);
}
void SgdF64(const RowSgdOptions& o, int64_t step, const RowBatch<double>& rows, double* b) {
  Sgd(o, step, rows, b);
}
void AdagradF32(const RowAdagradOptions& o, int64_t step, const RowBatch<float>& rows, float* s) {
  Adagrad(o, step, rows, s);
}
void AdagradF64(const RowAdagradOptions& o, int64_t step, const RowBatch<double>& rows, double* s) {
  Adagrad(o, step, rows, s);
}
void RowwiseF32(const RowAdagradOptions& o, int64_t step, const RowBatch<float>& rows, float* s) {
  RowwiseAdagrad(o, step, rows, s);
}
void RowwiseF64(const RowAdagradOptions& o, int64_t step, const RowBatch<double>& rows, double* s) {
  RowwiseAdagrad(o, step, rows, s);
}
void SparseAdamF32(const SparseAdamOptions& o, int64_t step, const RowBatch<float>& rows, float* m,
                   float* v) {
  SparseAdam(o, step, rows, m, v);
}
void SparseAdamF64(const SparseAdamOptions& o, int64_t step, const RowBatch<double>& rows,
                   double* m, double* v) {
  SparseAdam(o, step, rows, m, v);
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(SgdF32);
HWY_EXPORT(SgdF64);
HWY_EXPORT(AdagradF32);
HWY_EXPORT(AdagradF64);
HWY_EXPORT(RowwiseF32);
HWY_EXPORT(RowwiseF64);
HWY_EXPORT(SparseAdamF32);
HWY_EXPORT(SparseAdamF64);

void SgdRows(const RowSgdOptions& options, int64_t step, const RowBatch<float>& rows,
             float* buffer) {
  HWY_DYNAMIC_DISPATCH(SgdF32)(options, step, rows, buffer);
}
void SgdRows(const RowSgdOptions& options, int64_t step, const RowBatch<double>& rows,
             double* buffer) {
  HWY_DYNAMIC_DISPATCH(SgdF64)(options, step, rows, buffer);
}
void AdagradRows(const RowAdagradOptions& options, int64_t step, const RowBatch<float>& rows,
                 float* sum) {
  HWY_DYNAMIC_DISPATCH(AdagradF32)(options, step, rows, sum);
}
void AdagradRows(const RowAdagradOptions& options, int64_t step, const RowBatch<double>& rows,
                 double* sum) {
  HWY_DYNAMIC_DISPATCH(AdagradF64)(options, step, rows, sum);
}
void RowwiseAdagradRows(const RowAdagradOptions& options, int64_t step, const RowBatch<float>& rows,
                        float* sum) {
  HWY_DYNAMIC_DISPATCH(RowwiseF32)(options, step, rows, sum);
}
void RowwiseAdagradRows(const RowAdagradOptions& options, int64_t step,
                        const RowBatch<double>& rows, double* sum) {
  HWY_DYNAMIC_DISPATCH(RowwiseF64)(options, step, rows, sum);
}
void SparseAdamRows(const SparseAdamOptions& options, int64_t step, const RowBatch<float>& rows,
                    float* exp_avg, float* exp_avg_sq) {
  HWY_DYNAMIC_DISPATCH(SparseAdamF32)(options, step, rows, exp_avg, exp_avg_sq);
}
void SparseAdamRows(const SparseAdamOptions& options, int64_t step, const RowBatch<double>& rows,
                    double* exp_avg, double* exp_avg_sq) {
  HWY_DYNAMIC_DISPATCH(SparseAdamF64)(options, step, rows, exp_avg, exp_avg_sq);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
