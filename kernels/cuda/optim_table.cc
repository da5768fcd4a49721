#include "kernels/cuda/arrays.h"
#include "kernels/cuda/optim_launch.h"
#include "kernels/cuda/optim_step.h"

namespace psd::kernels::cuda {

size_t OptimTableBytes(const OptimBatch& batch) {
  // Entries of all types have the same size: pointers and counts.
  return batch.count * sizeof(OptimEntry<float, RawArray>);
}

void FillOptimTable(const OptimBatch& batch, void* table) {
  WithElementType(batch.type, [&](auto element) {
    using Entry = OptimEntry<decltype(element), RawArray>;
    static_assert(sizeof(Entry) == sizeof(OptimEntry<float, RawArray>));
    MakeEntries<decltype(element), RawArray>(
        batch, [](auto* address, size_t /*size*/) { return address; },
        [&](size_t k, const Entry& entry) { static_cast<Entry*>(table)[k] = entry; });
  });
}

}  // namespace psd::kernels::cuda
