#pragma once

// Rows of a table by id: groups repeated ids, gathers rows, and adds rows up.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace psd::kernels {

// Groups n positions by the id at each of them. The positions of one id are ascending, so that sums
// over them are always taken in the same order and give the same bits.
struct RowGroups {
  std::vector<int64_t> ids;         // ascending, no two equal
  std::vector<uint32_t> begins;     // where the positions of ids[k] start; begins[ids.size()] is n
  std::vector<uint32_t> positions;  // n positions, those of ids[0] first
};

// Groups the positions 0 to count - 1 by their ids, in O(count) unless ids are so large that an id
// and a position do not fit into 64 bits. Requires: ids >= 0, count < 2^32.
void GroupRows(const int64_t* ids, size_t count, RowGroups* groups);

// Sets out[i] to row ids[i] of `table`, whose rows are `stride_bytes` apart. Requires: ids in
// range.
void GatherRows(const std::byte* table, size_t stride_bytes, size_t row_bytes, const int64_t* ids,
                size_t count, std::byte* out);

// Sets out[k] to the sum of rows[p] over the positions p of group k, for each group. Rows have
// `width` elements. The rows of `rows` are `stride` elements apart; with stride 0 all positions
// share one row. The rows of `out` are packed. Requires: `rows` and `out` do not overlap.
void SumRows(const RowGroups& groups, const float* rows, size_t stride, size_t width, float* out);
void SumRows(const RowGroups& groups, const double* rows, size_t stride, size_t width, double* out);

// Adds to table[ids[k]] the sum of rows[p] over the positions p of group k, for each group. The
// rows of both are packed.
void AddRows(const RowGroups& groups, const float* rows, size_t width, float* table);
void AddRows(const RowGroups& groups, const double* rows, size_t width, double* table);

}  // namespace psd::kernels
