#pragma once

// Saving and loading a whole job: parameters, other named tensors, and the state of named
// optimizers, in a folder of safetensors files (see core/checkpoint/checkpoint_index.h).
//
//   psd::SaveOptions options;
//   options.dir = "/data/model";
//   PSD_ASSIGN_OR_RETURN(psd::SaveSummary saved, psd::SaveModel(*worker, options));
//
// An owner that may write below a folder of its host (RuntimeOptions::checkpoint_root) and finds
// the save there writes its own files. What others have goes through the worker that calls: the
// folder is on its host, the owners may be anywhere. Training goes on meanwhile. Each dense
// parameter and its state in every optimizer are from between the same two steps; different
// parameters may be from different steps. Of rows that is so for each row: two rows of a table may
// be from different steps, and so may the table's count of steps.
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
// Called from the caller's thread. False stops the work: it fails with CANCELLED.
using ProgressFunction = std::function<bool(const TransferProgress&)>;

struct SaveOptions {
  // The folder of saves: the new one is made in it, and `latest` there names it at the end.
  std::string dir;
  // What the save is called. Empty: the time, "2026-11-21T14-36-34.120Z".
  std::string name;
  // Whose values are saved. Empty: all owners that the worker is attached to.
  std::vector<std::string> owners;
  // Owners whose values are not saved, as the save's summary and index say. The worker need not be
  // attached to them: they may be dead. Without this an owner that does not answer fails the save,
  // and so does one that has lost its part of a named optimizer.
  std::vector<std::string> leave_out;
  // What travels in one exchange, state included. Three are on their way at once, so memory for
  // about four is needed here, or for four values of nearly whole_bytes.
  size_t batch_bytes = size_t{32} << 20;
  // A dense value with more bytes, state included, is first copied on its owner, which needs the
  // memory for that, and travels in pieces of batch_bytes. Below 4 GiB, which no message exceeds.
  size_t whole_bytes = size_t{256} << 20;
  // How much of the time the save works while training goes on (optimizers accept steps): the rest
  // is the steps'. Above 0; 1: always. While training stands still it works all the time.
  double busy_share = 0.15;
  // Of one exchange.
  absl::Duration timeout = absl::Minutes(5);
  ProgressFunction progress;
  // Null: the disk.
  std::shared_ptr<checkpoint::FileSystem> files;
};

struct SaveSummary {
  std::string folder;  // of the save
  uint64_t bytes = 0;
  size_t values = 0;
  size_t optimizers = 0;
  std::vector<std::string> left_out;  // "owner0: 'replay' (replay_buffer)"
  // Owners that may write files of a save, and could not write those of this one: "owner0: why".
  std::vector<std::string> streamed;
};

// Saves. Whatever fails, the saves that were there stay as they were.
// Errors: RESOURCE_EXHAUSTED (disk full), FAILED_PRECONDITION (another save into `dir` is under
// way, or an owner has lost its part of a named optimizer: the error names it), ALREADY_EXISTS (the
// name), NOT_FOUND (a value was dropped meanwhile: save again), CANCELLED, and those of the calls,
// naming the owner.
absl::StatusOr<SaveSummary> SaveModel(Worker& worker, const SaveOptions& options);

struct LoadOptions {
  // A folder of saves, whose latest is loaded, or one save.
  std::string dir;
  // Into which owners. Empty: all that the worker is attached to.
  std::vector<std::string> owners;
  // Saved owner -> owner now. What is not named here goes back to the owner of its name, and is
  // spread over `owners`, by bytes, if that is not among them.
  std::map<std::string, std::string> owner_map;
  // Spreads everything that owner_map does not name anew, by bytes.
  bool spread = false;
  // Loads only what is missing, and leaves what is there as it is. An owner that has lost its part
  // of a named optimizer of the save, as a restarted one has, gets everything that the save holds
  // of it. Elsewhere values are loaded that are not there, or that no optimizer steps and nothing
  // has changed since they were made. Not together with `spread`.
  bool only_missing = false;
  // With only_missing: even if a part of an optimizer that stays is not of the life that was saved,
  // or has taken more steps since. Otherwise that is FAILED_PRECONDITION, naming both.
  bool accept_skew = false;
  size_t batch_bytes = size_t{32} << 20;
  // A dense value with more bytes, state included, is put together on its owner, which needs the
  // memory for that, from pieces of batch_bytes. Below 4 GiB, which no message exceeds.
  size_t whole_bytes = size_t{256} << 20;
  absl::Duration timeout = absl::Minutes(5);
  ProgressFunction progress;
  std::shared_ptr<checkpoint::FileSystem> files;
};

struct LoadSummary {
  std::string folder;
  uint64_t bytes = 0;                    // of the values that were loaded, state included
  std::map<std::string, size_t> values;  // by owner
  size_t optimizers = 0;
};

// Loads: makes what is missing, replaces the elements of what is there (parameters get a new
// version), and the state of optimizers with them. A new life of these optimizers begins: trainers
// create their DistributedOptimizer again, steps of one from before are refused. All files are read
// and compared with their checksums, and all owners asked whether everything fits, before anything
// changes. Errors: NOT_FOUND (no save), DATA_LOSS (damaged), INVALID_ARGUMENT (no index, or a
// hostile one), FAILED_PRECONDITION (something exists as something else: all owners' problems are
// named), RESOURCE_EXHAUSTED, CANCELLED. An error after the first change says so: load again.
absl::StatusOr<LoadSummary> LoadModel(Worker& worker, const LoadOptions& options);

}  // namespace psd
