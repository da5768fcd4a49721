#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/checkpoint.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/save_folder.h"
#include "core/worker/checkpoint_service.h"
#include "core/worker/runtime.h"
#include "core/worker/version.h"

namespace psd {
namespace {

using checkpoint::CheckedFile;
using checkpoint::CheckpointIndex;
using checkpoint::SavedOptimizer;
using checkpoint::SavedState;
using checkpoint::TensorSpec;
using worker::ExportedItem;
using worker::ExportItem;
using worker::OwnerContents;

constexpr size_t kBatchItems = 512;
constexpr size_t kExportsAhead = 3;

// A file of the save: its tensors in the order in which they come.
struct FilePlan {
  std::string name;
  std::vector<TensorSpec> tensors;
  std::unique_ptr<CheckedFile> file;  // while it is written
};

// Where a parameter's state in one optimizer goes.
struct StatePlan {
  GlobalId optimizer_id;
  size_t file = 0;                 // of the owner's
  size_t optimizer = 0;            // of the index's
  size_t parameter = 0;            // of the optimizer's
  std::vector<TensorSpec> arrays;  // named by slot
};

struct ValuePlan {
  size_t value = 0;  // of the index's
  GlobalId id;
  std::vector<StatePlan> states;
  uint64_t bytes = 0;  // state included
};

struct OwnerPlan {
  std::string owner;
  std::vector<ValuePlan> values;
  std::vector<FilePlan> files;  // the first holds the values
};

// What is to be saved, and where each piece goes.
struct SavePlan {
  CheckpointIndex index;
  std::vector<OwnerPlan> owners;
  uint64_t bytes = 0;
};

// Whether two owners' parts are of one optimizer, created by the same call.
bool SameOptimizer(const SavedOptimizer& a, const SavedOptimizer& b) {
  return a.name == b.name && a.type == b.type && a.settings == b.settings &&
         std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(),
                    [](const checkpoint::SavedGroup& x, const checkpoint::SavedGroup& y) {
                      return x.created_with == y.created_with;
                    });
}

// The index's entry for an owner's part of an optimizer. Options that were changed are the first
// owner's, which decides about them.
size_t FindOrAddOptimizer(CheckpointIndex& index, const SavedOptimizer& part) {
  for (size_t i = 0; i < index.optimizers.size(); ++i) {
    SavedOptimizer& known = index.optimizers[i];
    if (!SameOptimizer(known, part)) continue;
    known.steps_accepted = std::max(known.steps_accepted, part.steps_accepted);
    return i;
  }
  SavedOptimizer& added = index.optimizers.emplace_back(part);
  added.parameters.clear();
  return index.optimizers.size() - 1;
}

void PlanOptimizer(const worker::HostedOptimizer& hosted, CheckpointIndex& index, OwnerPlan& owner,
                   std::map<std::string, ValuePlan*>& values) {
  if (hosted.optimizer.parameters.empty()) return;
  const size_t number = FindOrAddOptimizer(index, hosted.optimizer);
  const size_t file = owner.files.size();
  owner.files.push_back(
      {absl::StrCat("state-", owner.owner, "-", file - 1, checkpoint::kSafetensorsSuffix), {}, {}});
  std::vector<SavedState>& parameters = index.optimizers[number].parameters;
  for (size_t i = 0; i < hosted.optimizer.parameters.size(); ++i) {
    SavedState state = hosted.optimizer.parameters[i];
    state.owner = owner.owner;
    state.file = owner.files[file].name;
    for (const TensorSpec& array : hosted.state[i]) state.slots.push_back(array.name);
    ValuePlan& value = *values.at(state.parameter);
    value.states.push_back({hosted.id, file, number, parameters.size(), hosted.state[i]});
    for (const TensorSpec& array : hosted.state[i]) value.bytes += array.bytes();
    parameters.push_back(std::move(state));
  }
}

// The tensors of the owner's files, in the order in which the values will come; the counts of steps
// are known last.
void PlanFiles(const CheckpointIndex& index, OwnerPlan& owner) {
  for (const ValuePlan& plan : owner.values) {
    const checkpoint::SavedValue& value = index.values[plan.value];
    owner.files[0].tensors.push_back({value.name, value.dtype, value.shape});
    for (const StatePlan& state : plan.states) {
      for (const TensorSpec& array : state.arrays)
        owner.files[state.file].tensors.push_back(
            {checkpoint::StateTensorName(state.parameter, array.name), array.dtype, array.shape});
    }
  }
  for (const ValuePlan& plan : owner.values) {
    for (const StatePlan& state : plan.states)
      owner.files[state.file].tensors.push_back(
          {checkpoint::StateTensorName(state.parameter, checkpoint::kStepSlot), DType::kF32,
           Shape{}});
  }
}

void PlanOwner(const std::string& name, const OwnerContents& contents, SavePlan& plan) {
  OwnerPlan& owner = plan.owners.emplace_back();
  owner.owner = name;
  owner.files.push_back({absl::StrCat("values-", name, checkpoint::kSafetensorsSuffix), {}, {}});
  owner.values.reserve(contents.values.size());
  // Wide elements first, so that all are aligned in their file.
  std::vector<const worker::HostedValue*> sorted;
  for (const worker::HostedValue& hosted : contents.values) sorted.push_back(&hosted);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return ItemSize(a->value.dtype) > ItemSize(b->value.dtype);
  });
  std::map<std::string, ValuePlan*> by_name;
  for (const worker::HostedValue* hosted : sorted) {
    checkpoint::SavedValue& value = plan.index.values.emplace_back(hosted->value);
    value.owner = name;
    value.file = owner.files[0].name;
    ValuePlan& each = owner.values.emplace_back();
    each.value = plan.index.values.size() - 1;
    each.id = hosted->id;
    each.bytes = TensorSpec{"", value.dtype, value.shape}.bytes();
    by_name[value.name] = &each;
  }
  for (const worker::HostedOptimizer& hosted : contents.optimizers)
    PlanOptimizer(hosted, plan.index, owner, by_name);
  PlanFiles(plan.index, owner);
  for (const ValuePlan& value : owner.values) plan.bytes += value.bytes;
  for (const std::string& text : contents.left_out)
    plan.index.left_out.push_back(absl::StrCat(name, ": ", text));
}

// Whether what came is what the file's header says will come.
absl::Status CheckArray(const Tensor& tensor, const TensorSpec& planned) {
  if (tensor.dtype() == planned.dtype && tensor.shape() == planned.shape) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("'", planned.name, "' was ", DTypeName(planned.dtype),
                                         planned.shape.ToString(), " and has become ",
                                         tensor.ToString(), " during the save; save again"));
}

// One save under way.
class Saver {
 public:
  Saver(Worker& worker, const SaveOptions& options, SavePlan plan)
      : worker_(worker), options_(options), plan_(std::move(plan)) {
    call_.timeout = options.timeout;
  }

  absl::StatusOr<SaveSummary> Run(const std::shared_ptr<checkpoint::FileSystem>& files);

 private:
  // Values of one owner that travel together.
  struct Batch {
    size_t owner = 0;
    size_t first = 0;
    size_t count = 0;
    Future<std::vector<ExportedItem>> exported;
  };

  // The next batch, asked for; none after the last one.
  std::optional<Batch> Ask();
  absl::Status Take(const Batch& batch);
  absl::Status TakeValue(OwnerPlan& owner, const ValuePlan& plan, const ExportedItem& item);
  absl::Status OpenFiles(OwnerPlan& owner);
  absl::Status FinishFiles(OwnerPlan& owner);
  absl::Status Tell(uint64_t bytes);

  Worker& worker_;
  const SaveOptions& options_;
  rpc::CallOptions call_;
  std::unique_ptr<checkpoint::SaveFolder> folder_;
  SavePlan plan_;          // after the folder: its files are closed before the folder goes
  size_t next_owner_ = 0;  // of those to ask
  size_t next_value_ = 0;
  uint64_t done_bytes_ = 0;
};

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
  batch.first = next_value_;
  std::vector<ExportItem> items;
  uint64_t bytes = 0;
  while (next_value_ < owner.values.size() && items.size() < kBatchItems) {
    const ValuePlan& value = owner.values[next_value_];
    if (!items.empty() && bytes + value.bytes > options_.batch_bytes) break;
    bytes += value.bytes;
    ExportItem& item = items.emplace_back();
    item.value = value.id;
    for (const StatePlan& state : value.states) item.optimizers.push_back(state.optimizer_id);
    ++next_value_;
  }
  batch.count = items.size();
  batch.exported = worker_.runtime().checkpoints().Export(owner.owner, items, call_);
  return batch;
}

absl::Status Saver::TakeValue(OwnerPlan& owner, const ValuePlan& plan, const ExportedItem& item) {
  checkpoint::SavedValue& value = plan_.index.values[plan.value];
  value.version = item.version;
  PSD_RETURN_IF_ERROR(CheckArray(item.elements, {value.name, value.dtype, value.shape}));
  PSD_ASSIGN_OR_RETURN(Tensor dense, item.elements.Contiguous());
  PSD_RETURN_IF_ERROR(owner.files[0].file->Append(dense.AsBuffer()));
  if (item.states.size() != plan.states.size())
    return absl::InternalError(absl::StrCat("'", value.name, "' came without all of its state"));
  for (size_t i = 0; i < plan.states.size(); ++i) {
    const StatePlan& state = plan.states[i];
    const worker::ExportedState& exported = item.states[i];
    SavedOptimizer& optimizer = plan_.index.optimizers[state.optimizer];
    optimizer.parameters[state.parameter].steps = exported.steps;
    optimizer.steps_accepted = std::max(optimizer.steps_accepted, exported.steps);
    if (exported.arrays.size() != state.arrays.size())
      return absl::InternalError(absl::StrCat("'", value.name, "' came without all of its state"));
    for (size_t k = 0; k < exported.arrays.size(); ++k) {
      PSD_RETURN_IF_ERROR(CheckArray(exported.arrays[k], state.arrays[k]));
      PSD_RETURN_IF_ERROR(owner.files[state.file].file->Append(exported.arrays[k].AsBuffer()));
    }
  }
  return Tell(plan.bytes);
}

absl::Status Saver::Take(const Batch& batch) {
  OwnerPlan& owner = plan_.owners[batch.owner];
  const auto& exported = batch.exported.Wait();
  if (!exported.ok()) return Annotate(exported.status(), absl::StrCat("saving ", owner.owner));
  if (batch.first == 0) PSD_RETURN_IF_ERROR(OpenFiles(owner));
  for (size_t i = 0; i < batch.count; ++i)
    PSD_RETURN_IF_ERROR(TakeValue(owner, owner.values[batch.first + i], (*exported)[i]));
  if (batch.first + batch.count < owner.values.size()) return absl::OkStatus();
  return FinishFiles(owner);
}

absl::Status Saver::OpenFiles(OwnerPlan& owner) {
  for (FilePlan& file : owner.files) {
    PSD_ASSIGN_OR_RETURN(file.file, folder_->Create(file.name, file.tensors, {{"format", "pt"}}));
  }
  return absl::OkStatus();
}

absl::Status Saver::FinishFiles(OwnerPlan& owner) {
  for (const ValuePlan& value : owner.values) {
    for (const StatePlan& state : value.states) {
      const SavedOptimizer& optimizer = plan_.index.optimizers[state.optimizer];
      const auto steps = static_cast<float>(optimizer.parameters[state.parameter].steps);
      PSD_RETURN_IF_ERROR(owner.files[state.file].file->Append(Tensor::Scalar(steps).AsBuffer()));
    }
  }
  for (FilePlan& file : owner.files) {
    PSD_ASSIGN_OR_RETURN(checkpoint::SavedFile saved, file.file->Finish());
    file.file.reset();
    plan_.index.files.push_back(std::move(saved));
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
  plan_.index.psd_version = worker::kVersion;
  std::string name = options_.name;
  if (name.empty()) name = absl::FormatTime("%Y-%m-%dT%H-%M-%E3SZ", now, absl::UTCTimeZone());
  const GlobalId unique = worker_.runtime().ids().Next();
  PSD_ASSIGN_OR_RETURN(
      folder_, checkpoint::SaveFolder::Begin(
                   files, options_.dir, name,
                   absl::StrCat(absl::Hex(unique.incarnation), "-", unique.counter), plan_.bytes));
  std::deque<Batch> asked;
  for (bool more = true; more || !asked.empty();) {
    while (more && asked.size() < kExportsAhead) {
      std::optional<Batch> batch = Ask();
      more = batch.has_value();
      if (more) asked.push_back(*std::move(batch));
    }
    if (asked.empty()) break;
    PSD_RETURN_IF_ERROR(Take(asked.front()));
    asked.pop_front();
  }
  SaveSummary summary;
  PSD_ASSIGN_OR_RETURN(summary.folder, folder_->Publish(plan_.index));
  for (const checkpoint::SavedFile& file : plan_.index.files) summary.bytes += file.bytes;
  summary.values = plan_.index.values.size();
  summary.optimizers = plan_.index.optimizers.size();
  summary.left_out = plan_.index.left_out;
  return summary;
}

}  // namespace

absl::StatusOr<SaveSummary> SaveModel(Worker& worker, const SaveOptions& options) {
  if (options.dir.empty()) return absl::InvalidArgumentError("SaveOptions::dir is empty");
  std::vector<std::string> owners = options.owners;
  if (owners.empty()) owners = worker.owners();
  rpc::CallOptions call;
  call.timeout = options.timeout;
  std::vector<Future<OwnerContents>> asked;
  for (const std::string& owner : owners)
    asked.push_back(worker.runtime().checkpoints().Describe(owner, call));
  SavePlan plan;
  for (size_t i = 0; i < owners.size(); ++i) {
    const auto& contents = asked[i].Wait();
    if (!contents.ok()) return Annotate(contents.status(), absl::StrCat("saving ", owners[i]));
    if (contents->values.empty()) {
      for (const std::string& text : contents->left_out)
        plan.index.left_out.push_back(absl::StrCat(owners[i], ": ", text));
      continue;
    }
    PlanOwner(owners[i], *contents, plan);
  }
  return Saver(worker, options, std::move(plan))
      .Run(options.files != nullptr ? options.files : checkpoint::FileSystem::Posix());
}

}  // namespace psd
