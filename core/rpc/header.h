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
inline constexpr uint32_t kProtocolVersion = 7;

// The numbers are part of the wire format.
enum class MessageKind : uint8_t {
  kHello = 1,         // "I am (name, incarnation); let me open or resume my session on you"
  kWelcome = 2,       // the answer: who I am, your epoch, resumed or new
  kRefused = 3,       // the answer: no, and why
  kRequest = 4,       // a call
  kReply = 5,         // its answer
  kCancel = 6,        // the caller no longer wants a call
  kKeepalive = 7,     // I am alive; carries acknowledgements
  kSessionEnded = 8,  // what you sent belongs to no live session here
  kGoodbye = 9,       // I end my session on you
  kLeaving = 10,      // I am about to stop: send me nothing new, and say goodbye once all that you
                      // sent is answered. With epoch 0: the answer to a hello, no new session
  kLeft = 11,         // I stop now; `ack` lists the mutations of your session that I applied or may
                      // have applied and that you have not acknowledged
  kCancelled = 12,    // the answer to a cancel: the call's answer counts as dropped
};

// Bytes that an upper layer adds to a request or a reply besides the payload (fork data, send/recv
// ids), under the layer's tag.
struct Attachment {
  uint32_t tag = 0;
  std::string bytes;
};

// Returns the bytes under `tag`, or null.
inline const std::string* FindAttachment(const std::vector<Attachment>& attachments, uint32_t tag) {
  for (const Attachment& attachment : attachments) {
    if (attachment.tag == tag) return &attachment.bytes;
  }
  return nullptr;
}

// The answers that the caller has received: every sequence number up to `watermark`, and those in
// `ranges` (first, last, first, last, …; ascending, disjoint, beyond the watermark). A call that
// the caller gave up is included only once the callee has answered its cancel. So the callee never
// mistakes a dropped answer for a received one.
struct Ack {
  uint64_t watermark = 0;
  std::vector<uint64_t> ranges;
};

struct Header {
  MessageKind kind = MessageKind::kKeepalive;

  // Request, reply, cancel, cancelled: the call. Keepalive: the calls with smaller ids are over at
  // the sender, that is, it has taken their answers, or the receiver has answered its cancels.
  uint64_t call_id = 0;
  std::string method;
  // Read request: how often the caller has sent it. Reply to a read, if it gives something (forks):
  // the attempt that it answers; the caller takes such an answer only if it has not sent the read
  // again since. Reply to a mutation: 1 if it is an error that replaces an answer which gave
  // something and was not kept; the caller then gives the call up, so that the callee takes back
  // what the lost answer gave.
  uint32_t attempt = 0;
  uint64_t timeout_us = 0;  // the time left when sent; 0: no timeout. Welcome: the session's lease

  // The session's epoch. Hello: the epoch to resume, or 0. Welcome: the epoch issued. Reply: the
  // epoch of the session in which the call was answered.
  uint64_t epoch = 0;
  // The sequence number of a mutation in its session; 0 for a read. Hello: grows with every hello
  // of one incarnation.
  uint64_t sequence = 0;
  // The incarnation of the callee that the sender means; 0: any. Session ended, leaving, left: the
  // callee incarnation of the session that the message is about.
  Incarnation callee_incarnation = 0;
  Ack ack;

  // The sender's name, in a hello, welcome, refused or session-ended message.
  std::string name;
  Incarnation incarnation = 0;
  uint32_t protocol_version = 0;
  bool resumed = false;

  std::vector<Attachment> attachments;
  absl::Status status;  // reply, refused; session ended: the reason, unless its lease ran out
  std::string payload;  // the payload's own header
  // True for a message without room, of which only the beginning was kept. It may have more
  // attachments and more payload than are here.
  bool cut = false;
};

}  // namespace psd::rpc
