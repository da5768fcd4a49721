#pragma once

// Shared ownership that ThreadSanitizer does not take for an order.

#include <memory>
#include <utility>

#include "core/device/emulated/quiet_lock.h"

namespace psd::emulated {

// A std::shared_ptr for the emulated device's own objects. The count of an ordinary one would seem
// to order every thread that takes or drops a reference behind those that did so before. So two
// streams whose operations hold references to one object would seem to have an order, and so would
// a stream and the host that drops an event without waiting for it. Thread-safe like
// std::shared_ptr. The object's destructor runs quietly too, and gives its caller no order.
template <typename T>
class QuietPtr {
 public:
  // Takes over the only reference, or the first one.
  explicit QuietPtr(std::shared_ptr<T> object) : object_(std::move(object)) {}
  QuietPtr(const QuietPtr& other) {
    const Quiet quiet;
    object_ = other.object_;
  }
  QuietPtr(QuietPtr&&) noexcept = default;
  QuietPtr& operator=(const QuietPtr&) = delete;
  ~QuietPtr() {
    const Quiet quiet;
    object_.reset();
  }

  T* get() const { return object_.get(); }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_.get(); }

 private:
  std::shared_ptr<T> object_;
};

}  // namespace psd::emulated
