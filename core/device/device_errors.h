#pragma once

// The errors that all devices with memory and streams of their own give, so that a test on one kind
// of device shows what a user sees on another.

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/device.h"

namespace psd {

// RESOURCE_EXHAUSTED: the memory called `what`, for example "cuda:0" or "pinned memory of cuda:0",
// cannot have `bytes` more.
absl::Status NoMemory(absl::string_view what, size_t bytes, size_t budget_bytes, size_t used_bytes);

// UNAVAILABLE: the device called `name` is lost.
absl::Status DeviceLost(absl::string_view name, absl::string_view reason);

// UNAVAILABLE: the device called `name` was dropped, and only waits for the end of its work.
absl::Status DeviceEnds(absl::string_view name);

// RESOURCE_EXHAUSTED: the device called `name` has kMaxStreams streams.
absl::Status NoMoreStreams(absl::string_view name);

// INVALID_ARGUMENT: an operation that was to be added to `stream`, a stream of `device`, got
// `bytes` bytes from an address that is not in one block of the device's memory, or of its pinned
// memory. `stream` and `device` are names.
absl::Status NotInMemory(absl::string_view operation, absl::string_view stream,
                         absl::string_view device, size_t bytes);
absl::Status NotPinned(absl::string_view operation, absl::string_view stream,
                       absl::string_view device, size_t bytes);

// INVALID_ARGUMENT: a stream of the device called `device` does not know `block`.
absl::Status UnknownBlock(absl::string_view device, const Block& block);

// UNIMPLEMENTED: the device called `device` does not pass on a block that it has imported itself.
absl::Status NotToBeExported(absl::string_view device);

// INVALID_ARGUMENT: the stream called `stream` cannot wait for an event of another kind of device.
absl::Status OtherKindOfEvent(absl::string_view stream);

// UNIMPLEMENTED: the stream called `stream` cannot copy from `from`, another kind of device.
absl::Status NoDirectCopy(absl::string_view stream, const Device& from);

}  // namespace psd
