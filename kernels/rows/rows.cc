#include "kernels/rows/rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/rows/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels::HWY_NAMESPACE {

template <bool kAdd, class D, typename T>
HWY_INLINE void SumColumn(D d, const RowSource<T>& source, size_t k, size_t column, T* out) {
  auto sum = SumAt(d, source, k, column);
  if (kAdd) sum = hn::Add(hn::LoadU(d, out + column), sum);
  hn::StoreU(sum, d, out + column);
}

template <bool kAdd, typename T>
HWY_INLINE void SumGroups(const RowGroups& groups, const T* rows, size_t width, T* out) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const RowSource<T> source{rows, width, groups.begins.data(), groups.positions.data()};
  const size_t whole = width - width % hn::Lanes(d);
  for (size_t k = 0; k < groups.ids.size(); ++k) {
    T* to = out + (kAdd ? static_cast<size_t>(groups.ids[k]) : k) * width;
    size_t column = 0;
    for (; column < whole; column += hn::Lanes(d)) SumColumn<kAdd>(d, source, k, column, to);
    for (; column < width; ++column) SumColumn<kAdd>(one, source, k, column, to);
  }
}

void SumF32(const RowGroups& groups, const float* rows, size_t width, float* out) {
  SumGroups<false>(groups, rows, width, out);
}
void SumF64(const RowGroups& groups, const double* rows, size_t width, double* out) {
  SumGroups<false>(groups, rows, width, out);
}
void AddF32(const RowGroups& groups, const float* rows, size_t width, float* out) {
  SumGroups<true>(groups, rows, width, out);
}
void AddF64(const RowGroups& groups, const double* rows, size_t width, double* out) {
  SumGroups<true>(groups, rows, width, out);
}

}  // namespace psd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {
namespace {

constexpr int kDigitBits = 11;
constexpr size_t kDigits = size_t{1} << kDigitBits;
// Below this many a comparison sort is quicker than clearing the counts.
constexpr size_t kFewIds = 256;
// How many rows ahead a gather fetches.
constexpr size_t kGatherAhead = 12;

int BitWidth(uint64_t value) {
  int bits = 0;
  for (; value != 0; value >>= 1) ++bits;
  return bits;
}

// Sorts by the bits from `low` to `high`, stably, with `other` as working space.
void RadixSort(std::vector<uint64_t>& keys, std::vector<uint64_t>& other, int low, int high) {
  other.resize(keys.size());
  std::vector<uint32_t> counts(kDigits);
  for (int shift = low; shift < high; shift += kDigitBits) {
    std::fill(counts.begin(), counts.end(), 0);
    for (uint64_t key : keys) ++counts[key >> shift & (kDigits - 1)];
    uint32_t before = 0;
    for (uint32_t& count : counts) {
      const uint32_t here = count;
      count = before;
      before += here;
    }
    for (uint64_t key : keys) other[counts[key >> shift & (kDigits - 1)]++] = key;
    keys.swap(other);
  }
}

// One key per id: the id above, its position below. Requires: both fit into 64 bits.
void SortPacked(const int64_t* ids, size_t count, int position_bits, int id_bits,
                RowGroups* groups) {
  std::vector<uint64_t> keys(count);
  for (size_t i = 0; i < count; ++i) keys[i] = static_cast<uint64_t>(ids[i]) << position_bits | i;
  if (count < kFewIds) {
    std::sort(keys.begin(), keys.end());
  } else {
    std::vector<uint64_t> other;
    RadixSort(keys, other, position_bits, position_bits + id_bits);
  }
  // Without a branch on what nobody can predict: every key extends the group that it falls into.
  const uint64_t mask = (uint64_t{1} << position_bits) - 1;
  groups->ids.resize(count);
  groups->begins.resize(count + 1);
  size_t group = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<int64_t>(keys[i] >> position_bits);
    group += i > 0 && id != groups->ids[group];
    groups->ids[group] = id;
    groups->begins[group + 1] = static_cast<uint32_t>(i + 1);
    groups->positions[i] = static_cast<uint32_t>(keys[i] & mask);
  }
  groups->ids.resize(count == 0 ? 0 : group + 1);
  groups->begins.resize(groups->ids.size() + 1);
}

// Ids too large to share a word with their positions.
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

}  // namespace

void GroupRows(const int64_t* ids, size_t count, RowGroups* groups) {
  groups->ids.clear();
  groups->begins.clear();
  groups->positions.resize(count);
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

void SumRows(const RowGroups& groups, const float* rows, size_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(SumF32)(groups, rows, width, out);
}
void SumRows(const RowGroups& groups, const double* rows, size_t width, double* out) {
  HWY_DYNAMIC_DISPATCH(SumF64)(groups, rows, width, out);
}
void AddRows(const RowGroups& groups, const float* rows, size_t width, float* table) {
  HWY_DYNAMIC_DISPATCH(AddF32)(groups, rows, width, table);
}
void AddRows(const RowGroups& groups, const double* rows, size_t width, double* table) {
  HWY_DYNAMIC_DISPATCH(AddF64)(groups, rows, width, table);
}

}  // namespace psd::kernels
#endif  // HWY_ONCE
