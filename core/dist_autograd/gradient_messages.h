#pragma once

// Gradients in messages. What is on a device that the receiver's process shares is lent to it
// (core/device_loans). Otherwise large gradients on a device are left out if the receiver wants
// that, which fetches them in pieces (core/device_pieces). Everything else is copied to the host.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/node.h"
#include "core/base/clock.h"
#include "core/base/completion_threads.h"
#include "core/base/device.h"
#include "core/base/executor.h"
#include "core/base/mutex.h"
#include "core/device_loans/device_loans.h"
#include "core/device_pieces/device_pulls.h"
#include "core/device_pieces/piece_collector.h"
#include "core/device_pieces/piece_methods.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/gate.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::dist_autograd {

// Encoded gradients for one worker.
struct GradientMessage {
  rpc::Payload payload;   // the buffers that are lent or left out are empty
  v1::BorrowOffer offer;  // stands for the process that borrows
  v1::LentBuffers lent;   // no blocks if nothing is lent
  v1::LeftOut left_out;   // no buffers if nothing is left out
  // Behind the work that writes the gradients; no event if the message is whole. A message that
  // lends may be sent when it has passed.
  DeviceEvent written;

  bool lends() const { return lent.blocks_size() > 0; }
  bool leaves_out() const { return left_out.buffers_size() > 0; }
  bool whole() const { return !lends() && !leaves_out(); }
};

// Gradients that have arrived.
struct ArrivedGradients {
  Tensors gradients;  // lent ones must not be written
  // If this is an error, lent gradients cannot be read here, and `gradients` is empty.
  absl::Status refused;
};

// Shared by the passes of one worker, as a part of DistAutograd. Thread-safe.
class GradientMessages {
 public:
  // Gradients of at most this many bytes are copied. A loan costs two messages.
  static constexpr size_t kMostCopiedBytes = device_pieces::kPieceBytes;
  // Gradients are received on a device that has room for so many times their size, because a first
  // step there needs memory for the optimizer's state and the next version. Otherwise on the host.
  static constexpr size_t kRoomOnDevice = 8;

  // Without `loans` or `completions` nothing is lent or left out. Without `pulls` nothing is left
  // out, and others are not asked to leave anything out. With `pulls` all others must be set.
  struct Uses {
    std::shared_ptr<device_loans::DeviceLoans> loans;  // shared with the worker
    CompletionThreads* completions = nullptr;
    device_pieces::DevicePulls* pulls = nullptr;  // keep what is left out
    rpc::RpcAgent* agent = nullptr;               // this and the next two fetch pieces
    Executor* executor = nullptr;
    const Clock* clock = nullptr;
  };
  // What the pointers refer to must live until Close.
  explicit GradientMessages(Uses uses) : uses_(std::move(uses)) {}
  // From now on nothing waits for a device, and no pieces are fetched.
  void Close() { gate_->Close(); }

  // ---- on the worker that sends

  // Encodes `gradients` for `peer`. Large ones on one device that `peer` shares are lent, as far as
  // its bounds allow (Lender). If it does not share the device and wants them in pieces
  // (`in_pieces`), they are left out. In both cases they are replaced by contiguous copies if they
  // are not contiguous, and small ones on that device by copies on the host. If the message is not
  // whole, exactly one of Drop and OnAnswered must be called later. Nobody may write the gradients
  // until then, and as long as they are lent, which may be until the process of `peer` ends. Waits
  // for devices whose elements are copied. Errors: those of rref::EncodeTensorValues and of the
  // device.
  absl::StatusOr<GradientMessage> Encode(const rpc::PeerInfo& peer, Tensors& gradients,
                                         bool in_pieces);
  // As above, but all of them are in the message.
  static absl::StatusOr<GradientMessage> EncodeCopies(const Tensors& gradients);
  // Returns the attachments of a request that name what `message` lends or leaves out.
  static std::vector<rpc::Attachment> AttachmentsOf(const GradientMessage& message);
  // Calls `then` once when `written` has passed; see CompletionThreads::OnPassed. Errors: those of
  // the event; CANCELLED after Close.
  void WhenWritten(const DeviceEvent& written, CompletionThreads::Then then);
  // Ends the loans and the pull of a message that was not sent.
  void Drop(const rpc::PeerInfo& peer, const GradientMessage& message);
  // `peer` has answered the message, which is not whole. After an error nobody knows whether it has
  // borrowed what was lent, which is then recalled. `refused` is the error with which it has
  // answered that it could not read what was lent or left out; unless the next loan may be
  // different, nothing more is lent to it until it shows a device on a new link.
  void OnAnswered(const rpc::PeerInfo& peer, const GradientMessage& message,
                  const absl::Status& answered, const absl::Status& refused);

  // ---- on the worker that receives

  // Whether gradients for tensors on a device should be left out of messages to this worker.
  bool WantsPieces() const { return uses_.pulls != nullptr; }
  // Whether some gradients of the request are lent. Decode may then wait.
  static bool Lends(const rpc::ServerCall& call);
  // Whether some are left out. They must be fetched (Fetch) before Decode.
  static bool LeavesOut(const rpc::ServerCall& call);
  // Fetches what is left out into memory of `device`, where null is the host, puts it into the
  // payload of the call, and calls `then` once, which keeps this object alive. If the device has
  // little room, the host's memory is taken. After success `then` runs on the executor; after an
  // error it may run on any thread, and must not wait. Errors that are returned, after which `then`
  // is not called: INVALID_ARGUMENT for a request that makes no sense, or that leaves out more than
  // `most_bytes`; FAILED_PRECONDITION if this worker fetches nothing; CANCELLED after Close.
  absl::Status Fetch(const std::shared_ptr<rpc::ServerCall>& call, Device* device,
                     size_t most_bytes, std::function<void(const absl::Status&)> then);
  // Returns the gradients of a request. Errors: INVALID_ARGUMENT for a request that makes no sense;
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<ArrivedGradients> Decode(rpc::ServerCall& call) const;

 private:
  absl::Status Lend(const rpc::PeerInfo& peer, Device& device, GradientMessage& message);
  // Leaves out what is on `device`, unless too much is left out already.
  absl::Status LeaveOut(const rpc::PeerInfo& peer, Device& device, GradientMessage& message);
  void EndPull(const rpc::PeerInfo& peer, const GradientMessage& message);
  // Whether `device` has room for `bytes` that are to be fetched. If so, they count as taken there
  // until Unreserve, beside the memory itself, which is allocated meanwhile.
  bool Reserve(Device* device, size_t bytes) PSD_EXCLUDES(mutex_);
  void Unreserve(Device* device, size_t bytes) PSD_EXCLUDES(mutex_);

  const Uses uses_;
  // Guards what uses_ points to. Both are shared with the fetches that are under way.
  const std::shared_ptr<rref::Gate> gate_ = std::make_shared<rref::Gate>();
  const std::shared_ptr<device_pieces::MorePieces> more_pieces_ =
      std::make_shared<device_pieces::MorePieces>(0);
  Mutex mutex_;  // leaf
  // The bytes that fetches under way take on each device.
  std::map<const Device*, size_t> reserved_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::dist_autograd
