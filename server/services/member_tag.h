#pragma once

// A completion tag for calls that have more than one kind of operation.

#include "core/base/tsan.h"
#include "core/carrier/grpc/completion_tag.h"

namespace psd::server {

// Passes the completion of an operation to a member function of the call that owns this tag. That
// function may delete the call. One operation at a time.
template <typename Call>
class MemberTag final : public carrier::CompletionTag {
 public:
  MemberTag(Call& call, void (Call::*completed)(bool ok)) : call_(call), completed_(completed) {}

  // Returns the tag to pass to gRPC for an operation that starts now.
  void* Start() {
    carrier::CompletionTag* tag = this;
    PSD_TSAN_RELEASE(tag);
    return tag;
  }

 private:
  void Complete(bool ok) override { (call_.*completed_)(ok); }

  Call& call_;
  void (Call::*const completed_)(bool ok);
};

}  // namespace psd::server
