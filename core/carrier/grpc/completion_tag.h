#pragma once

// What gRPC's completion queues hand back.

namespace psd::carrier {

// Before an operation starts with a tag, mark it with PSD_TSAN_RELEASE(tag) (core/base/tsan.h). A
// tag is passed as a CompletionTag*, which for a derived class need not be its own address.
class CompletionTag {
 public:
  // The operation is over; `ok` as by grpc::CompletionQueue::Next. On one of the carrier's threads.
  virtual void Complete(bool ok) = 0;

 protected:
  ~CompletionTag() = default;
};

}  // namespace psd::carrier
