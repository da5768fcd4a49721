#pragma once

// A call of this worker in flight.

#include <memory>
#include <string>

#include "core/base/future.h"
#include "core/carrier/carrier.h"
#include "core/rpc/rpc_agent.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// Shared by the session machine, the agent and the call's handle. The request never changes, so
// that it can be sent again; `id` is guarded by the agent's lock.
class ClientCall : public Opaque {
 public:
  ClientCall(std::string peer, Request request)
      : peer_(std::move(peer)), request_(std::move(request)) {}

  const std::string& peer() const { return peer_; }
  Future<rpc::Reply> reply() const { return promise_.future(); }

  // Returns the message of this call. `meta` is what the session adds, `now` the agent's time.
  carrier::Message Encode(const RequestMeta& meta, absl::Time now) const;

  // Completes the call without an answer.
  void Complete(const PeerInfo& callee, absl::Status status) const;
  // Completes the call with the callee's answer.
  void Complete(const PeerInfo& callee, Header header, std::vector<Buffer> buffers) const;

  CallId id = 0;

 private:
  const std::string peer_;
  const Request request_;
  const Promise<rpc::Reply> promise_;
};

}  // namespace psd::rpc
