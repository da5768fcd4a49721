#pragma once

// Rows of a table by id: grouping of repeated ids, gathering, adding up.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace psd::kernels {

// Which of n positions hold which id. Positions of one id are ascending, so that whatever is added
// up in their order gives the same bits every time.
struct RowGroups {
  std::vector<int64_t> ids;         // ascending, no two equal
  std::vector<uint32_t> begins;     // ids.size() + 1: where the positions of each id start
  std::vector<uint32_t> positions;  // n of them
};

// In O(n) for ids and counts as they occur. Requires: ids >= 0, count < 2^32.
void GroupRows(const int64_t* ids, size_t count, RowGroups* groups);

// out[i] = row ids[i] of `table`, whose rows are `stride_bytes` apart. Requires: ids in range.
void GatherRows(const std::byte* table, size_t stride_bytes, size_t row_bytes, const int64_t* ids,
                size_t count, std::byte* out);

// out[k] = the sum of rows[p] over the positions p of the group k, for each group. Rows have
// `width` elements; those of `rows` are `stride` apart (0: one row stands for all), those of `out`
// packed. They do not overlap.
void SumRows(const RowGroups& groups, const float* rows, size_t stride, size_t width, float* out);
void SumRows(const RowGroups& groups, const double* rows, size_t stride, size_t width, double* out);

// table[ids[k]] += that sum, for packed rows in both.
void AddRows(const RowGroups& groups, const float* rows, size_t width, float* table);
void AddRows(const RowGroups& groups, const double* rows, size_t width, double* table);

}  // namespace psd::kernels
