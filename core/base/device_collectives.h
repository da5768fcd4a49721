#pragma once

// Collective operations that devices of several workers perform among themselves, through a library
// of their maker such as NCCL. core/services/collectives uses them for tensors on devices.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psd {

class Stream;  // core/base/stream.h

enum class DeviceElement : uint8_t { kI32, kI64, kF16, kBF16, kF32, kF64 };
enum class DeviceReduction : uint8_t { kSum, kMean, kMin, kMax };

// One device's part in a set of devices, one for each rank, that compute together. All ranks make
// the same calls in the same order. Reductions have the same bits on all ranks. The order in which
// the ranks are added is the library's choice, and may depend on the size of the tensor.
//
// Calls add work to stream(), in which it waits for the work of the other ranks, and return at
// once. After each call, and after DeviceCollectives::Connect, no other call is made and no event
// is recorded before IsReady() has returned true. `in` and `out` lie in memory of the device that
// stays allocated until the work is done. They do not overlap unless they are equal.
//
// The work of a rank ends only when all ranks have added theirs, or after Abort. After Abort the
// memory at `out` is undefined.
//
// One thread at a time makes calls; Abort and IsReady are thread-safe. Errors of all calls:
// UNAVAILABLE naming the device if it is lost; ABORTED after Abort; INTERNAL quoting the library,
// after which only Abort is of use.
class DeviceCommunicator {
 public:
  // Aborts, unless the communicator has finished.
  virtual ~DeviceCommunicator() = default;
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  // A stream of the device that does nothing else as long as the communicator exists.
  virtual Stream& stream() = 0;

  // Reduces `count` elements of all ranks into `out` on every rank. A mean needs a floating type.
  virtual absl::Status AllReduce(const std::byte* in, std::byte* out, size_t count,
                                 DeviceElement element, DeviceReduction reduction) = 0;
  // Reduces count * ranks elements of all ranks, and writes the r-th `count` of them on rank r.
  virtual absl::Status ReduceScatter(const std::byte* in, std::byte* out, size_t count,
                                     DeviceElement element, DeviceReduction reduction) = 0;
  // Writes the `bytes` bytes of all ranks one after the other, in the order of the ranks: AllGather
  // on all of them, and Gather on `root`. The other ranks give null for `out` to Gather.
  virtual absl::Status AllGather(const std::byte* in, std::byte* out, size_t bytes) = 0;
  virtual absl::Status Gather(const std::byte* in, std::byte* out, size_t bytes, int root) = 0;
  // Writes the `bytes` bytes at `in` of rank `root` to `out` on all ranks. The other ranks give
  // null for `in`. On `root`, `out` may be `in`.
  virtual absl::Status Broadcast(const std::byte* in, std::byte* out, size_t bytes, int root) = 0;

  // Whether the last call has taken effect. Does not wait. After the calls it also tells of an
  // error that the library has met since. The errors are those of all calls.
  virtual absl::StatusOr<bool> IsReady() = 0;

  // Begins the orderly end, which is over when IsReady() returns true. Until then the device still
  // serves the other ranks, which may have work to do. All ranks should finish. Requires: this
  // rank's work is done.
  virtual absl::Status Finish() = 0;
  // Ends this rank's part now: work that is under way ends, and IsReady() returns ABORTED. Does not
  // end the work of other ranks. May be repeated.
  virtual void Abort() = 0;

 protected:
  DeviceCommunicator() = default;
};

// A device's way to its communicators. It lives as long as the device. Thread-safe.
class DeviceCollectives {
 public:
  // The bytes of an id of a communicator.
  static constexpr size_t kIdBytes = 128;
  static constexpr size_t kMostTextBytes = 64;

  virtual ~DeviceCollectives() = default;
  DeviceCollectives(const DeviceCollectives&) = delete;
  DeviceCollectives& operator=(const DeviceCollectives&) = delete;

  // Returns the library and its version, for example "NCCL 2.28.9". Loads it if need be. Devices
  // can compute together if the texts are equal. At most kMostTextBytes. Errors:
  // FAILED_PRECONDITION saying what is missing.
  virtual absl::StatusOr<std::string> Library() = 0;
  // Returns a text that no other device has, also on other machines. At most kMostTextBytes.
  // Errors: those of the device.
  virtual absl::StatusOr<std::string> Identity() = 0;

  // Returns the id of a new communicator, of kIdBytes. Errors: those of Library(); INTERNAL.
  virtual absl::StatusOr<std::string> NewId() = 0;
  // Begins to connect this device, as `rank`, with those of the other `ranks` - 1 ranks, which call
  // it with the same id. Returns at once; the communicator is connected when IsReady() returns
  // true. Errors: those of Library(); RESOURCE_EXHAUSTED if the device has no stream left; INTERNAL
  // quoting the library; those of the device.
  virtual absl::StatusOr<std::shared_ptr<DeviceCommunicator>> Connect(const std::string& id,
                                                                      int rank, int ranks) = 0;

 protected:
  DeviceCollectives() = default;
};

}  // namespace psd
