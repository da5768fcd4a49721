#pragma once

// Values in and out of messages, with the history that a context records.

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

// The context in which a call is recorded that is made now, on this thread: `context`, or none
// under a NoGradGuard. Whoever makes a call asks once, before anything is handed to another thread.
ContextPtr RecordingContext(const ContextPtr& context);

// Caller: `values` as the payload of a request to `callee`, recorded in `context` if there is one.
// The values (and the forks among them) must be kept until the reply has come, and the forks be
// passable (WhenPassable).
absl::StatusOr<rpc::Request> EncodeRequest(Runtime& runtime, std::string method,
                                           const std::string& callee, const Values& values,
                                           const ContextPtr& context);
// Caller: the values that the callee answered.
absl::StatusOr<Values> DecodeReply(Runtime& runtime, const ContextPtr& context,
                                   const rpc::Reply& reply);

// Callee: what EncodeRequest made.
struct Arguments {
  Values values;
  std::vector<Future<Unit>> borrowed;  // ready when the owners count these references
  ContextPtr context;                  // null outside one
};
enum class ReferenceUse {
  kKeep,  // whoever serves the call may keep them
  kRead,  // they are read at once, and nobody gets them
};
absl::StatusOr<Arguments> DecodeRequest(Runtime& runtime, rpc::ServerCall& call,
                                        ReferenceUse use = ReferenceUse::kKeep);
// The references among `values`, those in containers too.
std::vector<rref::RRef> CollectReferences(const Values& values);
// Caller: waits, without a thread, until the creations of `rrefs` have ended. What is left of
// `options` (its timeout runs meanwhile), or why one of them cannot be used.
Future<rpc::CallOptions> WhenMade(Runtime& runtime, const std::vector<rref::RRef>& rrefs,
                                  const rpc::CallOptions& options);
// As WhenMade, until `rrefs` may be arguments of a call: they are made, or being made.
Future<rpc::CallOptions> WhenPassable(Runtime& runtime, const std::vector<rref::RRef>& rrefs,
                                      const rpc::CallOptions& options);
// Callee: as WhenMade, until `rrefs` may be in an answer to `caller`: its own values and this
// worker's are made, those of others are made or being made.
Future<rpc::CallOptions> WhenAnswerable(Runtime& runtime, const std::string& caller,
                                        const std::vector<rref::RRef>& rrefs,
                                        const rpc::CallOptions& options);

bool AllMade(const std::vector<rref::RRef>& rrefs);
// `use` with what is left of `options` when the creations of `rrefs` have ended: a use that
// overtakes one waits for it, without a thread.
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

// Callee: counts a fork of `entry` for the caller, to be told in the answer; if the caller never
// takes the answer, the fork goes again. Errors: NOT_FOUND if the value has been freed.
absl::StatusOr<rref::ForkData> ForkForCaller(Runtime& runtime, rpc::ServerCall& call,
                                             const store::EntryPtr& entry);
// Callee: answers with values or an error.
void ReplyWithValues(Runtime& runtime, rpc::ServerCall& call, const ContextPtr& context,
                     const absl::StatusOr<Values>& result);

}  // namespace psd::worker
