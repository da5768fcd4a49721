#pragma once

// The files of a save that this owner writes itself for a peer.

#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/mutex.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/checkpoint_root.h"
#include "core/checkpoint/tensor_file.h"
#include "core/services/checkpoint/checkpoint_types.h"
#include "core/tensor/tensor.h"

namespace psd::services {

// Writes the files of one save. It has its own thread, so that a slow disk delays nothing else. The
// destructor waits for the write or sync that is under way. It leaves unfinished files in the
// folder; they are removed with the folder. Thread-safe except where a comment says otherwise.
class OwnSave {
 public:
  // Work for the thread. It gets OK, or the error with which earlier work failed or the save was
  // stopped.
  using Work = absl::AnyInvocable<void(const absl::Status&)>;
  static constexpr uint64_t kMaxAhead = 16;
  static constexpr size_t kMaxFiles = 1024;

  // Creates the files. Their names must be those of files of `owner`. After an error no file is
  // left. Data that waits to be written is charged to `memory`. Errors: INVALID_ARGUMENT for wrong
  // names or headers; RESOURCE_EXHAUSTED if the system refuses a thread; those of FoundFolder.
  static absl::StatusOr<std::unique_ptr<OwnSave>> Start(
      std::unique_ptr<checkpoint::FoundFolder> folder, absl::string_view owner,
      std::vector<checkpoint::FileSpec> files, std::shared_ptr<Allocator> memory);
  ~OwnSave();
  OwnSave(const OwnSave&) = delete;
  OwnSave& operator=(const OwnSave&) = delete;

  // Runs `work` on the thread, once, after the work of all smaller numbers. Numbers start at 0.
  // Errors: INVALID_ARGUMENT for a number that was given before, or is kMaxAhead or more beyond the
  // next one; the error with which the save was stopped.
  absl::Status Do(uint64_t number, Work work) PSD_EXCLUDES(mutex_);
  // Stops the save. Waiting work is called with `why`, and running work ends soon. Only the first
  // call has an effect.
  void Stop(const absl::Status& why) PSD_EXCLUDES(mutex_);

  // The following functions may be called only by `work`, on the thread. Errors: those of
  // TensorFile; the error with which the save was stopped. Any error stops the save.
  absl::Status Append(size_t file, const Tensor& tensor);
  absl::Status AppendBytes(size_t file, absl::string_view bytes);
  absl::StatusOr<std::vector<checkpoint::SavedFile>> Finish(const std::vector<StepCount>& counts);

 private:
  OwnSave(std::unique_ptr<checkpoint::FoundFolder> folder,
          std::vector<std::unique_ptr<checkpoint::TensorFile>> files);
  void Run() PSD_EXCLUDES(mutex_);
  absl::Status status() const PSD_EXCLUDES(mutex_);
  absl::StatusOr<checkpoint::TensorFile*> File(size_t file);
  absl::Status Stopping(absl::Status failed);

  const std::unique_ptr<checkpoint::FoundFolder> folder_;
  std::vector<std::unique_ptr<checkpoint::TensorFile>> files_;  // used by the thread only
  mutable Mutex mutex_;                                         // leaf
  CondVar changed_;
  std::map<uint64_t, Work> waiting_ PSD_GUARDED_BY(mutex_);
  uint64_t next_ PSD_GUARDED_BY(mutex_) = 0;
  absl::Status status_ PSD_GUARDED_BY(mutex_);  // an error once the save is stopped
  std::thread thread_;
};

}  // namespace psd::services
