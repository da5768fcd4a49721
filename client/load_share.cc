#include "client/load_share.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd {
namespace {

using checkpoint::CheckpointIndex;
using checkpoint::Placement;
using checkpoint::SavedOptimizer;
using checkpoint::SavedPart;
using checkpoint::SavedValue;
using optim::PartReport;
using services::HostedValue;
using services::OwnerContents;

const SavedPart& PartOf(const SavedOptimizer& optimizer, const std::string& owner) {
  for (const SavedPart& part : optimizer.parts)
    if (part.owner == owner) return part;
  PSD_CHECK(false, "a decoded index has a part for the owner of every parameter");
}

// Checks that the saved part may be loaded beside `now`, a part that stays as it is.
absl::Status CheckSkew(const SavedOptimizer& optimizer, const SavedPart& saved,
                       const std::string& owner, const KeptPart& now) {
  const std::string part = absl::StrCat(owner, "'s part of optimizer '", optimizer.name, "'");
  const std::string remedy =
      "; load all of a save, or combine it with the save's parts in spite of this with "
      "--accept-skew (LoadOptions::accept_skew)";
  if (saved.life != now.life.ToString()) {
    return absl::FailedPreconditionError(
        absl::StrCat(part,
                     " began in another life than the one that was saved: it was created or "
                     "loaded since",
                     remedy));
  }
  if (saved.steps_accepted == now.steps) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(part, " has taken ", now.steps,
                                                    " steps, and the save was made after ",
                                                    saved.steps_accepted, remedy));
}

const HostedValue* FindValue(const OwnerContents& contents, const std::string& name) {
  for (const HostedValue& hosted : contents.values)
    if (hosted.value.name == name) return &hosted;
  return nullptr;
}

class Chooser {
 public:
  Chooser(const CheckpointIndex& index, const Placement& placement, const ContentsByOwner& contents)
      : index_(index), placement_(placement), contents_(contents) {}

  absl::StatusOr<LoadShare> Run(bool accept_skew) {
    share_.optimizers.resize(index_.optimizers.size());
    for (size_t i = 0; i < index_.optimizers.size(); ++i) FindParts(i);
    for (size_t i = 0; i < index_.optimizers.size(); ++i) {
      PSD_RETURN_IF_ERROR(FindLife(i));
      if (share_.optimizers[i].loaded && !accept_skew) PSD_RETURN_IF_ERROR(CheckKept(i));
    }
    for (size_t i = 0; i < index_.values.size(); ++i) {
      PSD_ASSIGN_OR_RETURN(const bool missing, IsMissing(index_.values[i], placement_.values[i]));
      share_.values.push_back(missing);
    }
    return std::move(share_);
  }

 private:
  std::set<std::string> Homes(size_t optimizer) const {
    return {placement_.optimizers[optimizer].begin(), placement_.optimizers[optimizer].end()};
  }

  // Sorts the owners of the optimizer: those that have their part, and those that have lost it. A
  // part that an unfinished load left behind counts as lost.
  void FindParts(size_t number) {
    const SavedOptimizer& optimizer = index_.optimizers[number];
    const std::vector<PartReport> reports = ReportsOf(optimizer.name, contents_);
    for (const std::string& owner : Homes(number)) {
      const PartReport* report = optim::FindReport(reports, owner);
      if (report != nullptr && report->hosted && report->life.stage == optim::LifeStage::kLive) {
        share_.optimizers[number].kept[owner] = {report->life.id, report->steps};
      } else {
        lost_.insert(owner);
      }
    }
    for (const auto& state : optimizer.parameters) stepped_.insert({state.owner, state.parameter});
  }

  // Decides whether the optimizer begins another life, and which.
  absl::Status FindLife(size_t number) {
    OptimizerShare& share = share_.optimizers[number];
    for (const std::string& owner : lost_) share.kept.erase(owner);
    if (share.kept.size() < Homes(number).size()) {
      share.loaded = true;
      return absl::OkStatus();
    }
    const auto& kept = share.kept;
    const bool whole = std::all_of(kept.begin(), kept.end(), [&](const auto& each) {
      return each.second.life == kept.begin()->second.life;
    });
    if (whole) return absl::OkStatus();
    share.loaded = true;
    share.begun = BegunLife(number);
    if (!share.begun.IsNone()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the parts of optimizer '", index_.optimizers[number].name,
                     "' have several lives, and none of these lives has the present owners: load "
                     "all of a save"));
  }

  // Returns the life that a load began and did not finish: its parts know all owners of the
  // optimizer as they are now, and it is not the life of the save. Returns no id if there is no
  // such life.
  GlobalId BegunLife(size_t number) const {
    const std::set<std::string> homes = Homes(number);
    const SavedOptimizer& saved = index_.optimizers[number];
    const auto is_saved = [&](GlobalId life) {
      return std::any_of(
          saved.parts.begin(), saved.parts.end(),
          [&](const checkpoint::SavedPart& part) { return part.life == life.ToString(); });
    };
    for (const PartReport& report : ReportsOf(saved.name, contents_)) {
      if (is_saved(report.life.id)) continue;
      const std::vector<optim::LifeOwner>& owners = report.life.owners;
      const bool current =
          std::all_of(owners.begin(), owners.end(), [&](const optim::LifeOwner& owner) {
            return homes.count(owner.name) > 0 &&
                   contents_.at(owner.name).incarnation == owner.incarnation;
          });
      if (homes.count(report.owner.name) > 0 && owners.size() == homes.size() && current)
        return report.life.id;
    }
    return {};
  }

  absl::Status CheckKept(size_t number) const {
    const SavedOptimizer& optimizer = index_.optimizers[number];
    const OptimizerShare& share = share_.optimizers[number];
    for (size_t k = 0; k < optimizer.parameters.size(); ++k) {
      const std::string& owner = placement_.optimizers[number][k];
      const auto kept = share.kept.find(owner);
      if (kept == share.kept.end() || kept->second.life == share.begun) continue;
      PSD_RETURN_IF_ERROR(CheckSkew(optimizer, PartOf(optimizer, optimizer.parameters[k].owner),
                                    owner, kept->second));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> IsMissing(const SavedValue& value, const std::string& owner) const {
    if (lost_.count(owner) > 0) return true;
    const HostedValue* hosted = FindValue(contents_.at(owner), value.name);
    const bool stepped = stepped_.count({value.owner, value.name}) > 0;
    if (hosted == nullptr && stepped) {
      return WithRemedy(
          absl::FailedPreconditionError(
              absl::StrCat("'", value.name, "' is missing on ", owner,
                           ": its name was dropped, and a part of an optimizer that is not missing "
                           "still steps the value")),
          absl::StrCat("drop the optimizer on ", owner, " too; then the load brings back both"));
    }
    if (hosted == nullptr) return true;
    return !stepped && hosted->value.version <= 1 && value.version > hosted->value.version;
  }

  const CheckpointIndex& index_;
  const Placement& placement_;
  const ContentsByOwner& contents_;
  std::set<std::string> lost_;                             // owners
  std::set<std::pair<std::string, std::string>> stepped_;  // saved owner and name
  LoadShare share_;
};

}  // namespace

LoadShare AllOf(const CheckpointIndex& index) {
  LoadShare all;
  all.values.assign(index.values.size(), true);
  all.optimizers.resize(index.optimizers.size());
  for (OptimizerShare& each : all.optimizers) each.loaded = true;
  return all;
}

absl::StatusOr<LoadShare> MissingOf(const CheckpointIndex& index, const Placement& placement,
                                    const ContentsByOwner& contents, bool accept_skew) {
  return Chooser(index, placement, contents).Run(accept_skew);
}

absl::Status CheckSavedOwners(const CheckpointIndex& index, const std::vector<std::string>& owners,
                              const std::map<std::string, std::string>& owner_map) {
  for (const SavedValue& value : index.values) {
    if (owner_map.count(value.owner) > 0) continue;
    if (std::find(owners.begin(), owners.end(), value.owner) != owners.end()) continue;
    return WithRemedy(absl::FailedPreconditionError(
                          absl::StrCat("what is missing goes back to where it was, and ",
                                       value.owner, " of the save is not among the owners")),
                      "attach it, or say which owner takes its place (LoadOptions::owner_map)");
  }
  return absl::OkStatus();
}

}  // namespace psd
