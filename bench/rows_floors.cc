#include "bench/rows_floors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/rows_floors.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace psd::bench::HWY_NAMESPACE {

constexpr size_t kWidth = static_cast<size_t>(kTableWidth);

void Read(const float* HWY_RESTRICT table, const std::vector<int64_t>& ids,
          float* HWY_RESTRICT out) {
  for (size_t i = 0; i < ids.size(); ++i)
    std::memcpy(out + i * kWidth, table + static_cast<size_t>(ids[i]) * kWidth,
                kWidth * sizeof(float));
}

void Update(float* table, float* sums, const std::vector<int64_t>& ids, const float* g) {
  for (size_t i = 0; i < ids.size(); ++i) {
    float* HWY_RESTRICT t = table + static_cast<size_t>(ids[i]) * kWidth;
    float* HWY_RESTRICT s = sums + static_cast<size_t>(ids[i]) * kWidth;
    const float* HWY_RESTRICT h = g + i * kWidth;
    for (size_t j = 0; j < kWidth; ++j) {
      s[j] += h[j] * h[j];
      t[j] -= 1e-9f * h[j] * s[j];
    }
  }
}

}  // namespace psd::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::bench {

HWY_EXPORT(Read);
HWY_EXPORT(Update);

std::vector<int64_t> SkewedIds(size_t count, int64_t rows) {
  std::vector<int64_t> ids(count);
  uint64_t x = 88172645463325252u;  // xorshift64 (Marsaglia, 2003)
  for (int64_t& id : ids) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    const double unit = static_cast<double>(x >> 11) * 0x1p-53;
    id = std::min(rows - 1, static_cast<int64_t>(std::pow(static_cast<double>(rows), unit)));
  }
  return ids;
}

void RowsRead(const float* table, const std::vector<int64_t>& ids, float* out) {
  HWY_DYNAMIC_DISPATCH(Read)(table, ids, out);
}

void RowsUpdate(float* table, float* sums, const std::vector<int64_t>& ids, const float* g) {
  HWY_DYNAMIC_DISPATCH(Update)(table, sums, ids, g);
}

}  // namespace psd::bench
#endif
