#pragma once

// One step of a dense optimizer over the arrays of a batch: what a block of a GPU's threads does.
//
// A step is one launch. The arrays of the batch form a table, and each block of threads takes one
// chunk of one array. All arithmetic is in optim_updates.h.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/convert.h"
#include "kernels/cuda/arrays.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/optim_updates.h"
#include "kernels/host_device.h"
#include "kernels/optim/arrays.h"
#include "kernels/optim/rounding.h"

namespace psd::kernels::cuda {

// The elements that one thread steps; of f32, 128 bits.
inline constexpr size_t kThreadElements = 4;
inline constexpr size_t kChunkElements = kOptimPartElements;
inline constexpr size_t kOptimThreads = kChunkElements / kThreadElements;

// The type in which a parameter with elements of type P is computed, which is that of its state.
template <typename P>
using NumberOf = std::conditional_t<std::is_same_v<P, double>, double, float>;

// The arrays of one parameter, or of a part of it, as in OptimArrays.
template <typename P, template <typename> class ArrayOf>
struct OptimEntry {
  ArrayOf<const P> parameter;
  ArrayOf<P> next;
  ArrayOf<const P> gradient;
  ArrayOf<NumberOf<P>> state[kMaxOptimStates];
  uint64_t size;
  uint64_t first_element;
  uint64_t rounding_seed;
  uint64_t first_chunk;  // the number of chunks of the entries before this one

  // Calls visit(array) for each array.
  template <typename Visit>
  void VisitArrays(Visit& visit) {
    visit(parameter);
    visit(next);
    visit(gradient);
    for (auto& each : state) visit(each);
  }
};

inline uint64_t ChunksOf(const OptimArrays& arrays) {
  return (arrays.size + kChunkElements - 1) / kChunkElements;
}
inline uint64_t ChunksOf(const OptimBatch& batch) {
  uint64_t chunks = 0;
  for (size_t k = 0; k < batch.count; ++k) chunks += ChunksOf(batch.arrays[k]);
  return chunks;
}
// The most chunks of one launch, because each is a block.
inline constexpr uint64_t kMostChunks = 0x7fffffff;

// Calls put(k, entry) with the entry of each array of the batch.
// make(address, size) makes an array from a typed address; `size` is 0 if the address is null.
template <typename P, template <typename> class ArrayOf, typename Make, typename Put>
void MakeEntries(const OptimBatch& batch, const Make& make, const Put& put) {
  uint64_t chunks = 0;
  for (size_t k = 0; k < batch.count; ++k) {
    const OptimArrays& each = batch.arrays[k];
    const auto array = [&](auto* address) {
      return make(address, address == nullptr ? 0 : each.size);
    };
    OptimEntry<P, ArrayOf> entry = {};
    entry.parameter = array(static_cast<const P*>(each.parameter));
    entry.next = array(static_cast<P*>(each.next));
    entry.gradient = array(static_cast<const P*>(each.gradient));
    for (size_t s = 0; s < kMaxOptimStates; ++s)
      entry.state[s] = array(static_cast<NumberOf<P>*>(each.state[s]));
    entry.size = each.size;
    entry.first_element = each.first_element;
    entry.rounding_seed = each.rounding_seed;
    entry.first_chunk = chunks;
    put(k, entry);
    chunks += ChunksOf(each);
  }
}

// Returns the entry of the table that has this chunk. Requires: one of the `count` entries has it.
template <typename Table>
PSD_HOST_DEVICE size_t EntryOfChunk(const Table& table, size_t count, uint64_t chunk) {
  size_t low = 0, high = count;  // the entry is in [low, high)
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    if (table[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// What all elements of a step share.
template <typename T>
struct StepScalars {
  T scale, limit, sign, weight_decay;
  int64_t step;
  bool stochastic_rounding;
};

template <typename T>
StepScalars<T> ScalarsOf(const GradientTerms& terms, const OptimBatch& batch) {
  return {static_cast<T>(batch.gradient_scale),
          static_cast<T>(batch.gradient_limit),
          terms.maximize ? T{-1} : T{1},
          static_cast<T>(terms.weight_decay),
          batch.step,
          batch.stochastic_rounding};
}

// Returns the gradient as the update gets it.
template <typename T>
PSD_HOST_DEVICE T PreparedGradient(const StepScalars<T>& scalars, T parameter, T gradient) {
  gradient *= scalars.scale;
  if (Magnitude(gradient) > scalars.limit) gradient = WithSign(scalars.limit, gradient);
  gradient *= scalars.sign;
  // Without decay the parameter must not enter the gradient at all: 0 * infinity is not 0.
  if (scalars.weight_decay != 0) gradient = MulAdd(parameter, scalars.weight_decay, gradient);
  return gradient;
}

// Rounds the new value of an element to the type of its parameter.
template <typename P, typename T, typename Entry>
PSD_HOST_DEVICE P RoundedElement(const StepScalars<T>& scalars, const Entry& entry, uint64_t i,
                                 T value) {
  if constexpr (std::is_same_v<P, BFloat16>) {
    if (scalars.stochastic_rounding && !IsNan(value)) {
      const uint64_t element = entry.first_element + i;
      const uint64_t key =
          RoundingKey(entry.rounding_seed, scalars.step, element / kOptimPartElements);
      const uint32_t random =
          RoundingBits(key, static_cast<uint32_t>(element % kOptimPartElements)) >> 16;
      return {static_cast<uint16_t>((FloatBits(value) + random) >> 16)};
    }
  }
  return Convert<P>(value);
}

// Steps kCount elements from index `first` on.
template <size_t kCount, typename P, class Update, template <typename> class ArrayOf, typename T>
PSD_HOST_DEVICE void StepElements(const Update& update, const StepScalars<T>& scalars,
                                  const OptimEntry<P, ArrayOf>& entry, uint64_t first) {
  constexpr int kStates = static_cast<int>(Update::kStates);  // signed, because it may be 0
  P parameter[kCount], gradient[kCount];
  T state[kMaxOptimStates][kCount] = {};
  Load<kCount>(entry.parameter, first, parameter);
  LoadUnaligned<kCount>(entry.gradient, first, gradient);
  for (int s = 0; s < kStates; ++s) Load<kCount>(entry.state[s], first, state[s]);
  for (size_t i = 0; i < kCount; ++i) {
    const T number = Convert<T>(parameter[i]);
    const T prepared = PreparedGradient(scalars, number, Convert<T>(gradient[i]));
    T own[kMaxOptimStates] = {state[0][i], state[1][i], state[2][i]};
    const T next = update(number, prepared, own);
    parameter[i] = RoundedElement<P>(scalars, entry, first + i, next);
    for (int s = 0; s < kStates; ++s) state[s][i] = own[s];
  }
  for (int s = 0; s < kStates; ++s) Store<kCount>(entry.state[s], first, state[s]);
  Store<kCount>(entry.next, first, parameter);
}

// What thread `thread` of a block does in the chunk number `chunk` of the entry. Threads of a block
// use nothing of each other.
template <typename P, class Update, template <typename> class ArrayOf, typename T>
PSD_HOST_DEVICE void StepThread(const Update& update, const StepScalars<T>& scalars,
                                const OptimEntry<P, ArrayOf>& entry, uint64_t chunk,
                                size_t thread) {
  const uint64_t first = chunk * kChunkElements + thread * kThreadElements;
  if (first + kThreadElements <= entry.size) {
    StepElements<kThreadElements, P>(update, scalars, entry, first);
  } else {
    for (uint64_t i = first; i < entry.size; ++i) StepElements<1, P>(update, scalars, entry, i);
  }
}

// Calls f with a value of the element type of a batch.
template <typename F>
void WithElementType(OptimType type, const F& f) {
  switch (type) {
    case OptimType::kF32:
      return f(float{});
    case OptimType::kF64:
      return f(double{});
    case OptimType::kF16:
      return f(Half{});
    case OptimType::kBF16:
      return f(BFloat16{});
  }
}

}  // namespace psd::kernels::cuda
