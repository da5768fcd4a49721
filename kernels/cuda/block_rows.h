#pragma once

// How the threads of blocks share rows, and combine what they computed over each.

#include <cstddef>

#include "kernels/cuda/block.h"
#include "kernels/host_device.h"

namespace psd::kernels::cuda {

// Memory that the threads of a block share. It holds each thread's partial result over its row.
struct RowShared {
  double most[kBlockThreads];
  double sum[kBlockThreads];
};

// Dense rows, and how blocks share them: each row has `lanes` neighbouring threads of one block, at
// least one for each column, unless that is more than a block.
struct BlockRows {
  size_t rows = 0, cols = 0, lanes = 1;

  BlockRows(size_t all_rows, size_t all_cols) : rows(all_rows), cols(all_cols) {
    while (lanes < kBlockThreads && lanes < cols) lanes *= 2;
  }
  size_t elements() const { return rows * cols; }
  size_t blocks() const {
    const size_t each = kBlockThreads / lanes;
    return (rows + each - 1) / each;
  }
  // Returns the row of a thread of block number `index`. It may be behind the last one.
  PSD_HOST_DEVICE size_t Row(size_t index, size_t thread) const {
    return index * (kBlockThreads / lanes) + thread / lanes;
  }
  // Returns the thread whose part of RowShared has the result over the row of this thread.
  PSD_HOST_DEVICE size_t First(size_t thread) const { return thread - thread % lanes; }
  // Calls f(i) with the index of each element that a thread of block number `index` works on.
  template <typename F>
  PSD_HOST_DEVICE void ForEach(size_t index, size_t thread, const F& f) const {
    const size_t row = Row(index, thread);
    if (row >= rows) return;
    for (size_t col = thread % lanes; col < cols; col += lanes) f(row * cols + col);
  }
};

// Combines term(thread, i) over the elements i of each row of block number `index`, from `start`
// on. The result is in results[rows.First(thread)].
template <class Block, typename Term, typename Combine>
PSD_HOST_DEVICE void CombineRows(const Block& block, const BlockRows& rows, size_t index,
                                 double start, const Term& term, const Combine& combine,
                                 double* results) {
  block.EachThread([&](size_t thread) {
    double result = start;
    rows.ForEach(index, thread, [&](size_t i) { result = combine(result, term(thread, i)); });
    results[thread] = result;
  });
  CombineThreads(block, results, combine, rows.lanes);
}

}  // namespace psd::kernels::cuda
