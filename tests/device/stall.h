#pragma once

// Holds up an emulated device.

#include <atomic>
#include <cstddef>
#include <thread>

#include "core/device/emulated/emulated_device.h"
#include "gtest/gtest.h"

namespace psd::testing {

// While it exists, the device does no work that is added after it to the default stream. At most
// one exists at a time.
class Stall {
 public:
  explicit Stall(EmulatedDevice& device) {
    stalled_ = true;
    EXPECT_TRUE(device.default_stream().Launch("RunWhileStalled", 1, RunWhileStalled(), 0).ok());
  }
  ~Stall() { stalled_ = false; }
  Stall(const Stall&) = delete;
  Stall& operator=(const Stall&) = delete;

 private:
  static inline std::atomic<bool> stalled_{false};  // a kernel may capture nothing
  struct RunWhileStalled {
    void operator()(size_t /*i*/, int /*nothing*/) const {
      while (stalled_) std::this_thread::yield();
    }
  };
};

}  // namespace psd::testing
