#pragma once

// Where operators without inputs make their tensors.

#include "core/base/device.h"

namespace psd {

// While one exists, operators of its thread that have no inputs make their floating tensors on
// `device`, null for the host. The device must outlive it. Scopes nest.
class CreationScope {
 public:
  explicit CreationScope(Device* device);
  ~CreationScope();
  CreationScope(const CreationScope&) = delete;
  CreationScope& operator=(const CreationScope&) = delete;

  // The device of the thread's innermost scope; null if there is none.
  static Device* CurrentDevice();

 private:
  Device* const previous_;
};

}  // namespace psd
