#pragma once

// Lets owners write their own files of a save, if they can reach its folder.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/memory_budget.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/checkpoint_root.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/services/checkpoint/checkpoint_types.h"
#include "core/services/checkpoint/own_save.h"
#include "core/services/checkpoint/save_table.h"
#include "core/services/checkpoint/transfer_table.h"
#include "core/store/store.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {

// Client and server side of the "save.*" methods. Thread-safe. A save that an owner writes lasts
// until it is closed, or until the session that opened it ends. All client functions also fail with
// the errors of the call (RpcAgent::StartCall), and with NOT_FOUND if the save has ended on the
// owner.
class SaveService {
 public:
  // The parts of the worker that the service uses. They must outlive the service.
  struct Uses {
    rpc::RpcAgent& agent;
    store::Store& store;
    const TransferTable& transfers;  // the copies that are held for saves
    MemoryBudget& memory;
    Executor& executor;
    Logger& logger;
    std::shared_ptr<checkpoint::CheckpointRoot> root;  // null if this worker writes no files
  };

  // Registers the methods. The agent must not have started.
  explicit SaveService(Uses uses);

  // Lets `owner` make `files`, which are known as `id` from then on. If the owner cannot write
  // there, the result is false and says why: it has no checkpoint_root, the folder is not below
  // that root or is another folder, or the owner already writes SaveTable::kMaxSaves saves.
  struct Opened {
    bool here = false;
    std::string why_not;
    uint64_t steps_accepted = 0;  // as in Exported
  };
  Future<Opened> Open(const std::string& owner, GlobalId id, const OwnFiles& files,
                      const rpc::CallOptions& options);

  // Appends copies of `items`, made as by CheckpointService::Export, to their files. Calls of
  // Write, WritePiece and Finish are numbered together, from 0 on, and append in the order of their
  // numbers. The answer has no tensors.
  // Errors: as Export; ABORTED if an array is not the one that was planned; RESOURCE_EXHAUSTED and
  // other errors of the disk. After any error the caller must close the save, because calls with
  // later numbers would wait for this one.
  Future<Exported> Write(const std::string& owner, GlobalId id, uint64_t number,
                         const std::vector<ExportItem>& items, const rpc::CallOptions& options);
  // Appends a piece of copies that are held (CheckpointService::Hold) to a file. Errors: as Write.
  Future<FetchedPiece> WritePiece(const std::string& owner, GlobalId id, uint64_t number,
                                  GlobalId held, const PieceRange& range, size_t file,
                                  const rpc::CallOptions& options);
  // Finishes the files. The future is ready when files and folder are on the disk.
  Future<std::vector<checkpoint::SavedFile>> Finish(const std::string& owner, GlobalId id,
                                                    uint64_t number,
                                                    const std::vector<StepCount>& counts,
                                                    const rpc::CallOptions& options);
  Future<Unit> Close(const std::string& owner, GlobalId id, const rpc::CallOptions& options);

 private:
  using Key = SaveTable::Key;
  using SavePtr = SaveTable::SavePtr;

  absl::StatusOr<v1::OpenSaveReply> ServeOpen(const rpc::CallPtr& call,
                                              rpc::Bulk<v1::OpenSaveRequest> request);
  absl::Status ServeWrite(const rpc::Answer<v1::ExportReply>& answer, v1::WriteSaveRequest request);
  absl::Status ServeFinish(const rpc::Answer<v1::FinishSaveReply>& answer,
                           v1::FinishSaveRequest request);
  absl::Status ServeClose(const rpc::CallPtr& call, v1::WriteSaveRequest request);
  absl::Status WriteItems(const rpc::Answer<v1::ExportReply>& answer, const SavePtr& save,
                          const v1::WriteSaveRequest& request);
  absl::Status WritePieceHere(const rpc::Answer<v1::ExportReply>& answer, const SavePtr& save,
                              const v1::WriteSaveRequest& request);

  // Returns the number of the opening (see SaveTable).
  absl::StatusOr<uint64_t> OpenHere(const Key& key, const OwnFiles& files);
  absl::StatusOr<SavePtr> MakeFiles(const OwnFiles& files);
  // Destroys the save on another thread than the caller's, because a write may be under way.
  void Destroy(SavePtr save);

  const Uses uses_;
  SaveTable saves_;
};

}  // namespace psd::services
