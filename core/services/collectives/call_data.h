#pragma once

// The tensors of one call of a group at one rank: its inputs, what has come from other ranks, and
// the results.

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/services/collectives/call_plan.h"
#include "core/services/collectives/collective_call.h"
#include "core/tensor/tensor.h"

namespace psd::services {

// Thread-compatible. After SetPlan, several threads may keep, send, reduce and store different
// pieces at the same time.
class CallData {
 public:
  CallData(int ranks, int rank) : rank_(rank), received_(ranks) {}

  // A call and the tensors that this rank contributes to it. The root of a scatter contributes one
  // tensor for each rank. A rank contributes none to a barrier, nor to a broadcast or scatter whose
  // root is another rank. In all other cases it contributes one.
  struct Own {
    CollectiveCall call;
    std::vector<Tensor> inputs;
    Tensor result;  // of a reduction, to be filled
  };
  // Checks the inputs, makes them contiguous tensors of the host, and allocates the result of a
  // reduction. All memory comes from `memory`, or, if that is null, from the process. Waits for the
  // devices of inputs. Requires: CheckCall passed.
  // Errors: those of CheckInputs; RESOURCE_EXHAUSTED; those of the devices.
  static absl::StatusOr<Own> Prepare(CollectiveCall call, std::vector<Tensor> inputs, int rank,
                                     int ranks, Allocator* memory);

  // Errors: INVALID_ARGUMENT if `inputs` is not what `call` says, or in several places. Requires:
  // CheckCall passed.
  static absl::Status CheckInputs(const CollectiveCall& call, const std::vector<Tensor>& inputs,
                                  int rank, int ranks);

  void Bring(Own own);
  const CollectiveCall& call() const { return own_.call; }
  // Sets the plan. If `form` is not null, it is the form of the call, for a rank that takes
  // whatever the root gives. Requires: Bring.
  void SetPlan(const TensorForm* form, const CallPlan& plan);
  // Null before SetPlan.
  const CallPlan* plan() const { return plan_.has_value() ? &*plan_ : nullptr; }
  // Keeps a piece of phase 0 that came from another rank. Before SetPlan only what a notice
  // brings may come, as piece 0. Requires: the piece has the size of its range.
  void Keep(int from, size_t index, Buffer piece);

  // The functions below require SetPlan.

  // Returns a piece that this rank sends. Requires, in phase 1: Reduce(index).
  Buffer Outgoing(int phase, int to, size_t index) const;
  // Reduces a piece of the own part, which has come from all ranks, and drops what came.
  void Reduce(size_t index);
  // Copies a piece of phase 1 to its place in the result.
  void Store(int from, size_t index, const Buffer& piece);
  // Returns the results: for kAllGather, and kGather at the root, one tensor for each rank; none
  // for kBarrier, and kGather elsewhere; otherwise one. Requires: all pieces have come.
  // Errors: RESOURCE_EXHAUSTED; INVALID_ARGUMENT if the bytes that came from a rank are no elements
  // of the dtype, and then sets `wrong` to that rank.
  absl::StatusOr<std::vector<Tensor>> Results(int& wrong);

 private:
  // Errors: as Results.
  absl::StatusOr<Tensor> Received(int from, int& wrong);
  // Reduces the `range` of all inputs into `out`. The other ranks' bytes are their piece `index`.
  void ReduceInto(const Range& range, size_t index, std::byte* out) const;

  const int rank_;
  Own own_;
  std::optional<CallPlan> plan_;
  std::vector<std::vector<Buffer>> received_;  // in phase 0, by rank and piece
};

}  // namespace psd::services
