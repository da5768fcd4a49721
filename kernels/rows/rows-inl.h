// Sums of rows with the same id, compiled once per instruction set. Included from within
// foreach_target.h only.

#if defined(PSD_KERNELS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PSD_KERNELS_ROWS_INL_H_
#undef PSD_KERNELS_ROWS_INL_H_
#else
#define PSD_KERNELS_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows in memory, `stride` elements from one to the next, with the groups to sum (see RowGroups).
template <typename T>
struct RowSource {
  const T* rows;
  size_t stride;
  size_t width;
  const uint32_t* begins;
  const uint32_t* positions;

  HWY_INLINE const T* Row(size_t i) const { return rows + positions[i] * stride; }
};

// Returns one vector of columns, starting at `column`, of the sum over group k. Rows are added in
// the order of their positions. The sum of an empty group is zero.
template <class D, typename T>
HWY_INLINE hn::Vec<D> SumAt(D d, const RowSource<T>& source, size_t k, size_t column) {
  size_t i = source.begins[k];
  const size_t end = source.begins[k + 1];
  if (i == end) return hn::Zero(d);
  auto sum = hn::LoadU(d, source.Row(i) + column);
  while (++i < end) sum = hn::Add(sum, hn::LoadU(d, source.Row(i) + column));
  return sum;
}

// Sums four vectors of columns at a time and passes them to `use` one by one. The four sums do not
// wait for each other, and each row is read in one go.
template <class D, typename T, class Use>
HWY_INLINE void UseFourSums(D d, const RowSource<T>& source, size_t k, size_t column,
                            const Use& use) {
  const size_t n = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  size_t i = source.begins[k];
  const size_t end = source.begins[k + 1];
  if (i != end) {
    const T* row = source.Row(i) + column;
    a = hn::LoadU(d, row);
    b = hn::LoadU(d, row + n);
    c = hn::LoadU(d, row + 2 * n);
    e = hn::LoadU(d, row + 3 * n);
    while (++i < end) {
      row = source.Row(i) + column;
      a = hn::Add(a, hn::LoadU(d, row));
      b = hn::Add(b, hn::LoadU(d, row + n));
      c = hn::Add(c, hn::LoadU(d, row + 2 * n));
      e = hn::Add(e, hn::LoadU(d, row + 3 * n));
    }
  }
  use(d, a, column);
  use(d, b, column + n);
  use(d, c, column + 2 * n);
  use(d, e, column + 3 * n);
}

// Calls use(d, sum, column) with the sums over group k for all columns: whole vectors first, then
// one column at a time.
template <typename T, class Use>
HWY_INLINE void ForEachSum(const RowSource<T>& source, size_t k, const Use& use) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const size_t n = hn::Lanes(d);
  size_t column = 0;
  for (; column + 4 * n <= source.width; column += 4 * n) UseFourSums(d, source, k, column, use);
  for (; column + n <= source.width; column += n) use(d, SumAt(d, source, k, column), column);
  for (; column < source.width; ++column) use(one, SumAt(one, source, k, column), column);
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
