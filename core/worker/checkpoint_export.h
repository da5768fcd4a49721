#pragma once

// The owner's copies of what it hosts, each value with its state.

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/rpc/rpc_agent.h"
#include "core/store/store.h"
#include "core/tensor/tensor.h"
#include "core/worker/checkpoint_rows.h"
#include "core/worker/functions.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::worker {

class Runtime;

// A value that is to be copied out, and the copy.
struct Outgoing {
  store::EntryPtr entry;
  Rows rows;
  std::vector<std::shared_ptr<optim::OwnerOptimizer>> optimizers;
  std::vector<optim::SteppedParameter*> states;  // the entry, as each of the optimizers steps it
};

// The copies of one request. Shared by the steps of its serving, one at a time.
struct Outbound {
  std::vector<Outgoing> items;
  std::shared_ptr<Allocator> memory;  // of the copies; null: ordinary
  absl::Status status;
  Values values;
  v1::ExportReply reply;
};

// Runs `work` with the write claims of all `ids`, then `done` without them, both on the executor.
// Answers `call` itself if neither can run.
void WithWriteClaims(Runtime& runtime, std::vector<GlobalId> ids,
                     const std::shared_ptr<rpc::ServerCall>& call, std::function<void()> work,
                     std::function<void()> done);

// Copies what `items` ask for, each between two steps, into memory of `memory` (null: ordinary),
// and hands the copies to `done`, on the executor. Answers `call` itself where it cannot. Errors:
// NOT_FOUND, INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
using ExportItems = google::protobuf::RepeatedPtrField<v1::ExportItem>;
void CopyOut(Runtime& runtime, const std::shared_ptr<rpc::ServerCall>& call,
             const ExportItems& items, std::shared_ptr<Allocator> memory,
             std::function<void(Outbound&)> done);

// The copies as tensors without gaps, item by item. Errors: INVALID_ARGUMENT for other values.
absl::StatusOr<std::vector<Tensor>> DenseCopies(const Outbound& out);

}  // namespace psd::worker
