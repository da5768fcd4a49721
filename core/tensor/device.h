#pragma once

// The device whose memory holds a tensor's elements.

#include <cstdint>
#include <string>

namespace psd {

enum class DeviceKind : uint8_t { kCpu = 1, kCuda = 2 };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int16_t index = 0;  // counts the devices of this kind from 0

  bool IsCpu() const { return kind == DeviceKind::kCpu; }
  // For example "cpu" or "cuda:1".
  std::string ToString() const;

  friend bool operator==(const Device& a, const Device& b) {
    return a.kind == b.kind && a.index == b.index;
  }
  friend bool operator!=(const Device& a, const Device& b) { return !(a == b); }
};

}  // namespace psd
