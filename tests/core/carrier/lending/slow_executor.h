#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/executor.h"

namespace psd::carrier {

// An executor for tests that runs each task at once, on the caller's thread. After Hold it runs
// tasks only in RunAll, and after Refuse it refuses them. Thread-compatible.
class SlowExecutor : public Executor {
 public:
  absl::Status Submit(Task task) override {
    if (refuses_) return absl::FailedPreconditionError("the executor has been shut down");
    tasks_.push_back(std::move(task));
    if (!holds_) RunAll();
    return absl::OkStatus();
  }
  void Hold() { holds_ = true; }
  void Refuse() { refuses_ = true; }
  void RunAll() {
    for (Task& task : tasks_) task();
    tasks_.clear();
  }

 private:
  bool holds_ = false;
  bool refuses_ = false;
  std::vector<Task> tasks_;
};

}  // namespace psd::carrier
