#pragma once

// Floors of rows: the time that one core needs to read and to update scattered rows of a table of
// floats, and nothing else. They are plain loops as in floors.h.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace psd::bench {

inline constexpr int64_t kTableRows = 1'000'000;
inline constexpr int64_t kTableWidth = 64;
inline constexpr size_t kTableIds = 32'768;

// Returns `count` ids below `rows` that are skewed like accesses to embeddings: equally many ids
// are in [1, 10), in [10, 100), and so on. The ids are the same every time.
std::vector<int64_t> SkewedIds(size_t count = kTableIds, int64_t rows = kTableRows);

// Sets out[i] to table[ids[i]].
void RowsRead(const float* table, const std::vector<int64_t>& ids, float* out);
// Adds the square of g[i] to the accumulator of row ids[i], and moves the row.
void RowsUpdate(float* table, float* sums, const std::vector<int64_t>& ids, const float* g);

}  // namespace psd::bench
