#pragma once

// A sum of many small amounts of memory that is charged to an account in steps, so that most
// changes of it touch no counter that threads share.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/memory_budget.h"
#include "core/base/status.h"

namespace psd {

// Thread-compatible. The destructor credits everything that is charged.
class StepwiseCharge {
 public:
  // The first `paid_bytes` of the sum are charged elsewhere.
  explicit StepwiseCharge(size_t step_bytes, size_t paid_bytes = 0)
      : step_bytes_(step_bytes), charged_(paid_bytes) {}

  // Errors: RESOURCE_EXHAUSTED from `account`; nothing changes then.
  absl::Status Add(MemoryAccount& account, size_t bytes) {
    if (used_ + bytes > charged_) {
      const size_t step = std::max(step_bytes_, used_ + bytes - charged_);
      PSD_ASSIGN_OR_RETURN(MemoryCharge charge, account.Charge(step));
      steps_.emplace_back(step, std::move(charge));
      charged_ += step;
    }
    used_ += bytes;
    return absl::OkStatus();
  }
  // Credits steps that are no longer needed. One step is kept until two are unneeded, so that a sum
  // that goes up and down does not ask the account each time. Requires: at least `bytes` were
  // added.
  void Subtract(size_t bytes) {
    used_ -= bytes;
    while (!steps_.empty()) {
      const size_t without = charged_ - steps_.back().first;
      if (without < used_ + (used_ == 0 ? 0 : step_bytes_)) return;
      charged_ = without;
      steps_.pop_back();
    }
  }

  size_t bytes() const { return used_; }

 private:
  const size_t step_bytes_;
  size_t used_ = 0;
  size_t charged_;  // includes what is charged elsewhere
  std::vector<std::pair<size_t, MemoryCharge>> steps_;
};

}  // namespace psd
