#pragma once

// Consistent copies of what an owner hosts, out and in: for saving and loading.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/rpc/rpc_agent.h"
#include "core/worker/checkpoint_export.h"
#include "core/worker/checkpoint_types.h"
#include "core/worker/exchange.h"
#include "core/worker/transfer_table.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::worker {

// Both ends of the "checkpoint.*" methods. Thread-safe. Errors, besides those below: those of the
// call (RpcAgent::StartCall).
class CheckpointService {
 public:
  // Registers the methods; `runtime` outlives the service and has not started.
  explicit CheckpointService(Runtime& runtime);

  Future<OwnerContents> Describe(const std::string& owner, const rpc::CallOptions& options);

  // Copies of values of `owner` with their state, each as it was between two steps; steps of these
  // parameters wait while the state is copied. `arrays` is how many state arrays each item has in
  // each of its optimizers.
  // Errors: NOT_FOUND for a value or optimizer that was dropped since it was described;
  // FAILED_PRECONDITION while a load of such an optimizer has not finished.
  Future<Exported> Export(const std::string& owner, const std::vector<ExportItem>& items,
                          const rpc::CallOptions& options);

  // Copies of one value with its state, of any size, that stay on `owner` under `id` until they are
  // released, or our session there ends. What is answered has no tensors.
  // Errors: as Export; RESOURCE_EXHAUSTED beyond TransferTable::kPerSession.
  Future<Exported> Hold(const std::string& owner, const ExportItem& item, GlobalId id,
                        const rpc::CallOptions& options);
  // A piece of what is held. Errors: NOT_FOUND when it is not held any more.
  Future<FetchedPiece> Fetch(const std::string& owner, GlobalId id, const PieceRange& range,
                             const rpc::CallOptions& options);
  Future<Unit> Release(const std::string& owner, GlobalId id, const rpc::CallOptions& options);

  // Would this fit there? Errors: see CheckContents.
  Future<Unit> Check(const std::string& owner, const OwnerContents& wanted,
                     const rpc::CallOptions& options);

  // Replaces the elements of existing parameters and their state in existing optimizers, all of a
  // value at once; makes or replaces values that are no parameters. Then sets how far `optimizers`
  // have come.
  // Errors: NOT_FOUND, FAILED_PRECONDITION for what does not fit: nothing has changed there then;
  // RESOURCE_EXHAUSTED naming the value that there was no memory for.
  Future<Unit> Import(const std::string& owner, const std::vector<ImportItem>& items,
                      const std::vector<RestoredOptimizer>& optimizers,
                      const rpc::CallOptions& options);

  // Memory on `owner` under `id`, to be filled and then imported (ImportItem::room), for a value of
  // any size: its elements, then its state. Errors: RESOURCE_EXHAUSTED.
  Future<Unit> MakeRoom(const std::string& owner, GlobalId id,
                        const std::vector<checkpoint::TensorSpec>& arrays,
                        const rpc::CallOptions& options);
  Future<Unit> Fill(const std::string& owner, GlobalId id, const PieceRange& range, Buffer bytes,
                    const rpc::CallOptions& options);

  // What is held here for others.
  const TransferTable& transfers() const { return transfers_; }

 private:
  using CallPtr = std::shared_ptr<rpc::ServerCall>;
  void ServeDescribe(const CallPtr& call);
  void ServeCheck(const CallPtr& call);
  void ServeExport(const CallPtr& call);
  void ServeImport(const CallPtr& call);
  void ServeFetch(const CallPtr& call);
  void ServeMakeRoom(const CallPtr& call);
  void ServeFill(const CallPtr& call);
  void ServeRelease(const CallPtr& call);
  void HoldCopies(const CallPtr& call, GlobalId id, Outbound& out);
  // A transfer of the caller's session.
  absl::Status Keep(const CallPtr& call, GlobalId id, Transfer::Direction direction,
                    std::vector<Tensor> arrays);
  absl::StatusOr<std::vector<Tensor>> TakeFilled(const rpc::ServerCall& call, GlobalId id);
  // The tensors of a request: its own, or those of a room that was filled.
  absl::StatusOr<Values> ImportedValues(rpc::ServerCall& call, const v1::ImportRequest& request);

  Runtime& runtime_;
  TransferTable transfers_;
};

}  // namespace psd::worker
