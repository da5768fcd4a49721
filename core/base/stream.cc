#include "core/base/stream.h"

#include <memory>
#include <utility>

#include "core/base/device.h"
#include "core/base/thread_modes.h"

namespace psd {

StreamScope::StreamScope(Stream& stream) : outer_(std::exchange(thread_modes.stream, &stream)) {}

StreamScope::~StreamScope() {
  thread_modes.stream = outer_;
}

Stream* CurrentStream(Device* device) {
  if (device == nullptr) return nullptr;
  Stream* const stream = thread_modes.stream;
  return stream != nullptr && &stream->device() == device ? stream : &device->default_stream();
}

absl::Status AwaitCurrentWork(Device* device) {
  if (device == nullptr) return absl::OkStatus();
  const absl::StatusOr<std::shared_ptr<Event>> now = CurrentStream(device)->Record();
  if (!now.ok()) return device->Synchronize();  // there may be no memory for an event
  return (*now)->Wait();
}

}  // namespace psd
