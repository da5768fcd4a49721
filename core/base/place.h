#pragma once

// The kind of memory that a block is in.

#include <cstdint>

namespace psd {

class Device;  // core/base/device.h

// Says where memory is. A block points to its place, which outlives the block.
class Place {
 public:
  enum class Kind : uint8_t {
    kHeap,     // ordinary memory of this process
    kSegment,  // memory of this host that several processes may map
    kDevice,   // memory of a device, which the host cannot read
  };

  // Ordinary memory of this process.
  constexpr Place() = default;
  static constexpr Place InSegment(uint64_t id) { return Place(Kind::kSegment, id, nullptr); }
  static Place On(Device& device) { return Place(Kind::kDevice, 0, &device); }

  constexpr Kind kind() const { return kind_; }
  // Whether the host may read and write the memory.
  constexpr bool host_readable() const { return kind_ != Kind::kDevice; }
  // The segment's id; 0 for memory in no segment.
  constexpr uint64_t segment() const { return segment_; }
  // The device that has the memory. Null for memory of the host.
  Device* device() const { return device_; }

 private:
  constexpr Place(Kind kind, uint64_t segment, Device* device)
      : kind_(kind), segment_(segment), device_(device) {}

  Kind kind_ = Kind::kHeap;
  uint64_t segment_ = 0;
  Device* device_ = nullptr;
};

// The place of all ordinary memory.
inline constexpr Place kHeapPlace;

}  // namespace psd
