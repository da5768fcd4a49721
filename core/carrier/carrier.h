#pragma once

// Moves messages between two workers. A carrier knows lengths, never contents: headers belong to
// rpc, buffers to the layers above it.
//
// Vocabulary: a Carrier makes Links. A Link is one established, symmetric path to one peer process;
// either end may send at any time. It either delivers a message whole or not at all, and it ends
// exactly once, telling its handler why. Reconnecting, retrying and deduplicating are rpc's work.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"

namespace psd::carrier {

// A message: header bytes (small, from rpc) and payload buffers of any size.
struct Message {
  std::string header;
  std::vector<Buffer> buffers;
  // The charge for the header and the table of buffers, where the carrier charges messages. Buffers
  // have their own charges.
  MemoryCharge charge = nullptr;

  size_t BufferBytes() const {
    size_t total = 0;
    for (const Buffer& buffer : buffers) total += buffer.size();
    return total;
  }
  size_t TotalBytes() const { return header.size() + BufferBytes(); }
};

// Bounds on the messages that are accepted from a peer, and on those that may be sent.
struct Limits {
  // The most bytes of one header.
  size_t max_header_bytes = size_t{16} << 20;
  // The most bytes of one message with all its buffers. A larger message from a peer ends the link;
  // Send refuses a larger message with INVALID_ARGUMENT.
  size_t max_message_bytes = size_t{4} << 30;
  size_t max_buffers = size_t{1} << 20;
  // The most bytes of partly received messages that one link may hold. If there are more, the link
  // ends.
  size_t max_assembly_bytes = size_t{8} << 30;
  // The most bytes that Send has accepted and the network has not taken yet. If there are more,
  // Send returns RESOURCE_EXHAUSTED for messages that carry buffers. Messages without buffers are
  // still accepted: a link whose peer reads nothing ends when there is no memory for them, or when
  // it stalls.
  size_t max_send_queue_bytes = size_t{8} << 30;
};

// The bytes of the buffers of messages that went through shared memory, by what became of them.
struct SharedTraffic {
  uint64_t copied_out = 0;  // copied into memory from which the peer copies them
  uint64_t copied_in = 0;   // copied from memory of the peer
  uint64_t lent = 0;        // read by the peer where they lie
  uint64_t borrowed = 0;    // read here where the peer has them
  uint64_t lent_now = 0;    // the part of `lent` that the peer has not returned

  SharedTraffic& operator+=(const SharedTraffic& other) {
    copied_out += other.copied_out;
    copied_in += other.copied_in;
    lent += other.lent;
    borrowed += other.borrowed;
    lent_now += other.lent_now;
    return *this;
  }
};

class Link;

// The number of bytes that are kept of the header of a message without room.
inline constexpr size_t kKeptHeaderBytes = size_t{64} << 10;

// The user of a link. Calls for one link never overlap: OnMessage and OnRefused any number of
// times, then OnClosed exactly once, then nothing. They run on the carrier's threads and on threads
// that help (Link::HelpUntil), and must not block; work that takes time goes to an executor. They
// may use the link (Send, Close).
class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  virtual void OnMessage(Message message) = 0;
  // Called when a message has come for which there was no room. All of it was dropped except the
  // first kKeptHeaderBytes of its header. `why` is RESOURCE_EXHAUSTED. The handler must tell the
  // sender.
  virtual void OnRefused(std::string header, absl::Status why) = 0;
  // Called when the link has ended. UNAVAILABLE: the peer or the connection is gone.
  // INVALID_ARGUMENT: the peer broke the protocol. DEADLINE_EXCEEDED: the peer is connected, but no
  // longer reads or sends. CANCELLED: this end closed the link.
  virtual void OnClosed(absl::Status reason) = 0;
};

// One end of a path to a peer. Thread-safe. Made by a carrier; shared by it and by its user.
class Link {
 public:
  virtual ~Link() = default;

  // Takes the message and returns at once. The buffers are not copied; they stay referenced until
  // the network has taken them.
  //
  // Guarantees: a message is delivered whole, at most once, or the link ends. Messages of at most
  // 64 KiB in total arrive in the order sent. Larger ones travel separately, above 2 MiB in pieces,
  // and arrive when complete, so that control messages never queue behind bulk. Errors: UNAVAILABLE
  // after the link has ended; INVALID_ARGUMENT or RESOURCE_EXHAUSTED by Limits; RESOURCE_EXHAUSTED
  // if there is no memory for the parts of the message that the link keeps and that are not charged
  // yet.
  virtual absl::Status Send(Message message) = 0;

  // Receives messages of this link on the calling thread until `done` returns true, if the carrier
  // can do that faster than it can wake a sleeping thread. May return earlier. Messages are passed
  // to the handler on this thread. To be called by a thread that waits for an answer, with no lock
  // held.
  virtual void HelpUntil(absl::FunctionRef<bool()> /*done*/) {}

  // Ends the link. OnClosed follows here with CANCELLED and at the peer with UNAVAILABLE. Messages
  // that were accepted before are still sent if they can be sent without waiting. May be repeated.
  virtual void Close() = 0;

  // Returns the carrier's name and the address of the peer's end of the connection:
  // "grpc 127.0.0.1:41234". It is the same for all links over one connection. The part before the
  // last colon is the same for all connections of one host, or of one user of this host.
  virtual std::string Description() const = 0;

  // Returns why the link does not use shared memory. Empty if it does, or if this carrier never
  // uses it.
  virtual std::string WhyNotShared() const { return ""; }

  // Returns what this link has carried through shared memory. Takes no lock.
  virtual SharedTraffic shared_traffic() const { return {}; }
};

// Called for each new link that a peer opened. Returns the handler of the link, or null to refuse
// it, which ends it. Runs on the carrier's threads. The handler is kept until OnClosed has
// returned.
using AcceptCallback = std::function<std::shared_ptr<LinkHandler>(std::shared_ptr<Link> link)>;

// The outcome of Connect. It is called exactly once, before any call of the handler. Errors:
// UNAVAILABLE with "refused" in its text when nobody listens at the address, UNAVAILABLE for other
// failures, DEADLINE_EXCEEDED when `timeout` has passed, RESOURCE_EXHAUSTED when the system refuses
// a thread.
using ConnectCallback = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<Link>>)>;

// Makes links. Thread-safe. The destructor shuts down.
class Carrier {
 public:
  virtual ~Carrier() = default;

  // For example "grpc" or "faulty".
  virtual std::string Name() const = 0;

  // Accepts links at `address` ("127.0.0.1:7071"; port 0 takes any free one), and returns the
  // address that peers dial. To be called at most once per carrier. Errors: UNAVAILABLE naming the
  // address and the system's reason (port in use, no permission); RESOURCE_EXHAUSTED when the
  // system refuses a thread.
  virtual absl::StatusOr<std::string> Listen(const std::string& address, AcceptCallback accept) = 0;

  // Opens a link to the carrier that listens at `address`. `handler` is kept until its OnClosed
  // has returned; if the link cannot be opened, until `done` has returned.
  virtual void Connect(const std::string& address, absl::Duration timeout,
                       std::shared_ptr<LinkHandler> handler, ConnectCallback done) = 0;

  // Returns what all links of this carrier, past and present, have carried through shared memory.
  virtual SharedTraffic shared_traffic() const { return {}; }

  // Ends all links (OnClosed is called for each), stops listening, and joins the carrier's threads.
  // No callback runs after it has returned. Must not be called on a carrier thread. May be
  // repeated.
  virtual void Shutdown() = 0;
};

}  // namespace psd::carrier
