#pragma once

// Converts values to messages and back, and records their history in a context.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/dist_autograd/context.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/fork_data.h"
#include "core/rref/rref.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/worker/functions.h"
#include "core/worker/message_io.h"

namespace psd::worker {

class Runtime;

using ContextPtr = std::shared_ptr<dist_autograd::ContextState>;

// Returns the context in which a call that this thread makes now is recorded: `context`, or null
// under a NoGradGuard. Call it once for each call, before anything is handed to another thread.
ContextPtr RecordingContext(const ContextPtr& context);

// On the caller: returns a request to `callee` with the payload `values`, recorded in `context` if
// that is not null. The values (and the forks among them) must be kept until the reply has come.
// Requires: all references among them are passable (WhenPassable).
absl::StatusOr<rpc::Request> EncodeRequest(Runtime& runtime, std::string method,
                                           const std::string& callee, const Values& values,
                                           const ContextPtr& context);
// On the caller: returns the values of a reply.
absl::StatusOr<Values> DecodeReply(Runtime& runtime, const ContextPtr& context,
                                   const rpc::Reply& reply);

// On the callee: the contents of a request that EncodeRequest made.
struct Arguments {
  Values values;
  std::vector<Future<Unit>> borrowed;  // ready when the owners count the references to their values
  ContextPtr context;                  // null outside a context
};
enum class ReferenceUse {
  kKeep,  // the code that serves the call may keep them
  kRead,  // they are read at once and not passed on
};
absl::StatusOr<Arguments> DecodeRequest(Runtime& runtime, rpc::ServerCall& call,
                                        ReferenceUse use = ReferenceUse::kKeep);
// Returns the references among `values`, including those in containers.
std::vector<rref::RRef> CollectReferences(const Values& values);
// On the caller: waits, without a thread, until the creations of `rrefs` have ended. Returns
// `options` with the rest of its timeout, which runs meanwhile. Errors: the reason why one of the
// references cannot be used; DEADLINE_EXCEEDED.
Future<rpc::CallOptions> WhenMade(Runtime& runtime, const std::vector<rref::RRef>& rrefs,
                                  const rpc::CallOptions& options);
// As WhenMade, but waits only until `rrefs` may be arguments of a call: their values are made or
// under creation.
Future<rpc::CallOptions> WhenPassable(Runtime& runtime, const std::vector<rref::RRef>& rrefs,
                                      const rpc::CallOptions& options);
// On the callee: as WhenMade, but waits only until `rrefs` may be in an answer to `caller`. Values
// of the caller and of this worker must be made; those of other workers may be under creation.
Future<rpc::CallOptions> WhenAnswerable(Runtime& runtime, const std::string& caller,
                                        const std::vector<rref::RRef>& rrefs,
                                        const rpc::CallOptions& options);

bool AllMade(const std::vector<rref::RRef>& rrefs);
// Calls `use` with the rest of `options` when the creations of `rrefs` have ended, and returns its
// result. Waits without a thread.
template <typename T, typename Use>
Future<T> AfterCreation(Runtime& runtime, const std::vector<rref::RRef>& rrefs,
                        const rpc::CallOptions& options, Use use) {
  if (AllMade(rrefs)) return use(options);
  Promise<T> promise;
  WhenMade(runtime, rrefs, options)
      .OnReady(
          [use = std::move(use), promise](const absl::StatusOr<rpc::CallOptions>& left) mutable {
            if (!left.ok()) return static_cast<void>(promise.Set(left.status()));
            use(*left).OnReady([promise](const absl::StatusOr<T>& result) { promise.Set(result); });
          });
  return promise.future();
}

// On the callee: counts a fork of `entry` for the caller, which the answer will carry. If the
// caller never takes the answer, the fork is deleted again. Errors: NOT_FOUND if the value has been
// freed.
absl::StatusOr<rref::ForkData> ForkForCaller(Runtime& runtime, rpc::ServerCall& call,
                                             const store::EntryPtr& entry);
// On the callee: answers with values or an error.
void ReplyWithValues(Runtime& runtime, rpc::ServerCall& call, const ContextPtr& context,
                     const absl::StatusOr<Values>& result);

}  // namespace psd::worker
