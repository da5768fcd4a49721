#include "core/rpc/client_call.h"

#include <algorithm>
#include <utility>

#include "core/base/thread_modes.h"
#include "core/rpc/header_codec.h"

namespace psd::rpc {

carrier::Message ClientCall::Encode(const RequestMeta& meta, absl::Time now) const {
  Header header;
  header.kind = MessageKind::kRequest;
  header.method = request_.method;
  header.call_id = meta.call_id;
  if (meta.deadline != absl::InfiniteFuture()) {
    header.timeout_us = std::max<int64_t>(1, absl::ToInt64Microseconds(meta.deadline - now));
  }
  header.callee_incarnation = meta.callee_incarnation;
  header.epoch = meta.epoch;
  header.sequence = meta.sequence;
  header.attempt = meta.attempt;
  header.ack = meta.ack;
  header.attachments = request_.attachments;
  header.payload = request_.payload.header;
  return {EncodeHeader(header), request_.payload.buffers};
}

void ClientCall::HelpUntil(absl::FunctionRef<bool()> done) {
  std::shared_ptr<carrier::Link> link;
  {
    MutexLock lock(mutex_);
    link = link_.lock();
  }
  if (link == nullptr) return;
  const FreshThreadModes fresh;  // the thread may handle messages for others first
  link->HelpUntil(done);
}

void ClientCall::Complete(const PeerInfo& callee, absl::Status status) const {
  if (status.ok()) {
    promise_.Set(rpc::Reply{{}, {}, callee, 0});
  } else {
    promise_.Set(std::move(status));
  }
}

void ClientCall::Complete(const PeerInfo& callee, Header header,
                          std::vector<Buffer> buffers) const {
  if (!header.status.ok()) {
    promise_.Set(std::move(header.status));
    return;
  }
  promise_.Set(rpc::Reply{{std::move(header.payload), std::move(buffers)},
                          std::move(header.attachments),
                          callee,
                          header.epoch});
}

}  // namespace psd::rpc
