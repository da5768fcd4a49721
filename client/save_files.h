#pragma once

// Writes the files of one owner in a save: the owner itself writes them, or its values travel to
// this worker, which does.

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
#include "core/runtime/runtime.h"
#include "core/services/checkpoint/checkpoint_types.h"

namespace psd {

// The files of one owner. The caller asks for values with Copy or CopyPiece in the order of the
// files' tensors, and passes each answer to Take or TakePiece in the same order. Several exchanges
// may be under way. Thread-compatible. The destructor gives up files that are not finished.
class SaveFiles {
 public:
  virtual ~SaveFiles() = default;

  // Asks the owner for values, or rows of them.
  virtual Future<services::Exported> Copy(const std::vector<services::ExportItem>& items) = 0;
  // Writes one item of Copy's answer into the files that `asked` names. Does nothing if the owner
  // writes its own files.
  virtual absl::Status Take(const services::ExportItem& asked,
                            const services::ExportedItem& item) = 0;

  // Asks for a piece of the copy that the owner holds under the id `held`.
  virtual Future<services::FetchedPiece> CopyPiece(GlobalId held, const services::PieceRange& range,
                                                   size_t file) = 0;
  // Appends CopyPiece's answer to the file. Does nothing if the owner writes its own files.
  virtual absl::Status TakePiece(size_t file, const services::FetchedPiece& piece) = 0;

  // Appends the step counts and returns when all files are on the disk. Called once, as the last
  // call.
  virtual absl::StatusOr<std::vector<checkpoint::SavedFile>> Finish(
      const std::vector<services::StepCount>& counts) = 0;

  // Names the owner in messages: "owner0".
  virtual std::string Describe() const = 0;
};

// Returns files that this worker writes: values travel here. The files are created when the first
// value has come. Requires: `runtime` and `folder` outlive the result.
std::unique_ptr<SaveFiles> StreamedFiles(worker::Runtime& runtime, checkpoint::SaveFolder& folder,
                                         std::string owner, std::vector<checkpoint::FileSpec> files,
                                         const rpc::CallOptions& call);

struct ChosenFiles {
  std::vector<std::unique_ptr<SaveFiles>> files;  // one for each owner
  // The owners that are allowed to write their own files but could not: "owner0: why".
  std::vector<std::string> streamed;
  // For each owner that writes its own files, by its number: the steps that it had accepted when it
  // opened them.
  std::map<size_t, uint64_t> steps_accepted;
};
// Decides for each owner whether it writes its own files or its values are streamed. An owner
// writes its own files if it is allowed to and can reach the folder. Errors: those of the exchanges
// and of the folder.
absl::StatusOr<ChosenFiles> ChooseFiles(worker::Runtime& runtime, checkpoint::SaveFolder& folder,
                                        const std::vector<OwnerPlan>& owners,
                                        const rpc::CallOptions& call);

}  // namespace psd
