#pragma once

// Which steps of a worker may still be asked for again. Internal to client/.

#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "core/base/ids.h"
#include "core/base/mutex.h"

namespace psd {

// Numbers a worker's steps, and knows below which number all have ended, so that owners need not
// remember those. Thread-safe.
class OpenSteps : public std::enable_shared_from_this<OpenSteps> {
 public:
  // One step, open as long as this lives.
  class Step {
   public:
    Step(std::shared_ptr<OpenSteps> steps, GlobalId id) : steps_(std::move(steps)), id_(id) {}
    ~Step() { steps_->Close(id_.counter); }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
    GlobalId id() const { return id_; }

   private:
    const std::shared_ptr<OpenSteps> steps_;  // shared with its worker
    const GlobalId id_;
  };

  // The next step of the worker whose ids these are.
  std::shared_ptr<const Step> Open(IdSource& ids) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const GlobalId id = ids.Next();
    open_.insert(id.counter);
    return std::make_shared<const Step>(shared_from_this(), id);
  }

  // The smallest number of an open step; 0 if none is open.
  uint64_t first() const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return open_.empty() ? 0 : *open_.begin();
  }

 private:
  void Close(uint64_t counter) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    open_.erase(counter);
  }

  mutable Mutex mutex_;  // leaf
  std::set<uint64_t> open_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd
