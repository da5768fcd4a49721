#include "kernels/rows/rows.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/rows/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

template <bool kAdd, typename T>
HWY_INLINE void SumGroups(const RowGroups& groups, const T* rows, size_t stride, size_t width,
                          T* out) {
  const RowSource<T> source{rows, stride, width, groups.begins.data(), groups.positions.data()};
  for (size_t k = 0; k < groups.ids.size(); ++k) {
    T* to = out + (kAdd ? static_cast<size_t>(groups.ids[k]) : k) * width;
    ForEachSum(source, k, [to](auto d, auto sum, size_t column) HWY_ATTR {
      if (kAdd) sum = hn::Add(hn::LoadU(d, to + column), sum);
      hn::StoreU(sum, d, to + column);
    });
  }
}

void SumF32(const RowGroups& groups, const float* rows, size_t stride, size_t width, float* out) {
  SumGroups<false>(groups, rows, stride, width, out);
}
void SumF64(const RowGroups& groups, const double* rows, size_t stride, size_t width, double* out) {
  SumGroups<false>(groups, rows, stride, width, out);
}
void AddF32(const RowGroups& groups, const float* rows, size_t width, float* out) {
  SumGroups<true>(groups, rows, width, width, out);
}
void AddF64(const RowGroups& groups, const double* rows, size_t width, double* out) {
  SumGroups<true>(groups, rows, width, width, out);
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {
namespace {

// The most bits of one digit of the radix sort. Its counts stay in the nearest cache.
constexpr int kDigitBits = 11;
// For fewer ids than this, a comparison sort is faster than clearing the counts.
constexpr size_t kFewIds = 256;
// The number of rows by which a gather prefetches ahead.
constexpr size_t kGatherAhead = 12;

int BitWidth(uint64_t value) {
  int bits = 0;
  for (; value != 0; value >>= 1) ++bits;
  return bits;
}

// Sorts `count` keys stably by the bits from number `low` to low + bits - 1. `keys` and `other`
// have room for all keys. Returns the array that holds the sorted keys.
uint64_t* RadixSort(uint64_t* keys, uint64_t* other, size_t count, int low, int bits) {
  const int passes = (bits + kDigitBits - 1) / kDigitBits;
  const int digit_bits = passes == 0 ? 0 : (bits + passes - 1) / passes;
  const size_t digits = size_t{1} << digit_bits;
  std::vector<uint32_t> counts(digits);
  for (int pass = 0; pass < passes; ++pass, low += digit_bits) {
    std::fill(counts.begin(), counts.end(), 0u);
    uint32_t* next = counts.data();
    for (size_t i = 0; i < count; ++i) ++next[keys[i] >> low & (digits - 1)];
    std::exclusive_scan(next, next + digits, next, 0u);
    for (size_t i = 0; i < count; ++i) other[next[keys[i] >> low & (digits - 1)]++] = keys[i];
    std::swap(keys, other);
  }
  return keys;
}

// Groups by sorting one 64-bit key per id: the id in the upper bits, its position in the lower
// ones.
// Requires: position_bits + id_bits <= 64.
void SortPacked(const int64_t* ids, size_t count, int position_bits, int id_bits,
                RowGroups* groups) {
  const std::unique_ptr<uint64_t[]> room(
      new uint64_t[2 * count]);  // not cleared; the second half is for sorting
  uint64_t* keys = room.get();
  for (size_t i = 0; i < count; ++i) keys[i] = static_cast<uint64_t>(ids[i]) << position_bits | i;
  if (count < kFewIds) {
    std::sort(keys, keys + count);
  } else {
    keys = RadixSort(keys, keys + count, count, position_bits, id_bits);
  }
  // The loop has no branch on whether a new id begins, which could not be predicted: every key
  // writes its id, and moves the end of its group.
  const uint64_t mask = (uint64_t{1} << position_bits) - 1;
  groups->ids.resize(count);
  groups->begins.resize(count + 1);
  uint64_t before = count == 0 ? 0 : keys[0] >> position_bits;
  size_t group = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t id = keys[i] >> position_bits;
    group += id != before;
    before = id;
    groups->ids[group] = static_cast<int64_t>(id);
    groups->begins[group + 1] = static_cast<uint32_t>(i + 1);
    groups->positions[i] = static_cast<uint32_t>(keys[i] & mask);
  }
  groups->ids.resize(count == 0 ? 0 : group + 1);
  groups->begins.resize(groups->ids.size() + 1);
}

// Groups ids that are too large to share 64 bits with their positions.
void SortWide(const int64_t* ids, size_t count, RowGroups* groups) {
  std::iota(groups->positions.begin(), groups->positions.end(), 0u);
  std::stable_sort(groups->positions.begin(), groups->positions.end(),
                   [ids](uint32_t a, uint32_t b) { return ids[a] < ids[b]; });
  for (size_t i = 0; i < count; ++i) {
    const int64_t id = ids[groups->positions[i]];
    if (!groups->ids.empty() && groups->ids.back() == id) continue;
    groups->ids.push_back(id);
    groups->begins.push_back(static_cast<uint32_t>(i));
  }
  groups->begins.push_back(static_cast<uint32_t>(count));
}

// Makes every id a group of its own. Requires: ids are ascending, no two equal.
void TakeInOrder(const int64_t* ids, size_t count, RowGroups* groups) {
  groups->ids.assign(ids, ids + count);
  groups->begins.resize(count + 1);
  std::iota(groups->begins.begin(), groups->begins.end(), 0u);
  std::iota(groups->positions.begin(), groups->positions.end(), 0u);
}

}  // namespace

void GroupRows(const int64_t* ids, size_t count, RowGroups* groups) {
  groups->ids.clear();
  groups->begins.clear();
  groups->positions.resize(count);
  const int64_t* const end = ids + count;
  if (std::adjacent_find(ids, end, std::greater_equal<int64_t>()) == end)
    return TakeInOrder(ids, count, groups);
  uint64_t every_bit = 0;
  for (size_t i = 0; i < count; ++i) every_bit |= static_cast<uint64_t>(ids[i]);
  const int id_bits = BitWidth(every_bit);
  const int position_bits = std::max(1, BitWidth(count));
  if (id_bits + position_bits <= 64) {
    SortPacked(ids, count, position_bits, id_bits, groups);
  } else {
    SortWide(ids, count, groups);
  }
}

void GatherRows(const std::byte* table, size_t stride_bytes, size_t row_bytes, const int64_t* ids,
                size_t count, std::byte* out) {
  for (size_t i = 0; i < count; ++i) {
    if (i + kGatherAhead < count) {
      const std::byte* ahead = table + static_cast<size_t>(ids[i + kGatherAhead]) * stride_bytes;
      for (size_t line = 0; line < row_bytes; line += 64) __builtin_prefetch(ahead + line);
    }
    std::memcpy(out + i * row_bytes, table + static_cast<size_t>(ids[i]) * stride_bytes, row_bytes);
  }
}

HWY_EXPORT(SumF32);
HWY_EXPORT(SumF64);
HWY_EXPORT(AddF32);
HWY_EXPORT(AddF64);

void SumRows(const RowGroups& groups, const float* rows, size_t stride, size_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(SumF32)(groups, rows, stride, width, out);
}
void SumRows(const RowGroups& groups, const double* rows, size_t stride, size_t width,
             double* out) {
  HWY_DYNAMIC_DISPATCH(SumF64)(groups, rows, stride, width, out);
}
void AddRows(const RowGroups& groups, const float* rows, size_t width, float* table) {
  HWY_DYNAMIC_DISPATCH(AddF32)(groups, rows, width, table);
}
void AddRows(const RowGroups& groups, const double* rows, size_t width, double* table) {
  HWY_DYNAMIC_DISPATCH(AddF64)(groups, rows, width, table);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
