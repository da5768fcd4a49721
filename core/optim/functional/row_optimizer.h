#pragma once

// The part of an optimizer that steps some rows of a table by a sparse gradient.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/tensor/dtype.h"
#include "kernels/rows/device_rows.h"

namespace psd::optim {

// One array of state of a table: an array of the table's shape, or one number per row.
struct RowSlot {
  StateSlot slot;
  bool one_per_row = false;
};

// Some rows of a table in a step; see kernels::RowBatch.
struct RowArrays {
  const std::byte* table = nullptr;
  std::byte* next = nullptr;
  size_t width = 0;
  const int64_t* ids = nullptr;
  const uint32_t* begins = nullptr;
  size_t count = 0;
  size_t ahead = 0;
  const uint32_t* positions = nullptr;
  const std::byte* gradients = nullptr;
  absl::Span<std::byte* const> state;  // one per slot, updated in place
  DType dtype = DType::kF32;           // f32 or f64
  int64_t step = 1;                    // counted for the table: 1, 2, …
  double gradient_scale = 1;           // as in OptimBatch, for the summed gradient of a row
  double gradient_limit = std::numeric_limits<double>::infinity();
};

// The part of a functional optimizer that steps rows. Thread-safe.
class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;

  virtual std::vector<RowSlot> Slots(DType dtype) const = 0;
  // Errors: INVALID_ARGUMENT for options that sparse gradients do not allow, naming them.
  virtual absl::Status CheckOptions() const = 0;
  // Whether rows that had a gradient in an earlier step also move in steps without one.
  virtual bool MovesWithoutGradient() const { return false; }
  // Whether a gradient of zeros leaves a row as it is, unless the row moves without a gradient too.
  virtual bool KeepsRowsOfZeroGradient() const { return true; }
  // Errors: UNIMPLEMENTED, naming a kernel and the device, for a device that cannot step rows.
  virtual absl::Status CheckDevice(const Device& device) const = 0;
  // Takes one step on the CPU. Cannot fail, because everything was checked before.
  virtual void Apply(const RowArrays& arrays) const = 0;
  // Takes step number `step`, counted for the table, as work of `stream`. The rows are stepped in
  // place. Cannot fail; an event of the stream tells when the work is done, and reports its
  // failure. Requires: CheckDevice of the stream's device is OK.
  virtual void ApplyThere(Stream& stream, int64_t step,
                          const kernels::DeviceRowBatch& batch) const = 0;
};

}  // namespace psd::optim
