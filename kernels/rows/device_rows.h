#pragma once

// The arguments of the kernels of rows on devices. All addresses are in the memory of the device
// and aligned to their type.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/optim/arrays.h"

namespace psd::kernels {

// Groups of positions; see RowGroups. How many groups there are may be known on the device only.
struct DeviceRowGroups {
  size_t room = 0;                // the most groups
  size_t size = 0;                // the number of positions, below 2^32
  int64_t* ids = nullptr;         // `room` elements
  uint32_t* begins = nullptr;     // `room` + 1 elements
  uint32_t* positions = nullptr;  // `size` elements
  uint32_t* count = nullptr;      // one element: the number of groups
};

// Some rows of a table and their gradients. The rows are stepped in place. No two arrays overlap.
struct DeviceRowBatch {
  OptimType type = OptimType::kF32;  // or kF64
  void* table = nullptr;             // packed rows
  size_t rows = 0;                   // of the table
  size_t width = 0;
  DeviceRowGroups groups;
  const void* gradients = nullptr;  // a packed row for each position
  // As rows_optim.h says: as large as the table, or one number for each row for row-wise Adagrad.
  void* state[2] = {};
  // See OptimBatch; these apply to the summed gradient.
  double gradient_scale = 1;
  double gradient_limit = std::numeric_limits<double>::infinity();
};

}  // namespace psd::kernels
