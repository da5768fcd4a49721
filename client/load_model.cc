#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/checkpoint.h"
#include "client/load_share.h"
#include "client/load_source.h"
#include "client/model_parts.h"
#include "client/pieces.h"
#include "client/runtime_of.h"
#include "core/checkpoint/placement.h"
#include "core/checkpoint/save_folder.h"
#include "core/checkpoint/save_reader.h"
#include "core/optim/options/settings_fields.h"
#include "core/runtime/runtime.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/values/value_service.h"

namespace psd {
namespace {

using checkpoint::CheckpointIndex;
using checkpoint::SavedOptimizer;
using checkpoint::SavedState;
using checkpoint::SavedValue;
using checkpoint::SaveReader;
using checkpoint::TensorSpec;
using checkpoint::ValueKind;
using services::ImportItem;
using services::OwnerContents;

constexpr size_t kBatchItems = 512;
constexpr size_t kImportsAhead = 3;
constexpr size_t kCreationsAhead = 256;

// The values and optimizers that one owner gets.
struct OwnerPart {
  std::string owner;
  OwnerContents contents;             // what CheckAll asks the owner about
  std::vector<size_t> values;         // their numbers in the index
  std::vector<size_t> optimizers;     // the numbers in the index of contents.optimizers, in order
  std::map<std::string, RRef> rrefs;  // its parameters by name, once they exist
};

// An optimizer of which at least one part is loaded.
struct LoadedOptimizer {
  optim::OptimizerLife life;             // the life that the load begins
  std::map<std::string, KeptPart> kept;  // by owner: the parts that stay as they are
};

// One load under way.
class Loader {
 public:
  Loader(Worker& worker, const LoadOptions& options, const SaveReader& save)
      : worker_(worker), options_(options), save_(save), index_(save.index()), source_(save) {
    call_.timeout = options.timeout;
    load_ = RuntimeOf(worker_).ids().Next();
  }

  absl::StatusOr<LoadSummary> Run(const std::vector<std::string>& owners);

 private:
  absl::Status DescribeOwners(const std::vector<std::string>& owners);
  void Divide(const checkpoint::Placement& placement, const LoadShare& share);
  void AddOptimizer(size_t number, const std::vector<std::string>& homes,
                    const OptimizerShare& share, std::map<std::string, OwnerPart>& parts);
  absl::Status CheckAll();
  // Create what does not exist yet: parameters first, then the optimizers over them.
  absl::Status CreateParameters();
  absl::Status CreateOptimizers();
  // An owner's part of an optimizer, with the present options of its groups.
  struct MadePart {
    RRef rref;
    std::vector<optim::GroupOptions> options;
  };
  absl::StatusOr<MadePart> CreateOptimizer(const OwnerPart& part, const SavedOptimizer& optimizer);
  absl::StatusOr<MadePart> WithOptions(RRef rref, size_t groups);
  absl::Status SetOptions(size_t number, std::vector<MadePart> parts);
  absl::Status ImportAll();
  absl::Status ImportPart(const OwnerPart& part);
  absl::Status RestoreOptimizers();
  absl::Status RestoreParts(bool kept);
  // Whether a value is too large for one message.
  bool TooLarge(size_t number) const {
    return index_.values[number].kind != ValueKind::kRows &&
           source_.Bytes(number) > options_.whole_bytes;
  }
  // Waits until at most `at_most` imports are under way.
  absl::Status WaitFor(size_t at_most);
  // Waits until no import is under way, and ignores their answers.
  void EndImports();
  absl::Status Tell(absl::string_view activity, uint64_t bytes);

  Worker& worker_;
  const LoadOptions& options_;
  const SaveReader& save_;
  const CheckpointIndex& index_;
  const LoadSource source_;
  rpc::CallOptions call_;
  GlobalId load_;           // the life of the parts while they are being loaded
  ContentsByOwner hosted_;  // what owners had before the load
  std::vector<OwnerPart> parts_;
  std::map<size_t, LoadedOptimizer> optimizers_;  // by their number in the index
  std::deque<Future<Unit>> under_way_;
  uint64_t done_bytes_ = 0;
};

// ---- owners of the values

absl::Status Loader::DescribeOwners(const std::vector<std::string>& owners) {
  std::vector<Future<OwnerContents>> asked;
  for (const std::string& owner : owners)
    asked.push_back(RuntimeOf(worker_).checkpoints().Describe(owner, call_));
  for (size_t i = 0; i < owners.size(); ++i) {
    const auto& contents = asked[i].Wait();
    if (!contents.ok()) return Annotate(contents.status(), owners[i]);
    hosted_.emplace(owners[i], *contents);
  }
  return absl::OkStatus();
}

void Loader::Divide(const checkpoint::Placement& placement, const LoadShare& share) {
  std::map<std::string, OwnerPart> parts;
  for (size_t i = 0; i < index_.values.size(); ++i) {
    if (!share.values[i]) continue;
    OwnerPart& part = parts[placement.values[i]];
    part.values.push_back(i);
    part.contents.values.push_back({{}, index_.values[i]});
  }
  for (size_t i = 0; i < index_.optimizers.size(); ++i)
    if (share.optimizers[i].loaded)
      AddOptimizer(i, placement.optimizers[i], share.optimizers[i], parts);
  for (auto& [owner, part] : parts) {
    part.owner = owner;
    parts_.push_back(std::move(part));
  }
}

void Loader::AddOptimizer(size_t number, const std::vector<std::string>& homes,
                          const OptimizerShare& share, std::map<std::string, OwnerPart>& parts) {
  const SavedOptimizer& optimizer = index_.optimizers[number];
  LoadedOptimizer& loaded = optimizers_[number];
  loaded.kept = share.kept;
  loaded.life.id = share.begun.IsNone() ? RuntimeOf(worker_).ids().Next() : share.begun;
  for (const std::string& owner : std::set<std::string>(homes.begin(), homes.end()))
    loaded.life.owners.push_back({owner, hosted_.at(owner).incarnation});
  for (size_t i = 0; i < optimizer.parameters.size(); ++i) {
    if (share.kept.count(homes[i]) > 0) continue;
    const SavedState& state = optimizer.parameters[i];
    OwnerPart& part = parts[homes[i]];
    if (part.optimizers.empty() || part.optimizers.back() != number) {
      part.optimizers.push_back(number);
      services::HostedOptimizer& hosted = part.contents.optimizers.emplace_back();
      hosted.optimizer = optimizer;
      hosted.optimizer.parameters.clear();
    }
    services::HostedOptimizer& hosted = part.contents.optimizers.back();
    hosted.optimizer.parameters.push_back(state);
    std::vector<TensorSpec>& arrays = hosted.state.emplace_back();
    for (const checkpoint::SavedSlot& slot : state.slots)
      arrays.push_back(save_.StateSpec(optimizer, i, slot));
  }
}

// ---- checks before anything changes

absl::Status Loader::CheckAll() {
  std::vector<Future<Unit>> answers;
  for (const OwnerPart& part : parts_)
    answers.push_back(RuntimeOf(worker_).checkpoints().Check(part.owner, part.contents, call_));
  std::vector<std::string> problems;
  absl::Status first;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const absl::Status& answer = answers[i].Wait().status();
    if (answer.ok()) continue;
    if (first.ok()) first = answer;
    problems.push_back(absl::StrCat(parts_[i].owner, ": ", answer.message()));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::Status(first.code(),
                      absl::StrCat("nothing was loaded: ", absl::StrJoin(problems, "; ")));
}

// ---- changes

absl::Status Loader::CreateParameters() {
  for (OwnerPart& part : parts_) {
    std::deque<std::pair<std::string, Future<RRef>>> asked;
    const auto take = [&]() -> absl::Status {
      const auto& made = asked.front().second.Wait();
      if (!made.ok())
        return Annotate(made.status(),
                        absl::StrCat("making '", asked.front().first, "' on ", part.owner));
      part.rrefs.emplace(asked.front().first, *made);
      asked.pop_front();
      return absl::OkStatus();
    };
    for (size_t i : part.values) {
      const SavedValue& value = index_.values[i];
      if (value.kind == ValueKind::kTensor) continue;
      const auto hosted = value.kind == ValueKind::kRows ? services::ValueService::Hosted::kRows
                                                         : services::ValueService::Hosted::kTensor;
      if (asked.size() == kCreationsAhead) PSD_RETURN_IF_ERROR(take());
      asked.emplace_back(value.name, RuntimeOf(worker_).values().GetOrCreate(
                                         part.owner, value.name, Zeros(value.shape, value.dtype),
                                         value.requires_grad, call_, hosted));
    }
    while (!asked.empty()) PSD_RETURN_IF_ERROR(take());
  }
  return absl::OkStatus();
}

absl::Status Loader::CreateOptimizers() {
  std::map<size_t, std::vector<MadePart>> made;  // by the index's optimizer
  for (const OwnerPart& part : parts_) {
    for (size_t i = 0; i < part.optimizers.size(); ++i) {
      const SavedOptimizer& optimizer = part.contents.optimizers[i].optimizer;
      auto created = CreateOptimizer(part, optimizer);
      if (!created.ok()) {
        return Annotate(created.status(),
                        absl::StrCat("making optimizer '", optimizer.name, "' on ", part.owner));
      }
      made[part.optimizers[i]].push_back(*std::move(created));
    }
  }
  for (const auto& [number, parts] : made) PSD_RETURN_IF_ERROR(SetOptions(number, parts));
  return absl::OkStatus();
}

absl::StatusOr<Loader::MadePart> Loader::CreateOptimizer(const OwnerPart& part,
                                                         const SavedOptimizer& optimizer) {
  services::OptimizerService& service = RuntimeOf(worker_).optimizer_service();
  std::vector<services::GroupRequest> groups;
  for (const checkpoint::SavedGroup& group : optimizer.groups)
    groups.push_back({{optimizer.type, group.created_with}, {}});
  for (const SavedState& state : optimizer.parameters)
    groups[state.group].parameters.push_back(part.rrefs.at(state.parameter));
  PSD_ASSIGN_OR_RETURN(optim::OptimizerSettings settings,
                       optim::SettingsFromFields(optimizer.settings));
  services::PartTerms terms;
  terms.unfinished = true;
  terms.life.id = load_;
  PSD_ASSIGN_OR_RETURN(
      RRef rref, service.Create(part.owner, optimizer.name, groups, settings, call_, terms).Wait());
  return WithOptions(std::move(rref), optimizer.groups.size());
}

absl::StatusOr<Loader::MadePart> Loader::WithOptions(RRef rref, size_t groups) {
  MadePart part{std::move(rref), {}};
  for (size_t i = 0; i < groups; ++i) {
    PSD_ASSIGN_OR_RETURN(
        optim::GroupOptions now,
        RuntimeOf(worker_).optimizer_service().Options(part.rref, i, call_).Wait());
    part.options.push_back(std::move(now));
  }
  return part;
}

// Sets the options of all parts. If parts stay, all parts get the options of those.
absl::Status Loader::SetOptions(size_t number, std::vector<MadePart> parts) {
  services::OptimizerService& service = RuntimeOf(worker_).optimizer_service();
  const SavedOptimizer& optimizer = index_.optimizers[number];
  const std::map<std::string, KeptPart>& kept = optimizers_.at(number).kept;
  const size_t first_kept = parts.size();
  for (const auto& [owner, part] : kept) {
    PSD_ASSIGN_OR_RETURN(RRef rref,
                         RuntimeOf(worker_).values().Lookup(owner, optimizer.name, call_).Wait());
    PSD_ASSIGN_OR_RETURN(MadePart made, WithOptions(std::move(rref), optimizer.groups.size()));
    parts.push_back(std::move(made));
  }
  for (size_t i = 0; i < optimizer.groups.size(); ++i) {
    const auto& wanted =
        kept.empty() ? optimizer.groups[i].options : parts[first_kept].options[i].spec.options;
    for (const MadePart& part : parts) {
      if (part.options[i].spec.options == wanted) continue;
      PSD_RETURN_IF_ERROR(service.SetOptions(part.rref, i, wanted, 0, {}, call_).Wait());
    }
  }
  return absl::OkStatus();
}

uint64_t BytesOf(const ImportItem& item) {
  uint64_t bytes = item.elements.NumBytes();
  for (const services::ImportedState& state : item.states)
    for (const Tensor& array : state.arrays) bytes += array.NumBytes();
  return bytes;
}

absl::Status Loader::WaitFor(size_t at_most) {
  while (under_way_.size() > at_most) {
    const absl::Status done = under_way_.front().Wait().status();
    under_way_.pop_front();
    PSD_RETURN_IF_ERROR(done);
  }
  return absl::OkStatus();
}

void Loader::EndImports() {
  for (const Future<Unit>& import : under_way_) import.Wait();
  under_way_.clear();
}

absl::Status Loader::ImportPart(const OwnerPart& part) {
  size_t next = 0;
  int64_t row = 0;  // the next row of the value, if it is a table
  while (next < part.values.size()) {
    if (TooLarge(part.values[next])) {
      const PieceOptions pieces{call_, options_.batch_bytes,
                                [this](uint64_t bytes) { return Tell("loading", bytes); }};
      const size_t number = part.values[next++];
      ImportItem item = source_.DescribeItem(number);
      item.load = load_;
      PSD_RETURN_IF_ERROR(LoadInPieces(RuntimeOf(worker_), part.owner, std::move(item),
                                       source_.SourcesOf(number), pieces));
      continue;
    }
    std::vector<ImportItem> items;
    uint64_t bytes = 0;
    while (next < part.values.size() && bytes < options_.batch_bytes &&
           items.size() < kBatchItems && !TooLarge(part.values[next])) {
      const size_t number = part.values[next];
      PSD_ASSIGN_OR_RETURN(
          ImportItem item,
          source_.ReadItem(number, source_.NextRows(number, options_.batch_bytes - bytes, &row)));
      item.load = load_;
      if (row == 0) ++next;
      bytes += BytesOf(item);
      items.push_back(std::move(item));
    }
    PSD_RETURN_IF_ERROR(WaitFor(kImportsAhead - 1));
    under_way_.push_back(RuntimeOf(worker_).checkpoints().Import(part.owner, items, {}, call_));
    PSD_RETURN_IF_ERROR(Tell("loading", bytes));
  }
  return WaitFor(0);
}

absl::Status Loader::ImportAll() {
  done_bytes_ = 0;
  for (const OwnerPart& part : parts_) PSD_RETURN_IF_ERROR(Annotate(ImportPart(part), part.owner));
  return absl::OkStatus();
}

// Called when all imports have been answered. The loaded parts are restored first: as long as a
// part that stays still has the life of the save, loading what is missing again finishes the load.
absl::Status Loader::RestoreOptimizers() {
  PSD_RETURN_IF_ERROR(RestoreParts(/*kept=*/false));
  return RestoreParts(/*kept=*/true);
}

absl::Status Loader::RestoreParts(bool kept) {
  std::map<std::string, std::vector<services::RestoredOptimizer>> by_owner;
  for (const auto& [number, loaded] : optimizers_) {
    const SavedOptimizer& optimizer = index_.optimizers[number];
    for (const optim::LifeOwner& owner : loaded.life.owners) {
      const auto stays = loaded.kept.find(owner.name);
      if (kept != (stays != loaded.kept.end())) continue;
      services::RestoredOptimizer& restored = by_owner[owner.name].emplace_back();
      restored = {optimizer.name,
                  optimizer.steps_accepted,
                  optimizer.loss_scale,
                  optimizer.good_steps,
                  kept,
                  loaded.life};
      if (!kept) restored.judged = load_;
      if (!kept || options_.accept_skew) continue;
      restored.steps_accepted = stays->second.steps;
      restored.judged = stays->second.life;
    }
  }
  for (const auto& [owner, optimizers] : by_owner) {
    PSD_RETURN_IF_ERROR(
        RuntimeOf(worker_).checkpoints().Import(owner, {}, optimizers, call_).Wait());
  }
  return absl::OkStatus();
}

absl::Status Loader::Tell(absl::string_view activity, uint64_t bytes) {
  done_bytes_ = std::min(done_bytes_ + bytes, save_.bytes());
  if (options_.progress == nullptr || options_.progress({activity, done_bytes_, save_.bytes()})) {
    return absl::OkStatus();
  }
  return absl::CancelledError("the load was stopped");
}

absl::StatusOr<LoadSummary> Loader::Run(const std::vector<std::string>& owners) {
  PSD_RETURN_IF_ERROR(
      save_.Verify([this](uint64_t bytes) { return Tell("verifying", bytes).ok(); }));
  if (options_.only_missing)
    PSD_RETURN_IF_ERROR(CheckSavedOwners(index_, owners, options_.owner_map));
  checkpoint::PlacementOptions place;
  place.owners = options_.owner_map;
  place.spread = options_.spread;
  PSD_ASSIGN_OR_RETURN(checkpoint::Placement placement, checkpoint::Place(index_, owners, place));
  PSD_RETURN_IF_ERROR(DescribeOwners(owners));
  LoadShare share = AllOf(index_);
  if (options_.only_missing) {
    PSD_ASSIGN_OR_RETURN(share, MissingOf(index_, placement, hosted_, options_.accept_skew));
  }
  Divide(placement, share);
  PSD_RETURN_IF_ERROR(CheckAll());
  absl::Status changed = CreateParameters();
  if (changed.ok()) changed = CreateOptimizers();
  if (changed.ok()) changed = ImportAll();
  if (changed.ok()) changed = RestoreOptimizers();
  // An import that is applied after this load has returned could replace what the next one loads.
  EndImports();
  if (!changed.ok())
    return Annotate(changed, "the load has stopped half-way, load again: some values are replaced");
  LoadSummary summary;
  summary.folder = save_.folder();
  summary.optimizers = optimizers_.size();
  for (const OwnerPart& part : parts_) {
    summary.values[part.owner] = part.values.size();
    for (size_t number : part.values) summary.bytes += source_.Bytes(number);
  }
  return summary;
}

}  // namespace

absl::StatusOr<LoadSummary> LoadModel(Worker& worker, const LoadOptions& options) {
  const auto files = options.files != nullptr ? options.files : checkpoint::FileSystem::Posix();
  if (options.batch_bytes == 0) return absl::InvalidArgumentError("LoadOptions::batch_bytes is 0");
  if (options.only_missing && options.spread) {
    return absl::InvalidArgumentError(
        "LoadOptions: only_missing loads values to where they were, so it cannot be combined with "
        "spread");
  }
  PSD_ASSIGN_OR_RETURN(std::string folder, checkpoint::FindSave(*files, options.dir));
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<SaveReader> save, SaveReader::Open(files, folder));
  std::vector<std::string> owners = options.owners;
  if (owners.empty()) owners = worker.owners();
  return Loader(worker, options, *save).Run(owners);
}

}  // namespace psd
