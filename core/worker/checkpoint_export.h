#pragma once

// The owner's copies of what it hosts, each value with its state.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/store/store.h"
#include "core/worker/checkpoint_rows.h"
#include "core/worker/functions.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::worker {

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
  absl::Status status;
  Values values;
  v1::ExportReply reply;
};

// What `item` asks for. Errors: NOT_FOUND, INVALID_ARGUMENT.
absl::StatusOr<Outgoing> FindItem(store::Store& store, const v1::ExportItem& item);

// Copies, with the claim of the value if it changes. Errors: RESOURCE_EXHAUSTED.
absl::Status CopyItem(const Outgoing& from, Outbound& out);

}  // namespace psd::worker
