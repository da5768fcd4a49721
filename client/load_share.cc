#include "client/load_share.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd {
namespace {

using checkpoint::CheckpointIndex;
using checkpoint::Placement;
using checkpoint::SavedOptimizer;
using checkpoint::SavedPart;
using checkpoint::SavedValue;
using optim::PartReport;
using worker::HostedValue;
using worker::OwnerContents;

const SavedPart& PartOf(const SavedOptimizer& optimizer, const std::string& owner) {
  for (const SavedPart& part : optimizer.parts)
    if (part.owner == owner) return part;
  PSD_CHECK(false, "a decoded index has a part for the owner of every parameter");
}

// Whether what `saved` says fits beside `now`, a part that stays.
absl::Status CheckSkew(const SavedOptimizer& optimizer, const SavedPart& saved,
                       const PartReport& now) {
  const std::string part =
      absl::StrCat(now.owner.name, "'s part of optimizer '", optimizer.name, "'");
  const std::string remedy =
      "; load all of a save, or put the save's part beside it all the same with --accept-skew "
      "(LoadOptions::accept_skew)";
  if (saved.life != now.life.id.ToString()) {
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
    share_.kept.resize(index_.optimizers.size());
    for (size_t i = 0; i < index_.optimizers.size(); ++i) FindParts(i);
    for (size_t i = 0; i < index_.optimizers.size(); ++i) {
      for (const std::string& owner : lost_) share_.kept[i].erase(owner);
      share_.optimizers.push_back(share_.kept[i].size() < Homes(i).size());
      if (share_.optimizers[i] && !accept_skew) PSD_RETURN_IF_ERROR(CheckKept(i));
    }
    for (size_t i = 0; i < index_.values.size(); ++i)
      share_.values.push_back(IsMissing(index_.values[i], placement_.values[i]));
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
      const bool there =
          report != nullptr && report->hosted && report->life.stage == optim::LifeStage::kLive;
      (there ? share_.kept[number] : lost_).insert(owner);
    }
    for (const auto& state : optimizer.parameters) stepped_.insert({state.owner, state.parameter});
  }

  absl::Status CheckKept(size_t number) const {
    const SavedOptimizer& optimizer = index_.optimizers[number];
    const std::vector<PartReport> reports = ReportsOf(optimizer.name, contents_);
    for (size_t k = 0; k < optimizer.parameters.size(); ++k) {
      const std::string& owner = placement_.optimizers[number][k];
      if (share_.kept[number].count(owner) == 0) continue;
      PSD_RETURN_IF_ERROR(CheckSkew(optimizer, PartOf(optimizer, optimizer.parameters[k].owner),
                                    *optim::FindReport(reports, owner)));
    }
    return absl::OkStatus();
  }

  bool IsMissing(const SavedValue& value, const std::string& owner) const {
    if (lost_.count(owner) > 0) return true;
    const HostedValue* hosted = FindValue(contents_.at(owner), value.name);
    if (hosted == nullptr) return true;
    const bool untouched = hosted->value.version <= 1 && value.version > hosted->value.version;
    return untouched && stepped_.count({value.owner, value.name}) == 0;
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
  all.optimizers.assign(index.optimizers.size(), true);
  all.kept.resize(index.optimizers.size());
  return all;
}

absl::StatusOr<LoadShare> MissingOf(const CheckpointIndex& index, const Placement& placement,
                                    const ContentsByOwner& contents, bool accept_skew) {
  return Chooser(index, placement, contents).Run(accept_skew);
}

}  // namespace psd
