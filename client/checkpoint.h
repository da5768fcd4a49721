#pragma once

// Saving and loading a whole job: parameters, other named tensors, and the state of named
// optimizers, in a folder of safetensors files (see core/checkpoint/checkpoint_index.h).
//
//   psd::SaveOptions options;
//   options.dir = "/data/model";
//   PSD_ASSIGN_OR_RETURN(psd::SaveSummary saved, psd::SaveModel(*worker, options));
//
// The folder of a save is on the host of the worker that saves. An owner writes its own files if
// its operator allows that (RuntimeOptions::checkpoint_root) and it finds the same folder on its
// host. The values of all other owners travel to the worker that saves, which writes them; these
// owners may be anywhere.
//
// Training may continue during a save. Each dense parameter and its state in every optimizer are
// saved from the same moment between two steps; two parameters may be from different steps. For
// tables this holds row by row: two rows may be from different steps, and the table's count of
// steps may be that of yet another.
//
// Not saved: values without a name, private optimizers, and named values that are neither tensors
// nor optimizers; the summary lists the named ones.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "core/checkpoint/file_system.h"

namespace psd {

struct TransferProgress {
  absl::string_view activity;  // "saving", "verifying", "loading"
  uint64_t bytes = 0;
  uint64_t total_bytes = 0;
};
// Called on the thread that saves or loads. Returning false stops the work, which then fails with
// CANCELLED.
using ProgressFunction = std::function<bool(const TransferProgress&)>;

struct SaveOptions {
  // The folder that holds all saves. The new save becomes a folder in it, and the file `latest`
  // there names the new save once it is complete.
  std::string dir;
  // The name of the save. If empty, the present time: "2026-11-21T14-36-34.120Z".
  std::string name;
  // The owners whose values are saved. If empty, all owners that the worker is attached to.
  std::vector<std::string> owners;
  // Owners whose values are not saved; the save's summary and index list them. The worker need not
  // be attached to them, so they may be dead. A save fails if an owner that is not listed here does
  // not answer or has lost its part of a named optimizer.
  std::vector<std::string> leave_out;
  // The bytes that travel in one exchange, optimizer state included. Three exchanges are under way
  // at once, so this worker needs memory for about four of them, or for four values of nearly
  // whole_bytes.
  size_t batch_bytes = size_t{32} << 20;
  // A dense value with more bytes than this, state included, is first copied on its owner, which
  // needs memory for the copy, and then travels in pieces of batch_bytes. Must be below 4 GiB, the
  // most that a message can hold.
  size_t whole_bytes = size_t{256} << 20;
  // The share of the time in which the save works while training goes on, that is, while optimizers
  // accept steps. Above 0, at most 1. The save works all the time while training stands still.
  double busy_share = 0.15;
  // The timeout of one exchange.
  absl::Duration timeout = absl::Minutes(5);
  ProgressFunction progress;
  // The file system to which files are written. If null, the disk.
  std::shared_ptr<checkpoint::FileSystem> files;
};

struct SaveSummary {
  std::string folder;  // the path of the save
  uint64_t bytes = 0;
  size_t values = 0;
  size_t optimizers = 0;
  std::vector<std::string> left_out;  // "owner0: 'replay' (replay_buffer)"
  // Owners that are allowed to write their own files but could not write those of this save, with
  // the reason: "owner0: why". Their values travelled to this worker.
  std::vector<std::string> streamed;
};

// Saves the job. Earlier saves stay as they are, also if this one fails.
// Errors: RESOURCE_EXHAUSTED (disk full), FAILED_PRECONDITION (another save into `dir` is under
// way, or an owner has lost its part of a named optimizer, which the error names), ALREADY_EXISTS
// (a save of that name), NOT_FOUND (a value was dropped meanwhile: save again), CANCELLED, and the
// errors of calls, naming the owner.
absl::StatusOr<SaveSummary> SaveModel(Worker& worker, const SaveOptions& options);

struct LoadOptions {
  // One save, or a folder of saves, whose latest is loaded.
  std::string dir;
  // The owners that may get values. If empty, all owners that the worker is attached to.
  std::vector<std::string> owners;
  // Maps the name of a saved owner to the owner that gets its values now. The values of a saved
  // owner that is not a key go to the owner of the same name. If that is not among `owners`, they
  // are distributed over `owners` so that bytes balance.
  std::map<std::string, std::string> owner_map;
  // If true, all values of saved owners that owner_map does not name are distributed so that bytes
  // balance, even if an owner of the same name is there.
  bool spread = false;
  // If true, loads only what is missing and leaves everything else as it is. An owner that has lost
  // its part of a named optimizer of the save, for example by a restart, gets everything that the
  // save holds for it. Other owners get the values that they do not have, and those that no
  // optimizer steps and that have not changed since they were made. Must not be combined with
  // `spread`.
  bool only_missing = false;
  // Used only together with only_missing. If false, the load fails with FAILED_PRECONDITION if a
  // part of an optimizer that stays belongs to another life than the saved one, or has taken
  // another number of steps. If true, such a part stays beside the loaded ones. (A life of an
  // optimizer ends when the optimizer is dropped, loaded or begun afresh.)
  bool accept_skew = false;
  // The bytes that travel in one exchange, optimizer state included.
  size_t batch_bytes = size_t{32} << 20;
  // A dense value with more bytes than this, state included, travels in pieces of batch_bytes and
  // is put together on its owner, which needs memory for a second copy. Must be below 4 GiB, the
  // most that a message can hold.
  size_t whole_bytes = size_t{256} << 20;
  // The timeout of one exchange.
  absl::Duration timeout = absl::Minutes(5);
  ProgressFunction progress;
  std::shared_ptr<checkpoint::FileSystem> files;
};

struct LoadSummary {
  std::string folder;
  uint64_t bytes = 0;                    // size of the loaded values with their optimizer state
  std::map<std::string, size_t> values;  // by owner
  size_t optimizers = 0;
};

// Loads a save: creates the values and optimizers that are missing, replaces the elements of those
// that exist (parameters get a new version), and restores the state of optimizers. Before anything
// changes, all files are read and compared with their checksums, and all owners are asked whether
// everything fits. The loaded optimizers refuse steps of a DistributedOptimizer that was created
// before the load; trainers create theirs again.
// Errors: NOT_FOUND (no save), DATA_LOSS (a damaged file), INVALID_ARGUMENT (no index or an invalid
// one), FAILED_PRECONDITION (something exists with another kind, shape or type: the problems of all
// owners are named), RESOURCE_EXHAUSTED, CANCELLED. An error after the first change says that some
// values are replaced already; load again then.
absl::StatusOr<LoadSummary> LoadModel(Worker& worker, const LoadOptions& options);

}  // namespace psd
