// Sums of repeated rows, once per instruction set. Included from within foreach_target.h only.

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

// Packed rows, and which of them belong to each group (see RowGroups).
template <typename T>
struct RowSource {
  const T* rows;
  size_t width;
  const uint32_t* begins;
  const uint32_t* positions;
};

// The sum over group k at `column`, in the order of the positions; zero for an empty group.
template <class D, typename T>
HWY_INLINE hn::Vec<D> SumAt(D d, const RowSource<T>& source, size_t k, size_t column) {
  size_t i = source.begins[k];
  const size_t end = source.begins[k + 1];
  if (i == end) return hn::Zero(d);
  auto sum = hn::LoadU(d, source.rows + source.positions[i] * source.width + column);
  while (++i < end)
    sum = hn::Add(sum, hn::LoadU(d, source.rows + source.positions[i] * source.width + column));
  return sum;
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
