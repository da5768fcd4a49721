#pragma once

// Rows of a table by id on a GPU: groups of equal ids, sums over them, and the row optimizers. What
// they compute is documented in kernels/rows/rows.h and rows_optim.h.
//
// Bodies are as in kernels/cuda/operators.h, those of blocks as in softmax.h. Each With function
// calls run(body, count) with the number of elements, or of blocks; nothing is run for 0.
//
// The rows of an id are added in the order of their positions, as the CPU adds them. So sums, SGD,
// Adagrad and SparseAdam have the bits of the CPU's kernels on instruction sets with fused
// multiply-adds, except those of NaN. Row-wise Adagrad adds the squares of a row in double and in
// an order that depends on its width only; its results are within 8 units in the last place of the
// CPU's.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/block.h"
#include "kernels/cuda/block_rows.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/optim_updates.h"
#include "kernels/host_device.h"
#include "kernels/optim/adagrad.h"
#include "kernels/optim/arrays.h"
#include "kernels/optim/sgd.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rows_optim.h"

namespace psd::kernels::cuda {

// ---- groups

// Sets out[i] to i.
template <template <typename> class ArrayOf>
struct NumberPositionsBody {
  ArrayOf<uint32_t> out;

  PSD_HOST_DEVICE void operator()(size_t i) const { out[i] = static_cast<uint32_t>(i); }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(out);
  }
};

// Marks the first of each run of equal ids by 1, and all others by 0. The sums over the marks from
// the first one on are the numbers of the groups, counted from 1.
template <template <typename> class ArrayOf>
struct MarkGroupsBody {
  ArrayOf<const int64_t> sorted;
  ArrayOf<uint32_t> marks;

  PSD_HOST_DEVICE void operator()(size_t i) const {
    marks[i] = i == 0 || sorted[i] != sorted[i - 1] ? 1 : 0;
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(sorted), visit(marks);
  }
};

// Writes the groups from the sorted ids and their numbers.
template <template <typename> class ArrayOf>
struct WriteGroupsBody {
  ArrayOf<const int64_t> sorted;
  ArrayOf<const uint32_t> numbers;
  ArrayOf<int64_t> ids;
  ArrayOf<uint32_t> begins;
  ArrayOf<uint32_t> count;
  size_t size;

  PSD_HOST_DEVICE void operator()(size_t i) const {
    const uint32_t number = numbers[i];
    if (i == 0 || numbers[i - 1] != number) {
      ids[number - 1] = sorted[i];
      begins[number - 1] = static_cast<uint32_t>(i);
    }
    if (i + 1 == size) {
      begins[number] = static_cast<uint32_t>(size);
      count[0] = number;
    }
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(sorted), visit(numbers), visit(ids), visit(begins), visit(count);
  }
};

// ---- sums

// Rows of gradients, and the groups of them that belong to one id.
template <typename T, template <typename> class ArrayOf>
struct GroupedRows {
  ArrayOf<const int64_t> ids;
  ArrayOf<const uint32_t> begins, positions, count;
  ArrayOf<const T> rows;
  size_t width;

  // Returns the sum over group k of the elements of one column, 0 for an empty group.
  PSD_HOST_DEVICE T SumOf(size_t k, size_t column) const {
    const size_t end = begins[k + 1];
    size_t i = begins[k];
    if (i == end) return 0;
    T sum = rows[positions[i] * width + column];
    while (++i < end) sum += rows[positions[i] * width + column];
    return sum;
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(ids), visit(begins), visit(positions), visit(count), visit(rows);
  }
};

// Sets row k of `out` to the sum of group k. Rows behind the last group stay as they are.
template <typename T, template <typename> class ArrayOf>
struct SumRowsBody {
  GroupedRows<T, ArrayOf> groups;
  ArrayOf<T> out;

  PSD_HOST_DEVICE void operator()(size_t i) const {
    const size_t k = i / groups.width;
    if (k < groups.count[0]) out[i] = groups.SumOf(k, i % groups.width);
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    groups.VisitArrays(visit), visit(out);
  }
};

// ---- steps

// The summed gradients of rows, scaled and limited, with the rows that they step.
template <typename T, template <typename> class ArrayOf>
struct SteppedRows {
  GroupedRows<T, ArrayOf> groups;
  ArrayOf<T> table;
  ArrayOf<T> state[2];
  T factor, limit;

  PSD_HOST_DEVICE T GradientOf(size_t k, size_t column) const {
    T gradient = groups.SumOf(k, column) * factor;
    if (Magnitude(gradient) > limit) gradient = WithSign(limit, gradient);
    return gradient;
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    groups.VisitArrays(visit), visit(table), visit(state[0]), visit(state[1]);
  }
};

// PyTorch's SparseAdam, as an update of kernels/cuda/optim_updates.h.
template <typename T>
struct SparseAdamUpdate {
  static constexpr size_t kStates = 2;
  T minus_rate, share1, share2, eps;

  SparseAdamUpdate(const SparseAdamOptions& options, int64_t step)
      : share1(static_cast<T>(1 - options.beta1)),
        share2(static_cast<T>(1 - options.beta2)),
        eps(static_cast<T>(options.eps)) {
    const auto t = static_cast<double>(step);
    minus_rate = static_cast<T>(-options.lr * std::sqrt(1 - std::pow(options.beta2, t)) /
                                (1 - std::pow(options.beta1, t)));
  }

  PSD_HOST_DEVICE T operator()(T parameter, T gradient, T (&state)[kMaxOptimStates]) const {
    state[0] = MulAdd(share1, gradient - state[0], state[0]);
    state[1] = MulAdd(share2, MulAdd(gradient, gradient, -state[1]), state[1]);
    return MulAdd(minus_rate, state[0] / (SquareRoot(state[1]) + eps), parameter);
  }
};

// WithRowUpdate calls f with the update of step number `step` of a row optimizer that treats each
// element by itself.
template <typename T, typename F>
void WithRowUpdate(const RowSgdOptions& options, int64_t step, const F& f) {
  SgdOptions dense;
  dense.lr = options.lr;
  dense.momentum = options.momentum;
  dense.dampening = options.dampening;
  dense.nesterov = options.nesterov;
  WithUpdate<T>(dense, step, f);
}
template <typename T, typename F>
void WithRowUpdate(const RowAdagradOptions& options, int64_t step, const F& f) {
  AdagradOptions dense;
  dense.lr = options.lr;
  dense.lr_decay = options.lr_decay;
  dense.eps = options.eps;
  WithUpdate<T>(dense, step, f);
}
template <typename T, typename F>
void WithRowUpdate(const SparseAdamOptions& options, int64_t step, const F& f) {
  f(SparseAdamUpdate<T>(options, step));
}

// One element of one row.
template <typename T, class Update, template <typename> class ArrayOf>
struct StepRowsBody {
  SteppedRows<T, ArrayOf> rows;
  Update update;

  PSD_HOST_DEVICE void operator()(size_t i) const {
    constexpr int kStates = static_cast<int>(Update::kStates);  // signed, because it may be 0
    const size_t width = rows.groups.width, k = i / width, column = i % width;
    if (k >= rows.groups.count[0]) return;
    const size_t at = static_cast<size_t>(rows.groups.ids[k]) * width + column;
    T state[kMaxOptimStates] = {};
    for (int s = 0; s < kStates; ++s) state[s] = rows.state[s][at];
    rows.table[at] = update(rows.table[at], rows.GradientOf(k, column), state);
    for (int s = 0; s < kStates; ++s) rows.state[s][at] = state[s];
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    rows.VisitArrays(visit);
  }
};

// Row-wise Adagrad: neighbouring threads of a block share a row.
template <typename T, template <typename> class ArrayOf>
struct StepRowwiseBody {
  SteppedRows<T, ArrayOf> rows;
  BlockRows layout;  // a row for each possible group
  T minus_rate, eps;

  template <class Block>
  PSD_HOST_DEVICE void operator()(const Block& block, size_t index, RowShared& shared) const {
    const size_t width = layout.cols, count = rows.groups.count[0];
    CombineRows(
        block, layout, index, 0,
        [&](size_t /*thread*/, size_t i) {
          if (i / width >= count) return 0.0;
          const auto gradient = static_cast<double>(rows.GradientOf(i / width, i % width));
          return gradient * gradient;
        },
        Plus(), shared.sum);
    block.EachThread([&](size_t thread) {
      const size_t k = layout.Row(index, thread);
      if (thread != layout.First(thread) || k >= count) return;
      T& sum = rows.state[0][static_cast<size_t>(rows.groups.ids[k])];
      sum += static_cast<T>(shared.sum[thread]) / static_cast<T>(width);
      shared.sum[thread] = static_cast<double>(sum);
    });
    block.EachThread([&](size_t thread) {
      const T scale =
          minus_rate / (SquareRoot(static_cast<T>(shared.sum[layout.First(thread)])) + eps);
      layout.ForEach(index, thread, [&](size_t i) {
        const size_t k = i / width, column = i % width;
        if (k >= count) return;
        T& element = rows.table[static_cast<size_t>(rows.groups.ids[k]) * width + column];
        element = MulAdd(scale, rows.GradientOf(k, column), element);
      });
    });
  }
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    rows.VisitArrays(visit);
  }
};

// ---- dispatch

// Calls f with a value of the type, which is f32 or f64.
template <typename F>
void WithRowType(OptimType type, const F& f) {
  type == OptimType::kF64 ? f(double{}) : f(float{});
}

template <template <typename> class ArrayOf, typename Make, typename Run>
void WithNumberPositions(uint32_t* out, size_t count, const Make& make, const Run& run) {
  if (count > 0) run(NumberPositionsBody<ArrayOf>{make(out, count)}, count);
}

template <template <typename> class ArrayOf, typename Make, typename Run>
void WithMarkGroups(const int64_t* sorted, uint32_t* marks, size_t count, const Make& make,
                    const Run& run) {
  if (count > 0) run(MarkGroupsBody<ArrayOf>{make(sorted, count), make(marks, count)}, count);
}

// Requires: groups.size > 0.
template <template <typename> class ArrayOf, typename Make, typename Run>
void WithWriteGroups(const int64_t* sorted, const uint32_t* numbers, const DeviceRowGroups& groups,
                     const Make& make, const Run& run) {
  const size_t count = groups.size;
  run(WriteGroupsBody<ArrayOf>{make(sorted, count), make(numbers, count),
                               make(groups.ids, groups.room), make(groups.begins, groups.room + 1),
                               make(groups.count, 1), count},
      count);
}

template <typename T, template <typename> class ArrayOf, typename Make>
GroupedRows<T, ArrayOf> MakeGroupedRows(const DeviceRowGroups& groups, const void* rows,
                                        size_t width, const Make& make) {
  const uint32_t* const begins = groups.begins;
  const uint32_t* const positions = groups.positions;
  const uint32_t* const count = groups.count;
  const int64_t* const ids = groups.ids;
  return {
      make(ids, groups.room), make(begins, groups.room + 1),          make(positions, groups.size),
      make(count, 1),         make(As<T>(rows), groups.size * width), width};
}

template <template <typename> class ArrayOf, typename Make, typename Run>
void WithSumRows(OptimType type, const DeviceRowGroups& groups, const void* rows, size_t width,
                 void* out, const Make& make, const Run& run) {
  const size_t count = groups.room * width;
  if (count == 0) return;
  WithRowType(type, [&](auto zero) {
    using T = decltype(zero);
    run(SumRowsBody<T, ArrayOf>{MakeGroupedRows<T, ArrayOf>(groups, rows, width, make),
                                make(As<T>(out), count)},
        count);
  });
}

// `state_size` is the number of elements of each array of state.
template <typename T, template <typename> class ArrayOf, typename Make>
SteppedRows<T, ArrayOf> MakeSteppedRows(const DeviceRowBatch& batch, bool maximize, size_t states,
                                        size_t state_size, const Make& make) {
  const auto state = [&](size_t s) {
    return make(As<T>(batch.state[s]), s < states ? state_size : 0);
  };
  return {MakeGroupedRows<T, ArrayOf>(batch.groups, batch.gradients, batch.width, make),
          make(As<T>(batch.table), batch.rows * batch.width),
          {state(0), state(1)},
          static_cast<T>(maximize ? -batch.gradient_scale : batch.gradient_scale),
          static_cast<T>(batch.gradient_limit)};
}

template <template <typename> class ArrayOf, typename Options, typename Make, typename Run>
void WithStepRows(const Options& options, int64_t step, const DeviceRowBatch& batch,
                  const Make& make, const Run& run) {
  const size_t count = batch.groups.room * batch.width;
  if (count == 0) return;
  WithRowType(batch.type, [&](auto zero) {
    using T = decltype(zero);
    WithRowUpdate<T>(options, step, [&](const auto& update) {
      using Update = std::decay_t<decltype(update)>;
      run(StepRowsBody<T, Update, ArrayOf>{MakeSteppedRows<T, ArrayOf>(
                                               batch, options.maximize, Update::kStates,
                                               batch.rows * batch.width, make),
                                           update},
          count);
    });
  });
}

template <template <typename> class ArrayOf, typename Make, typename Run>
void WithStepRowwise(const RowAdagradOptions& options, int64_t step, const DeviceRowBatch& batch,
                     const Make& make, const Run& run) {
  if (batch.groups.room * batch.width == 0) return;
  const double rate = options.lr / (1 + static_cast<double>(step - 1) * options.lr_decay);
  WithRowType(batch.type, [&](auto zero) {
    using T = decltype(zero);
    const BlockRows layout(batch.groups.room, batch.width);
    run(StepRowwiseBody<T, ArrayOf>{MakeSteppedRows<T, ArrayOf>(batch, options.maximize, 1,
                                                                batch.rows, make),
                                    layout, static_cast<T>(-rate), static_cast<T>(options.eps)},
        layout.blocks());
  });
}

}  // namespace psd::kernels::cuda
