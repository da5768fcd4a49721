#pragma once

// The kind of memory that a block is in.

#include <cstdint>

namespace psd {

class Device;  // core/base/device.h

// A value that says where memory lives. A block points to its place, which outlives the block.
class MemoryPlace {
 public:
  enum class Kind : uint8_t {
    kHeap,     // ordinary memory of this process
    kSegment,  // memory of this host that several processes may map
    kDevice,   // memory of a device, which the host cannot read
  };

  // Ordinary memory of this process.
  constexpr MemoryPlace() = default;
  static constexpr MemoryPlace InSegment(uint64_t id) {
    return MemoryPlace(Kind::kSegment, id, nullptr);
  }
  static MemoryPlace On(Device& device) { return MemoryPlace(Kind::kDevice, 0, &device); }

  constexpr Kind kind() const { return kind_; }
  // Whether the host may read and write the memory.
  constexpr bool host_readable() const { return kind_ != Kind::kDevice; }
  // The segment's id; 0 for memory in no segment.
  constexpr uint64_t segment() const { return segment_; }
  // The device that has the memory. Null for memory of the host.
  Device* device() const { return device_; }

 private:
  constexpr MemoryPlace(Kind kind, uint64_t segment, Device* device)
      : kind_(kind), segment_(segment), device_(device) {}

  Kind kind_ = Kind::kHeap;
  uint64_t segment_ = 0;
  Device* device_ = nullptr;
};

// The place of all ordinary memory.
inline constexpr MemoryPlace kHeapPlace;

}  // namespace psd
