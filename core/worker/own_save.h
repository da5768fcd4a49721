#pragma once

// A save's files that a peer has this owner write.

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
#include "core/tensor/tensor.h"
#include "core/worker/checkpoint_types.h"

namespace psd::worker {

// Thread-safe where nothing else is said. Has a thread of its own, so that a slow disk holds up
// nobody else; destroying it waits for a write or the sync of a file that is under way, and leaves
// unfinished files to whoever removes the folder.
class OwnSave {
 public:
  // Told whether it may go on: an error is an earlier one's, or why the save was stopped.
  using Work = absl::AnyInvocable<void(const absl::Status&)>;
  static constexpr uint64_t kMaxAhead = 16;
  static constexpr size_t kMaxFiles = 1024;

  // Makes the files; they are `owner`'s, by their names. After an error none of them is left.
  // Errors: INVALID_ARGUMENT for names and headers; RESOURCE_EXHAUSTED when the system refuses a
  // thread; those of FoundFolder.
  static absl::StatusOr<std::unique_ptr<OwnSave>> Start(
      std::unique_ptr<checkpoint::FoundFolder> folder, absl::string_view owner,
      std::vector<checkpoint::FileSpec> files);
  ~OwnSave();
  OwnSave(const OwnSave&) = delete;
  OwnSave& operator=(const OwnSave&) = delete;

  // Runs `work` on the thread, once, after that of all smaller numbers, which start at 0.
  // Errors: INVALID_ARGUMENT for a number twice, or kMaxAhead beyond the next.
  absl::Status Do(uint64_t number, Work work) PSD_EXCLUDES(mutex_);
  // What waits is told `why`, what runs ends soon. The first call counts.
  void Stop(const absl::Status& why) PSD_EXCLUDES(mutex_);

  // For copies that will be appended. Freed ones are kept for the next, as long as the save lasts:
  // the system takes longer to give fresh memory than it takes to copy into it.
  const std::shared_ptr<Allocator>& copy_memory() const { return copy_memory_; }

  // For `work`, on the thread. Errors: those of TensorFile, and why the save was stopped; any of
  // them stops it.
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

  const std::shared_ptr<Allocator> copy_memory_;  // shared with the copies
  const std::unique_ptr<checkpoint::FoundFolder> folder_;
  std::vector<std::unique_ptr<checkpoint::TensorFile>> files_;  // the thread's
  mutable Mutex mutex_;                                         // leaf
  CondVar changed_;
  std::map<uint64_t, Work> waiting_ PSD_GUARDED_BY(mutex_);
  uint64_t next_ PSD_GUARDED_BY(mutex_) = 0;
  absl::Status status_ PSD_GUARDED_BY(mutex_);  // an error: stopped
  std::thread thread_;
};

}  // namespace psd::worker
