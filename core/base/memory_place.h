#pragma once

// The kind of memory that a block is in.

#include <cstdint>

namespace psd {

class Device;         // core/base/device.h
class SharedSegment;  // core/base/shared_segment.h

// A value that says where memory lives. A block points to its place, which outlives the block.
class MemoryPlace {
 public:
  enum class Kind : uint8_t {
    kHeap,     // ordinary memory of this process
    kSegment,  // memory that this process made and other processes of the host may map for reading
    kForeign,  // memory that another process of the host made, mapped here for reading: writing to
               // it ends the process, and its maker may change it at any time
    kDevice,   // memory of a device, which the host cannot read
  };

  // Ordinary memory of this process.
  constexpr MemoryPlace() = default;
  static MemoryPlace InSegment(SharedSegment& segment) {
    return MemoryPlace(Kind::kSegment, &segment, nullptr);
  }
  static constexpr MemoryPlace Foreign() { return MemoryPlace(Kind::kForeign, nullptr, nullptr); }
  static MemoryPlace On(Device& device) { return MemoryPlace(Kind::kDevice, nullptr, &device); }

  constexpr Kind kind() const { return kind_; }
  // Whether the host may read the memory.
  constexpr bool host_readable() const { return kind_ != Kind::kDevice; }
  // The segment of this process that the memory is in. Null for memory in no such segment.
  SharedSegment* segment() const { return segment_; }
  // The device that has the memory. Null for memory of the host.
  Device* device() const { return device_; }

 private:
  constexpr MemoryPlace(Kind kind, SharedSegment* segment, Device* device)
      : kind_(kind), segment_(segment), device_(device) {}

  Kind kind_ = Kind::kHeap;
  SharedSegment* segment_ = nullptr;
  Device* device_ = nullptr;
};

// The place of all ordinary memory.
inline constexpr MemoryPlace kHeapPlace;
// The place of all memory that other processes made.
inline constexpr MemoryPlace kForeignPlace = MemoryPlace::Foreign();

}  // namespace psd
