// The life of an owner's part of an optimizer: how it begins, is loaded and ends.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/optim/owner/owner_optimizer.h"

namespace psd::optim {
namespace {

bool SameOwners(const OptimizerLife& a, const OptimizerLife& b) {
  return std::equal(a.owners.begin(), a.owners.end(), b.owners.begin(), b.owners.end(),
                    [](const LifeOwner& x, const LifeOwner& y) {
                      return x.name == y.name && x.incarnation == y.incarnation;
                    });
}

}  // namespace

absl::StatusOr<MemoryCharge> OwnerOptimizer::ChargeLife(const OptimizerLife& life) {
  size_t bytes = 0;
  for (const LifeOwner& owner : life.owners) bytes += sizeof(owner) + owner.name.size();
  return store_.memory().Charge(bytes);
}

absl::Status OwnerOptimizer::StateReplaced() {
  for (size_t i = 0; i < table_.size(); ++i) PSD_RETURN_IF_ERROR(table_[i].StateReplaced());
  return absl::OkStatus();
}

absl::Status OwnerOptimizer::Apply(store::Changing, const LifeChange& change) {
  // The memory for the owners stays charged while they stay the same, so that the end of a load
  // that keeps the life cannot fail for lack of memory.
  const bool keeps_owners = SameOwners(life(), change.life);
  MemoryCharge charge;
  if (!keeps_owners) {
    PSD_ASSIGN_OR_RETURN(charge, ChargeLife(change.life));
  }
  MutexLock lock(mutex_);
  if (book_.life().stage == LifeStage::kEnded) return CheckLife({}, book_.life());
  if (book_.life().id != change.life.id) groups_.BeginLife();
  book_.set_life(change.life);
  if (!keeps_owners) life_memory_.swap(charge);
  if (!change.loaded.has_value()) return absl::OkStatus();
  steps_ = change.loaded->steps;
  if (settings_.loss_scaling.enabled())
    loss_scale_.Restore(change.loaded->loss_scale, change.loaded->good_steps);
  return absl::OkStatus();
}

void OwnerOptimizer::RecheckGate() {
  if (gate_ != nullptr) gate_->Recheck();
}

absl::Status OwnerOptimizer::SetLife(OptimizerLife life) {
  LifeChange change{this, std::move(life), std::nullopt};
  {
    MutexLock deciding(deciding_);
    PSD_RETURN_IF_ERROR(changes_.Apply(change));
  }
  RecheckGate();
  return absl::OkStatus();
}

absl::Status OwnerOptimizer::JoinLife(OptimizerLife life, GlobalId judged, uint64_t steps) {
  LifeChange change{this, std::move(life), std::nullopt};
  {
    MutexLock deciding(deciding_);
    {
      MutexLock lock(mutex_);
      const GlobalId now = book_.life().id;
      if (now == change.life.id) return absl::OkStatus();
      if (now != judged || steps_ != steps) {
        return absl::FailedPreconditionError(absl::StrCat(
            "this part of the optimizer stays as it is, and has changed since it was compared "
            "with the save: it was at ",
            steps, " steps, and is at ", steps_, now == judged ? "" : " of another life"));
      }
    }
    PSD_RETURN_IF_ERROR(changes_.Apply(change));
  }
  RecheckGate();
  return absl::OkStatus();
}

absl::Status OwnerOptimizer::FinishLoad(OptimizerLife life, GlobalId load,
                                        const LoadedCounters& counters) {
  PSD_RETURN_IF_ERROR(StateReplaced());  // this may take long, so no lock is held yet
  LifeChange change{this, std::move(life), counters};
  {
    MutexLock deciding(deciding_);
    {
      MutexLock lock(mutex_);
      if (book_.life().id == change.life.id) {
        change.life = book_.life();
        change.loaded = {steps_, loss_scale_.scale(), loss_scale_.good_steps()};
      } else {
        PSD_RETURN_IF_ERROR(CheckLoad(load, book_.life()));
      }
    }
    PSD_RETURN_IF_ERROR(changes_.Apply(change));
  }
  RecheckGate();
  return absl::OkStatus();
}

absl::Status OwnerOptimizer::FinishOwnLoad(const LoadedCounters& counters) {
  PSD_RETURN_IF_ERROR(StateReplaced());
  MutexLock deciding(deciding_);
  LifeChange change{this, life(), counters};
  PSD_RETURN_IF_ERROR(CheckLife({}, change.life));
  return changes_.Apply(change);
}

void OwnerOptimizer::EndLife(store::Changing) {
  {
    MutexLock deciding(deciding_);
    MutexLock lock(mutex_);
    OptimizerLife life = book_.life();
    life.stage = LifeStage::kEnded;
    book_.set_life(std::move(life));
  }
  RecheckGate();
}

}  // namespace psd::optim
