#include "core/device_kernels/emulated/optim_kernels.h"

#include <cstddef>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "core/base/stream.h"
#include "core/device/emulated/device_array.h"
#include "core/device/emulated/emulated_stream.h"
#include "core/device_kernels/emulated/launch.h"
#include "core/optim/dense/optim_kernels.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/optim_step.h"
#include "kernels/cuda/optim_updates.h"
#include "kernels/optim/arrays.h"

namespace psd::emulated {
namespace {

using kernels::cuda::NumberOf;
using kernels::cuda::OptimEntry;
using kernels::cuda::StepScalars;

template <typename P>
using Table = std::vector<OptimEntry<P, DeviceArray>>;

template <typename P>
Table<P> TableOf(const kernels::OptimBatch& batch) {
  Table<P> table(batch.count);
  kernels::cuda::MakeEntries<P, DeviceArray>(
      batch, kMake, [&](size_t k, const OptimEntry<P, DeviceArray>& entry) { table[k] = entry; });
  return table;
}

template <typename P, class Update>
struct StepBody {
  void operator()(size_t i, const Table<P>& table, const Update& update,
                  const StepScalars<NumberOf<P>>& scalars) const {
    const size_t chunk = i / kernels::cuda::kOptimThreads;
    const auto& entry = table[kernels::cuda::EntryOfChunk(table, table.size(), chunk)];
    kernels::cuda::StepThread<P>(update, scalars, entry, chunk - entry.first_chunk,
                                 i % kernels::cuda::kOptimThreads);
  }
};

template <typename P, typename Options>
void AddStep(Stream* stream, const char* name, const Options& options,
             const kernels::OptimBatch& batch) {
  using T = NumberOf<P>;
  const Table<P> table = TableOf<P>(batch);
  const auto scalars = kernels::cuda::ScalarsOf<T>(kernels::cuda::TermsOf(options), batch);
  const size_t threads = kernels::cuda::ChunksOf(batch) * kernels::cuda::kOptimThreads;
  kernels::cuda::WithUpdate<T>(options, batch.step, [&](const auto& update) {
    using Update = std::decay_t<decltype(update)>;
    AddKernel(stream, name, threads, StepBody<P, Update>(), table, update, scalars);
  });
}

// The kernel that has this name, with the signature of its table.
template <typename Options, const optim::OptimKernelName<Options>& name>
void Step(Stream* stream, const Options& options, const kernels::OptimBatch& batch) {
  kernels::cuda::WithElementType(batch.type, [&](auto element) {
    AddStep<decltype(element)>(stream, name.name, options, batch);
  });
}

template <typename P>
struct SquaresBody {
  void operator()(size_t chunk, const Table<P>& table, const DeviceArray<double>& sums) const {
    double shared[kernels::cuda::kBlockThreads];
    kernels::cuda::SumSquaresOfChunk(kernels::cuda::SerialBlock(chunk), table, table.size(), chunk,
                                     shared, sums);
  }
};

absl::Status SumSquares(Stream* stream, const kernels::OptimBatch& batch, double* sums) {
  const size_t chunks = kernels::cuda::ChunksOf(batch);
  absl::Status added;
  if (chunks == 0) return added;
  kernels::cuda::WithElementType(batch.type, [&](auto element) {
    using P = decltype(element);
    added = static_cast<EmulatedStream*>(stream)->Launch(optim::kSumSquares.name, chunks,
                                                         SquaresBody<P>(), TableOf<P>(batch),
                                                         ArrayAt(sums, chunks));
  });
  return added;
}

}  // namespace

KernelTable OptimKernels() {
  KernelTable table;
  table.Add(optim::kSgd, Step<kernels::SgdOptions, optim::kSgd>);
  table.Add(optim::kAdam, Step<kernels::AdamOptions, optim::kAdam>);
  table.Add(optim::kAdagrad, Step<kernels::AdagradOptions, optim::kAdagrad>);
  table.Add(optim::kAdadelta, Step<kernels::AdadeltaOptions, optim::kAdadelta>);
  table.Add(optim::kAdamax, Step<kernels::AdamaxOptions, optim::kAdamax>);
  table.Add(optim::kRmsProp, Step<kernels::RmsPropOptions, optim::kRmsProp>);
  table.Add(optim::kRprop, Step<kernels::RpropOptions, optim::kRprop>);
  table.Add(optim::kSumSquares, SumSquares);
  return table;
}

}  // namespace psd::emulated
