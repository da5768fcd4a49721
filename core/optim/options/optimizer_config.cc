#include "core/optim/options/optimizer_config.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::optim {

UpdateMode UpdateMode::Synchronous(uint32_t trainers, Reduction reduction) {
  UpdateMode mode;
  mode.kind = Kind::kSynchronous;
  mode.trainers = trainers;
  mode.reduction = reduction;
  return mode;
}

UpdateMode UpdateMode::BoundedStaleness(uint64_t staleness, WhenStale when_stale) {
  UpdateMode mode;
  mode.kind = Kind::kBoundedStaleness;
  mode.staleness = staleness;
  mode.when_stale = when_stale;
  return mode;
}

UpdateMode UpdateMode::WithUnknownVersions() const {
  UpdateMode mode = *this;
  mode.allow_unknown_versions = true;
  return mode;
}

double UpdateMode::ReductionScale(size_t trainers_in_step) const {
  const bool mean = kind == Kind::kSynchronous && reduction == Reduction::kMean;
  return mean && trainers_in_step > 1 ? 1 / static_cast<double>(trainers_in_step) : 1;
}

absl::Status UpdateMode::Check() const {
  const bool known = kind >= Kind::kAsynchronous && kind <= Kind::kBoundedStaleness &&
                     (reduction == Reduction::kMean || reduction == Reduction::kSum) &&
                     (when_stale == WhenStale::kRefuse || when_stale == WhenStale::kWait);
  if (!known) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mode ", static_cast<int>(kind), " (reduction ", static_cast<int>(reduction),
        ", when stale ", static_cast<int>(when_stale), ") is none that this version knows"));
  }
  if (kind == Kind::kSynchronous && (trainers < 1 || trainers > kMaxRoundTrainers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mode: trainers = ", trainers, ", but it must be 1 to ", kMaxRoundTrainers));
  }
  return absl::OkStatus();
}

std::string UpdateMode::ToString() const {
  switch (kind) {
    case Kind::kAsynchronous:
      break;
    case Kind::kSynchronous:
      return absl::StrCat("synchronous(", trainers,
                          reduction == Reduction::kMean ? ", mean)" : ", sum)");
    case Kind::kBoundedStaleness:
      return absl::StrCat("bounded_staleness(", staleness,
                          when_stale == WhenStale::kWait ? ", wait" : ", refuse",
                          allow_unknown_versions ? ", unknown versions)" : ")");
  }
  return "asynchronous";
}

absl::Status OptimizerSettings::Check() const {
  PSD_RETURN_IF_ERROR(schedule.Check());
  PSD_RETURN_IF_ERROR(loss_scaling.Check());
  return mode.Check();
}

std::string OptimizerSettings::ToString() const {
  std::string text;
  if (!schedule.IsConstant()) absl::StrAppend(&text, " schedule ", schedule.ToString());
  if (loss_scaling.enabled()) absl::StrAppend(&text, " loss_scaling ", loss_scaling.ToString());
  if (mode.kind != UpdateMode::Kind::kAsynchronous) absl::StrAppend(&text, " ", mode.ToString());
  return text;
}

}  // namespace psd::optim
