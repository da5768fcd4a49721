#pragma once

// The tags that gRPC's completion queues hand back.

namespace psd::carrier {

// The tag of one operation. It must be passed to gRPC as a CompletionTag*, whose address may differ
// from that of a derived object, after PSD_TSAN_RELEASE(tag) (core/base/tsan.h).
class CompletionTag {
 public:
  // Called on one of the carrier's threads when the operation is over. `ok` is that of
  // grpc::CompletionQueue::Next.
  virtual void Complete(bool ok) = 0;

 protected:
  ~CompletionTag() = default;
};

}  // namespace psd::carrier
