#pragma once

// The header of every message between two workers, as a plain struct. header_codec turns it into
// bytes and back.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/ids.h"

namespace psd::rpc {

// The version of the protocol that a Hello announces. Workers of different versions refuse each
// other.
inline constexpr uint32_t kProtocolVersion = 2;

// Numbers are part of the wire format.
enum class MessageKind : uint8_t {
  kHello = 1,         // "I am (name, incarnation); let me open or resume my session on you"
  kWelcome = 2,       // the answer: who I am, your epoch, resumed or new
  kRefused = 3,       // the answer: no, and why
  kRequest = 4,       // a call
  kReply = 5,         // its answer
  kCancel = 6,        // the caller no longer wants a call
  kKeepalive = 7,     // I am here; carries acknowledgements
  kSessionEnded = 8,  // what you sent belongs to no live session here
  kGoodbye = 9,       // I end my session on you
  kLeaving = 10,      // I am about to stop: send me nothing new, and say goodbye once all that you
                      // sent is answered. With epoch 0: the answer to a hello, no new session
  kLeft = 11,         // I stop now; `ack` lists the mutations of your session that I applied or may
                      // have applied and that you have not acknowledged
  kCancelled = 12,    // the answer to a cancel: what the call gives is not taken for received
};

// Bytes that an upper layer lets a request or a reply carry beside the payload (fork data,
// send/recv ids), under the layer's tag.
struct Attachment {
  uint32_t tag = 0;
  std::string bytes;
};

// The bytes under `tag`, or null.
inline const std::string* FindAttachment(const std::vector<Attachment>& attachments, uint32_t tag) {
  for (const Attachment& attachment : attachments) {
    if (attachment.tag == tag) return &attachment.bytes;
  }
  return nullptr;
}

// Which answers the caller has received: every sequence number up to `watermark`, and those in
// `ranges` (first, last, first, last, …; ascending, disjoint, beyond the watermark). A call that
// the caller gave up is among them only once the callee has answered its cancel, so that the callee
// never takes a dropped answer for a received one.
struct Ack {
  uint64_t watermark = 0;
  std::vector<uint64_t> ranges;
};

struct Header {
  MessageKind kind = MessageKind::kKeepalive;

  // Request, reply, cancel, cancelled.
  std::string method;
  uint64_t call_id = 0;
  uint64_t timeout_us = 0;  // what is left when sent; 0: none. Welcome: the session's lease

  // The session: hello: the epoch to resume, or 0. Welcome: the epoch issued.
  uint64_t epoch = 0;
  // A mutation's place in its session. Hello: grows with every hello of one incarnation.
  uint64_t sequence = 0;
  // Whom the sender means; 0: whoever it is. Session ended, leaving, left: the one it was.
  Incarnation callee_incarnation = 0;
  Ack ack;

  // Hello, welcome, refused, session ended: the sender.
  std::string name;
  Incarnation incarnation = 0;
  uint32_t protocol_version = 0;
  bool resumed = false;

  std::vector<Attachment> attachments;
  absl::Status status;  // reply, refused; session ended: why, if more than its lease
  std::string payload;  // the payload's own header
};

}  // namespace psd::rpc
