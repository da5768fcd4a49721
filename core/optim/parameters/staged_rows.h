#pragma once

// Copies of some rows of a table on a device, for a step that the host computes.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/store/changing.h"
#include "core/store/rows.h"
#include "core/tensor/tensor.h"

namespace psd::optim {

// The device gathers the rows and scatters them back; only they travel. Confined to the thread of
// the step, which holds the table's write claim.
class StagedRows {
 public:
  // Copies the rows `ids` of the table, and the same rows of each array of `state`, to the host,
  // and reserves on the device what Write needs. The blocks must outlive the result.
  // Errors: RESOURCE_EXHAUSTED; those of the device.
  static absl::StatusOr<StagedRows> Read(const store::Rows& table,
                                         const std::vector<StateBlock>& state,
                                         absl::Span<const int64_t> ids);

  // The packed rows, in the order of the ids.
  const std::byte* rows() const { return rows_.here.raw_data(); }
  // The packed rows of each array of state. They may be written.
  absl::Span<std::byte* const> state() const { return state_; }

  // Replaces the rows of the table, which is the one that was read, by the packed rows `next`, and
  // the rows of its state by what was written to state(). Allocates nothing on the device.
  // Errors: those of the device.
  absl::Status Write(store::Changing changing, store::Rows& table, const std::byte* next);

 private:
  // Some rows of one array.
  struct Staged {
    Tensor there;  // on the device, where they are gathered and from where they are scattered
    Tensor here;   // on the host
  };
  static absl::StatusOr<Staged> ToHost(absl::StatusOr<Tensor> gathered);

  Tensor ids_;  // on the device
  Staged rows_;
  struct Array {
    Tensor all;  // the whole array, on the device
    Staged rows;
  };
  std::vector<Array> arrays_;
  std::vector<std::byte*> state_;  // the elements of each array's rows on the host
};

}  // namespace psd::optim
