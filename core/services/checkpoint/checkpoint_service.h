#pragma once

// Copies the values of an owner consistently, for saving, and replaces them by others, for loading.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/change/changes.h"
#include "core/dist_autograd/exchange.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref_context.h"
#include "core/services/checkpoint/checkpoint_export.h"
#include "core/services/checkpoint/checkpoint_types.h"
#include "core/services/checkpoint/transfer_table.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {

// Client and server side of the "checkpoint.*" methods. Thread-safe. All client functions also fail
// with the errors of the call (RpcAgent::StartCall).
class CheckpointService {
 public:
  // The parts of the worker that the service uses. They must outlive the service.
  struct Uses {
    rpc::RpcAgent& agent;
    store::Store& store;
    change::Changes& changes;
    rref::RRefContext& rrefs;
    dist_autograd::Exchange& exchange;
    const optim::OptimizerRegistry& optimizers;
    MemoryBudget& memory;
    Executor& executor;
    bool writes_files;  // whether this worker may write its own files of a save
  };

  // Registers the methods. The agent must not have started.
  explicit CheckpointService(Uses uses);

  // Describes what `owner` hosts.
  Future<OwnerContents> Describe(const std::string& owner, const rpc::CallOptions& options);

  // Copies values of `owner` with their state, each as it was between two steps; steps of these
  // parameters wait while the state is copied. `arrays` says how many state arrays each item has in
  // each of its optimizers. Errors: NOT_FOUND for a value or optimizer that was dropped since it
  // was described; FAILED_PRECONDITION while a load of such an optimizer has not finished.
  Future<Exported> Export(const std::string& owner, const std::vector<ExportItem>& items,
                          const rpc::CallOptions& options);

  // Makes copies of one value with its state, of any size. They stay on `owner` under `id` until
  // they are released or this worker's session there ends. The answer has no tensors.
  // Errors: as Export; RESOURCE_EXHAUSTED beyond TransferTable::kPerSession.
  Future<Exported> Hold(const std::string& owner, const ExportItem& item, GlobalId id,
                        const rpc::CallOptions& options);
  // Fetches a piece of copies that are held. Errors: NOT_FOUND if they are no longer held.
  Future<FetchedPiece> Fetch(const std::string& owner, GlobalId id, const PieceRange& range,
                             const rpc::CallOptions& options);
  // Frees copies that are held, or a room. Does nothing if there are none.
  Future<Unit> Release(const std::string& owner, GlobalId id, const rpc::CallOptions& options);

  // Checks whether `wanted` could be loaded into `owner`. Errors: see CheckContents.
  Future<Unit> Check(const std::string& owner, const OwnerContents& wanted,
                     const rpc::CallOptions& options);

  // Replaces the elements of existing parameters and rows, with their state in existing optimizers,
  // and creates or replaces values of other kinds. Then sets the counters and lives of
  // `optimizers`.
  // Errors: NOT_FOUND, and FAILED_PRECONDITION for items that do not fit; nothing has changed then.
  // RESOURCE_EXHAUSTED naming the value for which there was no memory; the items before it have
  // been replaced then.
  Future<Unit> Import(const std::string& owner, const std::vector<ImportItem>& items,
                      const std::vector<RestoredOptimizer>& optimizers,
                      const rpc::CallOptions& options);

  // Allocates memory on `owner` under `id`, a room, for a value of any size: its elements, then its
  // state. It is filled in pieces and then imported (ImportItem::room). Errors: RESOURCE_EXHAUSTED.
  Future<Unit> MakeRoom(const std::string& owner, GlobalId id,
                        const std::vector<checkpoint::TensorSpec>& arrays,
                        const rpc::CallOptions& options);
  // Copies `bytes` into a room. Errors: NOT_FOUND; INVALID_ARGUMENT for a range outside of the
  // room.
  Future<Unit> Fill(const std::string& owner, GlobalId id, const PieceRange& range, Buffer bytes,
                    const rpc::CallOptions& options);

  // The copies and rooms that are held here for other workers.
  const TransferTable& transfers() const { return transfers_; }

 private:
  absl::StatusOr<rpc::Contents> ServeDescribe(const rpc::CallPtr& call, Unit);
  absl::Status ServeCheck(const rpc::CallPtr& call, rpc::Bulk<v1::OwnerContents> request);
  absl::Status ServeExport(const rpc::Answer<rpc::Contents>& answer, v1::ExportRequest request);
  absl::Status ServeImport(const rpc::Answer<Unit>& answer, rpc::Beside<v1::ImportRequest> fields);
  absl::StatusOr<rpc::Contents> ServeFetch(const rpc::CallPtr& call, v1::PieceRequest request);
  absl::Status ServeMakeRoom(const rpc::CallPtr& call, v1::RoomRequest request);
  absl::Status ServeFill(const rpc::CallPtr& call, v1::PieceRequest request);
  absl::Status ServeRelease(const rpc::CallPtr& call, v1::PieceRequest request);

  // Check the rights to the worker as a whole, and to all that a load replaces. Errors:
  // PERMISSION_DENIED.
  absl::Status MayUseWorker(const rpc::ServerCall& call, rpc::Right right);
  absl::Status AuthorizeImport(const rpc::ServerCall& call, const v1::ImportRequest& request);

  absl::StatusOr<rpc::Contents> HoldCopies(rpc::ServerCall& call, GlobalId id, Outbound& out);
  // Keeps a transfer of the caller's session.
  absl::Status Keep(rpc::ServerCall& call, GlobalId id, Transfer::Direction direction,
                    std::vector<Tensor> arrays);
  absl::StatusOr<std::vector<Tensor>> TakeFilled(const rpc::ServerCall& call, GlobalId id);
  // Returns the tensors of a request: those that it carries, or those of a room that was filled.
  absl::StatusOr<store::Values> ImportedValues(rpc::ServerCall& call,
                                               const v1::ImportRequest& request);

  const Uses uses_;
  TransferTable transfers_;
};

}  // namespace psd::services
