#include "examples/batch_updating_ps/batch_updater.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::examples {
namespace {

// Returns the model after one step of SGD with the mean of the gradients.
absl::StatusOr<std::vector<Tensor>> Stepped(const std::vector<Tensor>& model, double lr,
                                            const std::vector<std::vector<Tensor>>& gradients) {
  std::vector<Tensor> next;
  for (size_t i = 0; i < model.size(); ++i) {
    Variable sum = gradients[0][i];
    for (size_t k = 1; k < gradients.size(); ++k) sum = sum + gradients[k][i];
    const Variable stepped = model[i] - (lr / static_cast<double>(gradients.size())) * sum;
    if (!stepped.ok()) return stepped.status();
    next.push_back(stepped.tensor());
  }
  return next;
}

Values ToValues(const std::vector<Tensor>& tensors) {
  return Values(tensors.begin(), tensors.end());
}

}  // namespace

BatchUpdater::BatchUpdater(std::vector<Tensor> model, int trainers, double lr)
    : trainers_(static_cast<size_t>(trainers)), lr_(lr), model_(std::move(model)) {}

Values BatchUpdater::Fetch() const {
  MutexLock lock(mutex_);
  return ToValues(model_);
}

int64_t BatchUpdater::updates() const {
  MutexLock lock(mutex_);
  return updates_;
}

absl::Status BatchUpdater::CheckFits(const std::vector<Tensor>& gradients) const {
  if (gradients.size() != model_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(gradients.size(), " gradients for a model of ", model_.size(), " tensors"));
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].shape() == model_[i].shape() && gradients[i].dtype() == model_[i].dtype()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("gradient ", i, " is ", gradients[i].ToString(),
                                                   ", not ", model_[i].ToString()));
  }
  return absl::OkStatus();
}

absl::Status BatchUpdater::CheckJoins(const std::string& trainer) const {
  if (applying_) {
    return absl::FailedPreconditionError(absl::StrCat(trainer, " is one too many: a batch of ",
                                                      trainers_, " trainers is being applied"));
  }
  const bool here = std::any_of(batch_.begin(), batch_.end(),
                                [&](const Parked& parked) { return parked.trainer == trainer; });
  if (here) return absl::AlreadyExistsError(absl::StrCat(trainer, " is in this batch already"));
  return absl::OkStatus();
}

Future<Values> BatchUpdater::UpdateAndFetch(const std::string& trainer,
                                            std::vector<Tensor> gradients,
                                            std::function<bool()> cancelled) {
  Promise<Values> answer;
  std::vector<Parked> complete;
  {
    MutexLock lock(mutex_);
    batch_.erase(std::remove_if(batch_.begin(), batch_.end(),
                                [](const Parked& parked) { return parked.cancelled(); }),
                 batch_.end());
    absl::Status joins = CheckJoins(trainer);
    if (joins.ok()) joins = CheckFits(gradients);
    if (!joins.ok()) return Future<Values>::Ready(joins);
    batch_.push_back({trainer, std::move(gradients), std::move(cancelled), answer});
    if (batch_.size() == trainers_) {
      complete.swap(batch_);
      applying_ = true;
    }
  }
  if (!complete.empty()) Apply(complete);
  return answer.future();
}

// No other thread steps meanwhile, because all trainers wait in the complete batch.
void BatchUpdater::Apply(const std::vector<Parked>& batch) {
  std::vector<Tensor> model;
  {
    MutexLock lock(mutex_);
    model = model_;
  }
  std::vector<std::vector<Tensor>> gradients;
  for (const Parked& parked : batch) gradients.push_back(parked.gradients);
  const absl::StatusOr<std::vector<Tensor>> stepped = Stepped(model, lr_, gradients);
  {
    MutexLock lock(mutex_);
    applying_ = false;
    if (stepped.ok()) {
      model_ = *stepped;
      ++updates_;
    }
  }
  for (const Parked& parked : batch) {
    parked.answer.Set(stepped.ok() ? absl::StatusOr<Values>(ToValues(*stepped)) : stepped.status());
  }
}

}  // namespace psd::examples
