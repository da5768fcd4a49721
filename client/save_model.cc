#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/checkpoint.h"
#include "client/model_parts.h"
#include "client/pieces.h"
#include "client/runtime_of.h"
#include "client/save_files.h"
#include "client/save_pace.h"
#include "client/save_plan.h"
#include "core/base/clock.h"
#include "core/base/remedy.h"
#include "core/base/version.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/save_folder.h"
#include "core/runtime/runtime.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/services/optimizers/optimizer_service.h"

namespace psd {
namespace {

using checkpoint::SavedOptimizer;
using checkpoint::TensorSpec;
using services::ExportedItem;
using services::ExportItem;
using services::OwnerContents;

constexpr size_t kBatchItems = 512;
constexpr size_t kExportsAhead = 3;
// The size of the first exchange. Its answer shows whether training goes on, and so the pace.
constexpr uint64_t kProbeBytes = uint64_t{4} << 20;

// A value, or some rows of a table.
struct Piece {
  size_t value = 0;  // its index in OwnerPlan::values
  int64_t first_row = 0;
  int64_t rows = 0;
  uint64_t bytes = 0;
};

ExportItem ItemOf(const ValuePlan& value, const Piece& piece) {
  ExportItem item;
  item.value = value.id;
  item.first_row = piece.first_row;
  item.rows = piece.rows;
  item.files = {0};
  for (const StatePlan& state : value.states) {
    item.optimizers.push_back(state.optimizer_id);
    item.files.insert(item.files.end(), state.files.begin(), state.files.end());
  }
  return item;
}

// One save under way.
class Saver {
 public:
  Saver(Worker& worker, const SaveOptions& options, SavePlan plan)
      : worker_(worker),
        options_(options),
        plan_(std::move(plan)),
        pace_(options.busy_share),
        batch_bytes_(std::min<uint64_t>(options.batch_bytes, kProbeBytes)) {
    call_.timeout = options.timeout;
    for (size_t i = 0; i < plan_.owners.size(); ++i)
      pace_.Heard(i, plan_.owners[i].steps_accepted, Clock::Steady().Now());
  }

  absl::StatusOr<SaveSummary> Run(const std::shared_ptr<checkpoint::FileSystem>& files);

 private:
  // Values of one owner that travel together.
  struct Batch {
    size_t owner = 0;
    std::vector<Piece> pieces;
    std::vector<ExportItem> items;  // one for each piece
    bool last = false;              // the owner has no further batch
    bool in_pieces = false;         // a single value too large for a message; not asked for yet
    Future<services::Exported> exported;
  };

  // Makes the next batch and asks the owner for it. Returns nullopt after the last one.
  std::optional<Batch> Ask();
  absl::Status Take(const Batch& batch);
  Piece NextPiece(const OwnerPlan& owner, uint64_t room);
  absl::Status TakeWhole(const Batch& batch);
  absl::Status TakeInPieces(const Batch& batch);
  // Writes the version and the counts of steps of a copied value into the index.
  absl::Status Record(const ValuePlan& plan, const ExportedItem& item);
  bool TooLarge(const ValuePlan& value) const {
    return value.rows == 0 && value.bytes > options_.whole_bytes;
  }
  absl::Status FinishFiles(size_t owner);
  // Checks that every part of an optimizer is still in the life in which it was planned.
  // Errors: FAILED_PRECONDITION if not: a load or a fresh start during the save has mixed two
  // states.
  absl::Status CheckLives();
  absl::Status Tell(uint64_t bytes);

  Worker& worker_;
  const SaveOptions& options_;
  rpc::CallOptions call_;
  std::unique_ptr<checkpoint::SaveFolder> folder_;
  SavePlan plan_;
  std::vector<std::unique_ptr<SaveFiles>> files_;  // for each owner; destroyed before folder_
  size_t next_owner_ = 0;                          // the owner to ask next
  size_t next_value_ = 0;
  int64_t next_row_ = 0;
  uint64_t done_bytes_ = 0;
  SavePace pace_;
  uint64_t batch_bytes_;  // of the next exchange
};

// Returns the next value or, for a table, as many of its next rows as fit into `room` bytes, but at
// least one.
Piece Saver::NextPiece(const OwnerPlan& owner, uint64_t room) {
  const ValuePlan& value = owner.values[next_value_];
  Piece piece{next_value_, 0, 0, value.bytes};
  if (value.rows > 0) {
    const uint64_t row_bytes = value.bytes / static_cast<uint64_t>(value.rows) + 1;
    const int64_t left = value.rows - next_row_;
    piece.first_row = next_row_;
    piece.rows = std::clamp<int64_t>(static_cast<int64_t>(room / row_bytes), 1, left);
    piece.bytes =
        value.bytes / static_cast<uint64_t>(value.rows) * static_cast<uint64_t>(piece.rows);
    next_row_ += piece.rows;
    if (next_row_ < value.rows) return piece;
  }
  ++next_value_;
  next_row_ = 0;
  return piece;
}

std::optional<Saver::Batch> Saver::Ask() {
  while (next_owner_ < plan_.owners.size() &&
         next_value_ == plan_.owners[next_owner_].values.size()) {
    ++next_owner_;
    next_value_ = 0;
  }
  if (next_owner_ == plan_.owners.size()) return std::nullopt;
  const OwnerPlan& owner = plan_.owners[next_owner_];
  Batch batch;
  batch.owner = next_owner_;
  uint64_t bytes = 0;
  batch.in_pieces = TooLarge(owner.values[next_value_]);
  if (batch.in_pieces) {
    const ValuePlan& value = owner.values[next_value_];
    batch.pieces.push_back(NextPiece(owner, 0));
    batch.items.push_back(ItemOf(value, batch.pieces[0]));
    batch.last = next_value_ == owner.values.size();
    return batch;
  }
  while (next_value_ < owner.values.size() && batch.items.size() < kBatchItems) {
    const ValuePlan& value = owner.values[next_value_];
    if (TooLarge(value)) break;
    const uint64_t least =
        value.rows > 0 ? value.bytes / static_cast<uint64_t>(value.rows) : value.bytes;
    if (!batch.items.empty() && bytes + least > batch_bytes_) break;
    const Piece piece = NextPiece(owner, batch_bytes_ - std::min(bytes, batch_bytes_));
    bytes += piece.bytes;
    batch.items.push_back(ItemOf(value, piece));
    batch.pieces.push_back(piece);
  }
  batch.last = next_value_ == owner.values.size();
  batch.exported = files_[batch.owner]->Copy(batch.items);
  return batch;
}

absl::Status Saver::Record(const ValuePlan& plan, const ExportedItem& item) {
  checkpoint::SavedValue& value = plan_.index.values[plan.value];
  value.version = item.version;
  if (item.states.size() != plan.states.size())
    return absl::InternalError(absl::StrCat("'", value.name, "' came without all of its state"));
  for (size_t i = 0; i < plan.states.size(); ++i) {
    SavedOptimizer& optimizer = plan_.index.optimizers[plan.states[i].optimizer];
    const uint64_t steps = item.states[i].steps;
    optimizer.parameters[plan.states[i].parameter].steps = steps;
    optimizer.steps_accepted = std::max(optimizer.steps_accepted, steps);
    for (checkpoint::SavedPart& part : optimizer.parts)
      if (part.owner == value.owner) part.steps_accepted = std::max(part.steps_accepted, steps);
  }
  return absl::OkStatus();
}

absl::Status Saver::TakeWhole(const Batch& batch) {
  const OwnerPlan& owner = plan_.owners[batch.owner];
  const auto& exported = batch.exported.Wait();
  if (!exported.ok()) return exported.status();
  for (size_t i = 0; i < batch.pieces.size(); ++i) {
    PSD_RETURN_IF_ERROR(Record(owner.values[batch.pieces[i].value], exported->items[i]));
    PSD_RETURN_IF_ERROR(files_[batch.owner]->Take(batch.items[i], exported->items[i]));
    PSD_RETURN_IF_ERROR(Tell(batch.pieces[i].bytes));
  }
  pace_.Heard(batch.owner, exported->steps_accepted, Clock::Steady().Now());
  return absl::OkStatus();
}

absl::Status Saver::TakeInPieces(const Batch& batch) {
  const OwnerPlan& owner = plan_.owners[batch.owner];
  const ValuePlan& plan = owner.values[batch.pieces[0].value];
  const checkpoint::SavedValue& value = plan_.index.values[plan.value];
  std::vector<PieceTarget> targets = {{TensorSpec{"", value.dtype, value.shape}.bytes(), 0}};
  for (const StatePlan& state : plan.states) {
    for (size_t k = 0; k < state.arrays.size(); ++k)
      targets.push_back({state.arrays[k].bytes(), state.files[k]});
  }
  const PieceOptions pieces{call_, options_.batch_bytes,
                            [this](uint64_t bytes) { return Tell(bytes); }};
  PSD_ASSIGN_OR_RETURN(const ExportedItem item,
                       SaveInPieces(RuntimeOf(worker_), owner.owner, batch.owner, batch.items[0],
                                    targets, *files_[batch.owner], pace_, pieces));
  return Record(plan, item);
}

absl::Status Saver::Take(const Batch& batch) {
  batch_bytes_ = options_.batch_bytes;
  absl::Status taken = batch.in_pieces ? TakeInPieces(batch) : TakeWhole(batch);
  if (taken.ok() && batch.last) taken = FinishFiles(batch.owner);
  return Annotate(taken, absl::StrCat("saving ", files_[batch.owner]->Describe()));
}

absl::Status Saver::FinishFiles(size_t owner) {
  std::vector<services::StepCount> counts;
  for (const ValuePlan& value : plan_.owners[owner].values) {
    for (const StatePlan& state : value.states) {
      const SavedOptimizer& optimizer = plan_.index.optimizers[state.optimizer];
      const auto steps = static_cast<float>(optimizer.parameters[state.parameter].steps);
      counts.push_back({state.step_file, steps});
    }
  }
  PSD_ASSIGN_OR_RETURN(std::vector<checkpoint::SavedFile> saved, files_[owner]->Finish(counts));
  for (checkpoint::SavedFile& file : saved) plan_.index.files.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status Saver::CheckLives() {
  std::vector<Future<optim::PartReport>> asked;
  for (const SavedOptimizer& optimizer : plan_.index.optimizers)
    for (const checkpoint::SavedPart& part : optimizer.parts)
      asked.push_back(
          RuntimeOf(worker_).optimizer_service().Part(part.owner, optimizer.name, call_));
  size_t next = 0;
  for (const SavedOptimizer& optimizer : plan_.index.optimizers) {
    for (const checkpoint::SavedPart& part : optimizer.parts) {
      const absl::StatusOr<optim::PartReport>& now = asked[next++].Wait();
      if (!now.ok()) return Annotate(now.status(), absl::StrCat("saving ", part.owner));
      if (now->hosted && now->life.id.ToString() == part.life) continue;
      return WithRemedy(
          absl::FailedPreconditionError(absl::StrCat(
              "nothing was saved: ", part.owner, "'s part of optimizer '", optimizer.name,
              "' was loaded, dropped or begun afresh beside the save, which would hold values from "
              "before and from after")),
          "save again");
    }
  }
  return absl::OkStatus();
}

absl::Status Saver::Tell(uint64_t bytes) {
  done_bytes_ += bytes;
  if (options_.progress == nullptr || options_.progress({"saving", done_bytes_, plan_.bytes}))
    return absl::OkStatus();
  return absl::CancelledError("the save was stopped; what it had written is removed");
}

absl::StatusOr<SaveSummary> Saver::Run(const std::shared_ptr<checkpoint::FileSystem>& files) {
  const absl::Time now = absl::Now();
  plan_.index.created = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", now, absl::UTCTimeZone());
  plan_.index.psd_version = kVersion;
  std::string name = options_.name;
  if (name.empty()) name = absl::FormatTime("%Y-%m-%dT%H-%M-%E3SZ", now, absl::UTCTimeZone());
  const GlobalId unique = RuntimeOf(worker_).ids().Next();
  PSD_ASSIGN_OR_RETURN(
      folder_, checkpoint::SaveFolder::Begin(
                   files, options_.dir, name,
                   absl::StrCat(absl::Hex(unique.incarnation), "-", unique.counter), plan_.bytes));
  PSD_ASSIGN_OR_RETURN(ChosenFiles chosen,
                       ChooseFiles(RuntimeOf(worker_), *folder_, plan_.owners, call_));
  files_ = std::move(chosen.files);
  for (const auto& [owner, steps] : chosen.steps_accepted)
    pace_.Heard(owner, steps, Clock::Steady().Now());
  // The first owner has reported its steps already, so no small first exchange is needed.
  if (chosen.steps_accepted.count(0) > 0) batch_bytes_ = options_.batch_bytes;
  std::deque<Batch> asked;
  for (bool more = true; more || !asked.empty();) {
    const absl::Time started = Clock::Steady().Now();
    // While training goes on, the save makes one exchange at a time, so that owners are idle during
    // the pauses, too.
    const bool one_by_one = batch_bytes_ < options_.batch_bytes || pace_.Training(started);
    const size_t ahead = one_by_one ? 1 : kExportsAhead;
    // A value that travels in pieces is asked for only in Take, and later values are not asked for
    // before that.
    while (more && asked.size() < ahead && (asked.empty() || !asked.back().in_pieces)) {
      std::optional<Batch> batch = Ask();
      more = batch.has_value();
      if (more) asked.push_back(*std::move(batch));
    }
    if (asked.empty()) break;
    PSD_RETURN_IF_ERROR(Take(asked.front()));
    const bool in_pieces = asked.front().in_pieces;  // SaveInPieces has paused already
    asked.pop_front();
    const absl::Time now = Clock::Steady().Now();
    if (!in_pieces && (more || !asked.empty()))
      absl::SleepFor(pace_.PauseAfter(now - started, now));
  }
  PSD_RETURN_IF_ERROR(CheckLives());
  SaveSummary summary;
  PSD_ASSIGN_OR_RETURN(summary.folder, folder_->Publish(plan_.index));
  for (const checkpoint::SavedFile& file : plan_.index.files) summary.bytes += file.bytes;
  summary.values = plan_.index.values.size();
  summary.optimizers = plan_.index.optimizers.size();
  summary.left_out = plan_.index.left_out;
  summary.streamed = std::move(chosen.streamed);
  return summary;
}

// Asks `owners` what they host. Errors: FAILED_PRECONDITION if that is only a part of the model.
absl::StatusOr<ContentsByOwner> DescribeModel(Worker& worker, const SaveOptions& options,
                                              const std::vector<std::string>& owners) {
  rpc::CallOptions call;
  call.timeout = options.timeout;
  std::vector<Future<OwnerContents>> asked;
  for (const std::string& owner : owners)
    asked.push_back(RuntimeOf(worker).checkpoints().Describe(owner, call));
  ContentsByOwner all;
  for (size_t i = 0; i < owners.size(); ++i) {
    const auto& contents = asked[i].Wait();
    if (!contents.ok()) return Annotate(contents.status(), absl::StrCat("saving ", owners[i]));
    all.emplace(owners[i], *contents);
  }
  const auto may_miss = [&](const std::string& owner) {
    const std::vector<std::string>& left_out = options.leave_out;
    return !options.owners.empty() ||
           std::find(left_out.begin(), left_out.end(), owner) != left_out.end();
  };
  PSD_RETURN_IF_ERROR(Annotate(CheckWholeModel(all, may_miss), "nothing was saved"));
  return all;
}

}  // namespace

absl::StatusOr<SaveSummary> SaveModel(Worker& worker, const SaveOptions& options) {
  if (options.dir.empty()) return absl::InvalidArgumentError("SaveOptions::dir is empty");
  if (!(options.busy_share > 0 && options.busy_share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SaveOptions::busy_share is ", options.busy_share, "; it must be above 0 and at most 1"));
  }
  if (options.batch_bytes == 0) return absl::InvalidArgumentError("SaveOptions::batch_bytes is 0");
  std::vector<std::string> owners = options.owners;
  if (owners.empty()) owners = worker.owners();
  SavePlan plan;
  for (const std::string& name : options.leave_out) {
    owners.erase(std::remove(owners.begin(), owners.end(), name), owners.end());
    plan.index.left_out.push_back(absl::StrCat(name, ": all of its values, as was asked"));
  }
  if (owners.empty()) return absl::InvalidArgumentError("SaveOptions: no owner is left to save");
  PSD_ASSIGN_OR_RETURN(const ContentsByOwner all, DescribeModel(worker, options, owners));
  for (const std::string& owner : owners) {
    const OwnerContents& contents = all.at(owner);
    if (contents.values.empty()) {
      for (const std::string& text : contents.left_out)
        plan.index.left_out.push_back(absl::StrCat(owner, ": ", text));
      continue;
    }
    PSD_RETURN_IF_ERROR(PlanOwner(owner, contents, plan));
  }
  NameMissingLeads(all, plan);
  return Saver(worker, options, std::move(plan))
      .Run(options.files != nullptr ? options.files : checkpoint::FileSystem::Posix());
}

}  // namespace psd
