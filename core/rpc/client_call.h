#pragma once

// A call of this worker in flight.

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "core/base/future.h"
#include "core/base/mutex.h"
#include "core/base/wait_helper.h"
#include "core/carrier/carrier.h"
#include "core/rpc/rpc_agent.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// Shared by the session machine, the agent and the call's handle. The request never changes, so
// that it can be sent again; `id` is guarded by the agent's lock. A thread that waits for the reply
// helps the link that the request was sent over.
class ClientCall : public Opaque, public WaitHelper {
 public:
  static std::shared_ptr<ClientCall> Create(std::string peer, Request request) {
    auto call = std::make_shared<ClientCall>(std::move(peer), std::move(request));
    call->promise_.SetHelper(call);
    return call;
  }
  // To be used only by Create.
  ClientCall(std::string peer, Request request)
      : peer_(std::move(peer)), request_(std::move(request)) {}

  const std::string& peer() const { return peer_; }
  Future<rpc::Reply> reply() const { return promise_.future(); }

  // Returns the message of this call. `meta` is what the session adds to it, `now` the agent's
  // time.
  carrier::Message Encode(const RequestMeta& meta, absl::Time now) const;

  // Records the link over which the request is sent.
  void SetLink(std::weak_ptr<carrier::Link> link) const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    link_ = std::move(link);
  }
  void HelpUntil(absl::FunctionRef<bool()> done) override PSD_EXCLUDES(mutex_);

  // Completes the call without an answer.
  void Complete(const PeerInfo& callee, absl::Status status) const;
  // Completes the call with the callee's answer.
  void Complete(const PeerInfo& callee, Header header, std::vector<Buffer> buffers) const;

  CallId id = 0;

 private:
  const std::string peer_;
  const Request request_;
  const Promise<rpc::Reply> promise_;
  mutable Mutex mutex_;  // leaf
  mutable std::weak_ptr<carrier::Link> link_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::rpc
