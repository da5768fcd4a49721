#pragma once

// Puts values into messages and takes them out again: counts the references among them, and records
// their history in a context.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref.h"
#include "core/rref/rref_context.h"
#include "core/store/store.h"
#include "core/store/value.h"

namespace psd::dist_autograd {

// Returns the context that records a call which this thread makes now: `context`, or null under a
// NoGradGuard. To be called once for each call, before any work is handed to another thread.
ContextPtr RecordingContext(const ContextPtr& context);

// On the callee: the contents of a request that Exchange::EncodeRequest made.
struct Arguments {
  store::Values values;
  // Ready when the owners have counted the references to their values.
  std::vector<Future<Unit>> borrowed;
  ContextPtr context;  // null outside a context
};
enum class ReferenceUse {
  kKeep,  // the code that serves the call may keep them
  kRead,  // they are read at once and not passed on
};

// Thread-safe.
class Exchange {
 public:
  // `self` is this worker. The arguments must outlive the exchange and the calls that it decodes.
  Exchange(const rpc::PeerInfo& self, rref::RRefContext& rrefs, DistAutograd& autograd)
      : self_(self), rrefs_(rrefs), autograd_(autograd) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // On the caller: returns a request to `callee` with the payload `values`, recorded in `context`
  // if that is not null. The values (and the forks among them) must be kept until the reply has
  // come. Requires: all references among them are passable (rref::CreationGate::WhenPassable).
  absl::StatusOr<rpc::Request> EncodeRequest(std::string method, const std::string& callee,
                                             const store::Values& values,
                                             const ContextPtr& context) const;
  // On the caller: returns the values of a reply, with all tensors on `device`, where null is the
  // host. Waits for the device.
  absl::StatusOr<store::Values> DecodeReply(const ContextPtr& context, const rpc::Reply& reply,
                                            Device* device = nullptr) const;
  // On the caller: returns the RRef in a reply that ReferenceReply made.
  absl::StatusOr<rref::RRef> AdoptReference(const std::string& owner,
                                            const rpc::Reply& reply) const;

  absl::StatusOr<Arguments> DecodeRequest(rpc::ServerCall& call,
                                          ReferenceUse use = ReferenceUse::kKeep) const;
  // On the callee: returns an answer with the payload `values`, recorded in `context` if that is
  // not null.
  absl::StatusOr<rpc::Contents> EncodeReply(rpc::ServerCall& call, const ContextPtr& context,
                                            const store::Values& values) const;
  // On the callee: counts a fork of `entry` for the caller and returns a v1::ReferenceReply, which
  // carries the reference. If the caller never takes the answer, the fork is deleted again.
  // Errors: NOT_FOUND if the value has been freed.
  absl::StatusOr<rpc::Contents> ReferenceReply(rpc::ServerCall& call,
                                               const store::EntryPtr& entry) const;

 private:
  absl::Status DescribeArgument(const std::string& callee, const store::RemoteReference& reference,
                                rref::ForkData& data) const;
  absl::StatusOr<rref::ForkData> AnswerFork(rpc::ServerCall& call,
                                            const store::RemoteReference& reference) const;
  absl::StatusOr<rref::ForkData> ForkForCaller(rpc::ServerCall& call,
                                               const store::EntryPtr& entry) const;
  absl::StatusOr<store::Values> BorrowAll(const rref::ForkRun& run, ReferenceUse use,
                                          std::vector<Future<Unit>>& borrowed) const;

  const rpc::PeerInfo& self_;
  rref::RRefContext& rrefs_;
  DistAutograd& autograd_;
};

}  // namespace psd::dist_autograd
