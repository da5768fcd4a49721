#pragma once

// The elements of gradients in messages. What is on a device that the receiver's process shares is
// lent to it (core/device_loans); everything else is copied to the host.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/node.h"
#include "core/base/completion_threads.h"
#include "core/base/device.h"
#include "core/device_loans/device_loans.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/gate.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::dist_autograd {

// Encoded gradients for one worker.
struct GradientMessage {
  rpc::Payload payload;   // the buffers that are lent are empty
  v1::BorrowOffer offer;  // stands for the process that borrows
  v1::LentBuffers lent;   // no blocks if nothing is lent
  // The message may be sent when this has passed. No event if nothing is lent.
  DeviceEvent written;

  bool lends() const { return lent.blocks_size() > 0; }
};

// Gradients that have arrived.
struct ArrivedGradients {
  Tensors gradients;  // lent ones must not be written
  // If this is an error, lent gradients cannot be read here, and `gradients` is empty.
  absl::Status refused;
};

// Shared by the passes of one worker, as a part of DistAutograd. Thread-safe.
class GradientLoans {
 public:
  // Gradients of at most this many bytes are copied. A loan costs two messages.
  static constexpr size_t kMostCopiedBytes = size_t{1} << 20;

  struct Uses {
    std::shared_ptr<device_loans::DeviceLoans> loans;  // shared with the worker; null lends nothing
    CompletionThreads* completions = nullptr;          // null lends nothing
  };
  // `completions` must live until Close.
  explicit GradientLoans(Uses uses) : uses_(std::move(uses)) {}
  // From now on nothing waits for a device.
  void Close() { gate_.Close(); }

  // ---- on the worker that sends

  // Encodes `gradients` for `peer`. Large ones on one device that `peer` shares are lent, as far as
  // its bounds allow (Lender). They are replaced by contiguous copies if they are not contiguous,
  // and small ones on that device by copies on the host. If the message lends, exactly one of
  // TakeBack and OnAnswered must be called later. Nobody may write the gradients as long as they
  // are lent, which may be until the process of `peer` ends. Waits for devices whose elements are
  // copied. Errors: those of rref::EncodeTensorValues and of the device.
  absl::StatusOr<GradientMessage> Encode(const rpc::PeerInfo& peer, Tensors& gradients);
  // As above, but lends nothing.
  static absl::StatusOr<GradientMessage> EncodeCopies(const Tensors& gradients);
  // Returns the attachment of a request that names what `message` lends. Requires: it lends.
  static rpc::Attachment AttachmentOf(const GradientMessage& message);
  // Calls `then` once when `written` has passed; see CompletionThreads::OnPassed. Errors: those of
  // the event; CANCELLED after Close.
  void WhenWritten(const DeviceEvent& written, CompletionThreads::Then then);
  // Ends the loans of a message that was not sent.
  void TakeBack(const GradientMessage& message);
  // `peer` has answered the message that lends. After an error nobody knows whether it has borrowed
  // what was lent, which is then recalled. `refused` is the error with which it has answered that
  // it could not borrow; unless the next loan may be different, nothing more is lent to it until it
  // shows a device on a new link.
  void OnAnswered(const rpc::PeerInfo& peer, const GradientMessage& message,
                  const absl::Status& answered, const absl::Status& refused);

  // ---- on the worker that receives

  // Whether some gradients of the request are lent. Decode may then wait.
  static bool Lends(const rpc::ServerCall& call);
  // Returns the gradients of a request. Errors: INVALID_ARGUMENT for a request that makes no sense;
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<ArrivedGradients> Decode(rpc::ServerCall& call) const;

 private:
  absl::Status Lend(const rpc::PeerInfo& peer, Device& device, GradientMessage& message);

  const Uses uses_;
  rref::Gate gate_;  // guards uses_.completions
};

}  // namespace psd::dist_autograd
