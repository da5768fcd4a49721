#pragma once

// A model that is updated once per batch, with the mean of one gradient from each of n trainers.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/psd.h"
#include "core/base/mutex.h"

namespace psd::examples {

// Thread-safe. A trainer's call waits, without holding a thread, until its batch is complete.
class BatchUpdater {
 public:
  // `model` has f32 tensors. Requires: trainers >= 1.
  BatchUpdater(std::vector<Tensor> model, int trainers, double lr);

  // Returns the present model.
  Values Fetch() const PSD_EXCLUDES(mutex_);

  // Adds the gradients of `trainer`, one for each tensor of the model. The call that completes the
  // batch applies it; then all calls of the batch are answered with the new model. A trainer that
  // gave up (`cancelled`) is left out, and may call again.
  // Errors: INVALID_ARGUMENT for gradients that do not fit the model; ALREADY_EXISTS if the trainer
  // is in the batch already; FAILED_PRECONDITION if there are too many trainers.
  Future<Values> UpdateAndFetch(const std::string& trainer, std::vector<Tensor> gradients,
                                std::function<bool()> cancelled) PSD_EXCLUDES(mutex_);

  // Returns the number of batches that were applied.
  int64_t updates() const PSD_EXCLUDES(mutex_);

 private:
  struct Parked {
    std::string trainer;
    std::vector<Tensor> gradients;
    std::function<bool()> cancelled;
    Promise<Values> answer;
  };
  absl::Status CheckFits(const std::vector<Tensor>& gradients) const PSD_REQUIRES(mutex_);
  // Checks that `trainer` may join the batch that is being collected.
  absl::Status CheckJoins(const std::string& trainer) const PSD_REQUIRES(mutex_);
  // Steps the model with the mean of the batch, and answers all calls of the batch.
  void Apply(const std::vector<Parked>& batch) PSD_EXCLUDES(mutex_);

  const size_t trainers_;
  const double lr_;
  mutable Mutex mutex_;  // leaf
  std::vector<Tensor> model_ PSD_GUARDED_BY(mutex_);
  std::vector<Parked> batch_ PSD_GUARDED_BY(mutex_);
  bool applying_ PSD_GUARDED_BY(mutex_) = false;
  int64_t updates_ PSD_GUARDED_BY(mutex_) = 0;
};

}  // namespace psd::examples
