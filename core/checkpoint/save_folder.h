#pragma once

// A folder of saves, and how a new one appears in it: whole or not at all.
//
//   DIR/latest                   the name of the last save, one line
//   DIR/2026-11-21T14-36-34.120Z/  a save: index.json and safetensors files
//   DIR/.saving-<random>/        a save being written
//
// A save is written under a hidden name, brought to disk, renamed, and then named by `latest`,
// which is replaced by a rename too. Whatever dies in between leaves `latest` and what it names as
// they were. The next save removes what a dead one left.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/file_system.h"
#include "core/checkpoint/save_names.h"
#include "core/checkpoint/tensor_file.h"

namespace psd::checkpoint {

// One save being written. Thread-compatible. Destroyed before Publish has succeeded, it removes
// what it wrote.
class SaveFolder {
 public:
  // Locks `dir`, made if there is none, against other saves, and removes what dead ones left.
  // `name` is what the save will be called, `unique` tells it from others: plain names both.
  // Errors: FAILED_PRECONDITION when another save is under way; ALREADY_EXISTS for the name;
  // RESOURCE_EXHAUSTED when the disk has not `bytes` bytes left.
  static absl::StatusOr<std::unique_ptr<SaveFolder>> Begin(std::shared_ptr<FileSystem> files,
                                                           const std::string& dir,
                                                           const std::string& name,
                                                           const std::string& unique,
                                                           uint64_t bytes);
  virtual ~SaveFolder() = default;

  // A new file, its header written.
  virtual absl::StatusOr<std::unique_ptr<TensorFile>> Create(const FileSpec& spec) = 0;

  // Where the files are until the save is published, for owners that write their own (see
  // checkpoint_root.h).
  virtual absl::StatusOr<std::string> RealPath() = 0;
  // A file from which they can tell that it is this folder; returns its content. Once.
  virtual absl::StatusOr<std::string> PlaceToken() = 0;
  virtual absl::Status RemoveToken() = 0;
  // Whether a file that an owner has written is here and can be read, with so many bytes so far at
  // least. Errors: FAILED_PRECONDITION naming it.
  virtual absl::Status Look(const std::string& file_name, uint64_t least_bytes) = 0;
  // Takes away a file, if it is there.
  virtual absl::Status Remove(const std::string& file_name) = 0;

  // Writes the index; the save is what `latest` names from now on. Returns its path. Requires: all
  // its files are finished, and there is no token.
  virtual absl::StatusOr<std::string> Publish(const CheckpointIndex& index) = 0;
};

// The folder of the save that `dir` means: the one that `latest` names there, or `dir` itself if it
// is a save. Errors: NOT_FOUND; INVALID_ARGUMENT when `latest` holds no plain name.
absl::StatusOr<std::string> FindSave(FileSystem& files, const std::string& dir);

// The index of the save in `folder`. Errors: those of DecodeIndex, naming the file.
absl::StatusOr<CheckpointIndex> ReadIndex(FileSystem& files, const std::string& folder);

}  // namespace psd::checkpoint
