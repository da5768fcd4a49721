#pragma once

// Copies values out of an owner, each with its optimizer state.

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/executor.h"
#include "core/base/ids.h"
#include "core/rpc/access.h"
#include "core/rpc/declared_method.h"
#include "core/services/checkpoint/checkpoint_rows.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {

// A value that is to be copied out.
struct Outgoing {
  store::EntryPtr entry;
  Rows rows;
  std::vector<std::shared_ptr<optim::OwnerOptimizer>> optimizers;
  std::vector<optim::SteppedParameter*> states;  // the entry's state in each of `optimizers`
};

// The copies for one request. Shared by the tasks that serve the request one after the other.
struct Outbound {
  std::vector<Outgoing> items;
  std::shared_ptr<Allocator> memory;  // for the copies; null for the default of Tensor::Empty
  store::Values values;
  v1::ExportReply reply;
};

// Runs `work` while holding the write claims of all `ids`, then releases them and passes the result
// to `done`. Both run on the executor, as work for `call`. If the executor is full, `work` does not
// run, and `done` gets the error.
void WithWriteClaims(store::Store& store, Executor& executor, std::vector<GlobalId> ids,
                     const rpc::CallPtr& call, std::function<absl::Status()> work,
                     std::function<void(const absl::Status&)> done);

// Finds the values of `items` with their state, and checks that the caller may save the values and
// the optimizers of the state. Errors: NOT_FOUND, INVALID_ARGUMENT, PERMISSION_DENIED.
using ExportItems = google::protobuf::RepeatedPtrField<v1::ExportItem>;
absl::StatusOr<std::shared_ptr<Outbound>> FindItems(rpc::Access& access, store::Store& store,
                                                    const rpc::ServerCall& call,
                                                    const ExportItems& items);

// Copies the values and states in `out`, all of them between the same two steps, and passes the
// copies or an error to `done`, on the executor. Elements of dense parameters are pinned instead of
// copied. Errors through `done`: RESOURCE_EXHAUSTED; CANCELLED; FAILED_PRECONDITION while an item
// is being loaded.
void CopyOut(store::Store& store, Executor& executor, const rpc::CallPtr& call,
             const std::shared_ptr<Outbound>& out,
             std::function<void(absl::StatusOr<Outbound*>)> done);

// Returns the copies as contiguous tensors, item by item. Errors: INVALID_ARGUMENT for a value that
// is not a tensor; RESOURCE_EXHAUSTED.
absl::StatusOr<std::vector<Tensor>> DenseCopies(const Outbound& out);

}  // namespace psd::services
