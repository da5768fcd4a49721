#pragma once

// Where a tensor's elements are.

#include <cstdint>
#include <string>

namespace psd {

enum class DeviceKind : uint8_t { kCpu = 1, kCuda = 2 };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int16_t index = 0;  // which one of its kind

  bool IsCpu() const { return kind == DeviceKind::kCpu; }
  // "cpu", "cuda:1".
  std::string ToString() const;

  friend bool operator==(const Device& a, const Device& b) {
    return a.kind == b.kind && a.index == b.index;
  }
  friend bool operator!=(const Device& a, const Device& b) { return !(a == b); }
};

}  // namespace psd
