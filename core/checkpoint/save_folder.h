#pragma once

// A folder of saves. A new save appears in it either whole or not at all.
//
//   DIR/latest                   the name of the last save and the XXH3-128 of the name, one line
//   DIR/2026-11-21T14-36-34.120Z/  a save: index.json and safetensors files
//   DIR/.saving-<random>/        a save being written
//
// A save is written under a hidden name, synced to the disk and renamed. Then `latest` is replaced,
// by a rename too. If the process dies at any point, `latest` and the save that it names stay as
// they were, and the next save removes the files that were left behind.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/file_system.h"
#include "core/checkpoint/save_names.h"
#include "core/checkpoint/tensor_file.h"

namespace psd::checkpoint {

// A save that is being written. If it is destroyed before Publish has renamed the save, it removes
// all files. Thread-compatible.
class SaveFolder {
 public:
  // Begins a save. Creates `dir` if necessary, locks it against other saves, and removes the files
  // that dead saves left behind. The save will be called `name`; `unique` distinguishes its hidden
  // folder from others. Both must be plain names. Errors: FAILED_PRECONDITION if another save is
  // under way; ALREADY_EXISTS if there is a save of that name; RESOURCE_EXHAUSTED if the disk has
  // fewer than `bytes` bytes left.
  static absl::StatusOr<std::unique_ptr<SaveFolder>> Begin(std::shared_ptr<FileSystem> files,
                                                           const std::string& dir,
                                                           const std::string& name,
                                                           const std::string& unique,
                                                           uint64_t bytes);
  ~SaveFolder();

  // Creates a file and writes its header.
  absl::StatusOr<std::unique_ptr<TensorFile>> Create(const FileSpec& spec);

  // Returns the path of the folder in which the files are until the save is published. Owners that
  // write their own files need it (see checkpoint_root.h).
  absl::StatusOr<std::string> RealPath();
  // Creates the token, a file by which owners that write their own files recognise this folder.
  // Returns its contents. May be called once.
  absl::StatusOr<std::string> PlaceToken();
  absl::Status RemoveToken();
  // Checks that a file which an owner writes is in this folder, can be read, and has at least
  // `least_bytes` bytes so far. Errors: FAILED_PRECONDITION naming the file.
  absl::Status Look(const std::string& file_name, uint64_t least_bytes);
  // Removes a file, if it is there.
  absl::Status Remove(const std::string& file_name);

  // Writes the index, renames the save, and makes `latest` name it. Returns the path of the save.
  // If only the last part fails, the complete save stays, and `latest` names the save before it.
  // Requires: all files are finished, and the token was removed.
  absl::StatusOr<std::string> Publish(const CheckpointIndex& index);

 private:
  SaveFolder(std::shared_ptr<FileSystem> files, std::string dir, std::string name,
             std::string unfinished, std::unique_ptr<FolderLock> lock);
  absl::Status NameLatest();
  // Makes the save unfinished again, so that a save that is reported as failed does not look like a
  // complete one, and its name is free. Returns the error to report.
  absl::Status Unpublish(const std::string& final, const absl::Status& why);
  std::string PathOf(absl::string_view file_name) const;

  const std::shared_ptr<FileSystem> files_;  // shared with the caller of Begin
  const std::string dir_;
  const std::string name_;
  const std::string unfinished_;
  const std::unique_ptr<FolderLock> lock_;
  const std::shared_ptr<Allocator> memory_;  // shared with the files
  bool published_ = false;
};

// Returns the folder of the save that `dir` stands for: the one that `latest` in `dir` names, or
// `dir` itself if it is a save. Errors: NOT_FOUND; INVALID_ARGUMENT if `latest` does not hold a
// name and its checksum.
absl::StatusOr<std::string> FindSave(FileSystem& files, const std::string& dir);

// Reads the index of the save in `folder`. Errors: those of DecodeIndex, naming the file.
absl::StatusOr<CheckpointIndex> ReadIndex(FileSystem& files, const std::string& folder);

}  // namespace psd::checkpoint
