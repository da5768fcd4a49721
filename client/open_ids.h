#pragma once

// Counts which of a worker's steps and turns may still be sent. Internal to client/.

#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "core/base/ids.h"
#include "core/base/mutex.h"

namespace psd {

// Gives out ids of one kind and tracks which of them are still open. All ids below first() are
// closed, so owners need not remember them. Thread-safe.
class OpenIds : public std::enable_shared_from_this<OpenIds> {
 public:
  // One id, which is open as long as this object lives.
  class Id {
   public:
    Id(std::shared_ptr<OpenIds> ids, GlobalId id) : ids_(std::move(ids)), id_(id) {}
    ~Id() { ids_->Close(id_.counter); }
    Id(const Id&) = delete;
    Id& operator=(const Id&) = delete;
    GlobalId id() const { return id_; }

   private:
    const std::shared_ptr<OpenIds> ids_;  // shared with its worker
    const GlobalId id_;
  };

  // Opens the next id of the worker.
  std::shared_ptr<const Id> Open(IdSource& source) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const GlobalId id = source.Next();
    open_.insert(id.counter);
    return std::make_shared<const Id>(shared_from_this(), id);
  }

  // Returns the counter of the oldest open id, or 0 if no id is open.
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
