#pragma once

// The files of one owner in a save under way, and how its values get into them.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/save_plan.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/save_folder.h"
#include "core/checkpoint/tensor_file.h"
#include "core/rpc/rpc_agent.h"
#include "core/worker/checkpoint_types.h"
#include "core/worker/runtime.h"

namespace psd {

// What is asked for comes in the order of the files' tensors, several exchanges at once if need be;
// what has come is taken in the same order. Thread-compatible. Destroying it gives up what is not
// finished.
class SaveFiles {
 public:
  virtual ~SaveFiles() = default;

  virtual Future<worker::Exported> Copy(const std::vector<worker::ExportItem>& items) = 0;
  // An item of an answer of Copy: its arrays go into the files that `asked` names.
  virtual absl::Status Take(const worker::ExportItem& asked, const worker::ExportedItem& item) = 0;

  // Of what is held on the owner under `held`.
  virtual Future<worker::FetchedPiece> CopyPiece(GlobalId held, const worker::PieceRange& range,
                                                 size_t file) = 0;
  virtual absl::Status TakePiece(size_t file, const worker::FetchedPiece& piece) = 0;

  // Appends the counts, and is done when all of it is on the disk. Once, as the last call.
  virtual absl::StatusOr<std::vector<checkpoint::SavedFile>> Finish(
      const std::vector<worker::StepCount>& counts) = 0;

  // Whose, for messages: "owner0".
  virtual std::string Describe() const = 0;
};

// Everything comes here and is written here, into files that are made when the first of it has
// come. `runtime` and `folder` outlive them.
std::unique_ptr<SaveFiles> StreamedFiles(worker::Runtime& runtime, checkpoint::SaveFolder& folder,
                                         std::string owner, std::vector<checkpoint::FileSpec> files,
                                         const rpc::CallOptions& call);

// For each owner: files that it writes itself, if it can reach the folder, else streamed ones.
struct ChosenFiles {
  std::vector<std::unique_ptr<SaveFiles>> files;
  std::vector<std::string> streamed;  // "owner0: why", of those that might have written their own
  std::map<size_t, uint64_t> steps_accepted;  // of those that do, when they said so; by number
};
absl::StatusOr<ChosenFiles> ChooseFiles(worker::Runtime& runtime, checkpoint::SaveFolder& folder,
                                        const std::vector<OwnerPlan>& owners,
                                        const rpc::CallOptions& call);

}  // namespace psd
