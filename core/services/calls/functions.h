#pragma once

// Registered functions: C++ functions that a daemon or a trainer offers under a name, and what such
// a function may do on the worker that runs it. Clients never send code.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "core/program/program.h"
#include "core/rpc/session_options.h"
#include "core/rref/rref.h"
#include "core/store/value.h"

namespace psd::dist_autograd {
class ContextState;
}  // namespace psd::dist_autograd

namespace psd::services {

using store::Values;

// The target of a call: a program or, if `program` is null, a registered function. psd::Function
// (client/psd.h) converts to it.
struct CallTarget {
  std::shared_ptr<const program::Program> program;  // shared by all calls of the program
  program::Fingerprint fingerprint;                 // the program's
  std::string function;                             // the name of the registered function
};

// The worker behind a FunctionCall: the parts of it that functions may use. The runtime implements
// it. Shared by the worker and its FunctionCalls, which may outlive the worker. Thread-safe.
//
// All calls fail with DEADLINE_EXCEEDED at `deadline`, which is on the worker's clock, and with
// FAILED_PRECONDITION once the worker has been destroyed.
class FunctionHost {
 public:
  using ContextPtr = std::shared_ptr<dist_autograd::ContextState>;

  virtual ~FunctionHost() = default;
  virtual const rpc::PeerInfo& self() const = 0;
  // See FunctionCall. `context` is null outside a context.
  virtual Future<Values> Run(const std::string& callee, const CallTarget& target, Values arguments,
                             const ContextPtr& context, absl::Time deadline) = 0;
  virtual absl::StatusOr<rref::RRef> Remote(const std::string& callee, const CallTarget& target,
                                            Values arguments, const ContextPtr& context,
                                            absl::Time deadline) = 0;
  virtual Future<Values> Fetch(const std::vector<rref::RRef>& rrefs, const ContextPtr& context,
                               absl::Time deadline) = 0;
  virtual absl::StatusOr<rref::RRef> Keep(store::Value value, bool requires_grad) = 0;
};

// One call of a registered function: it names the caller, and lets the function use its worker.
// Requests that the function makes through it belong to the caller's context, if the call has one,
// so gradients flow back through them. They end with the call's deadline at the latest. A value: an
// asynchronous function may keep a copy until its future is set. Thread-safe.
class FunctionCall {
 public:
  // To be used by the worker that runs the function. `cancelled` may be null if the call cannot be
  // cancelled.
  FunctionCall(std::shared_ptr<FunctionHost> host, rpc::PeerInfo caller, absl::Time deadline,
               FunctionHost::ContextPtr context, std::function<bool()> cancelled);

  // The worker that runs the function.
  const rpc::PeerInfo& self() const { return host_->self(); }
  const rpc::PeerInfo& caller() const { return caller_; }
  // The deadline of the call on this worker's clock. InfiniteFuture if it has none.
  absl::Time deadline() const { return deadline_; }
  // Whether the call was made in a distributed-autograd context.
  bool in_context() const { return context_ != nullptr; }
  // True once the caller has cancelled, the deadline has passed, or the caller's session has ended:
  // nobody waits for the answer any more.
  bool cancelled() const { return cancelled_ != nullptr && cancelled_(); }

  // Call other workers, as psd::Worker does. `callee` is the name of a worker of the job; it may be
  // the caller, or this worker itself. Callbacks of the future may wait.
  // Errors: those of psd::Worker's calls; DEADLINE_EXCEEDED at deadline().
  Future<Values> RpcAsync(const std::string& callee, const CallTarget& target,
                          Values arguments) const;
  absl::StatusOr<Values> RpcSync(const std::string& callee, const CallTarget& target,
                                 Values arguments) const;
  // Runs `target` on `callee`, leaves the first result there, and returns a reference to it at
  // once.
  absl::StatusOr<rref::RRef> Remote(const std::string& callee, const CallTarget& target,
                                    Values arguments) const;

  // Fetch values, in the order of `rrefs`, from any owners. Errors: as above, and the errors of
  // values that could not be made.
  Future<Values> ToHereAsync(const std::vector<rref::RRef>& rrefs) const;
  absl::StatusOr<Values> ToHere(const std::vector<rref::RRef>& rrefs) const;

  // Keeps `value` on this worker and returns a reference to it, which the function may answer with.
  // The value lives as long as any worker holds a reference to it. With `requires_grad` it is a
  // parameter, for which gradients are collected.
  // Errors: RESOURCE_EXHAUSTED if the worker's memory is full.
  absl::StatusOr<rref::RRef> Keep(store::Value value, bool requires_grad = false) const;

 private:
  std::shared_ptr<FunctionHost> host_;
  rpc::PeerInfo caller_;
  absl::Time deadline_;
  FunctionHost::ContextPtr context_;  // shared with the call
  std::function<bool()> cancelled_;
};

// Functions of both kinds run on the executor, in the queue of the caller's session. If one throws
// an exception, the call is answered with INTERNAL and the exception's text. A SyncFunction may
// block.
using SyncFunction = std::function<absl::StatusOr<Values>(const FunctionCall&, Values arguments)>;
// An AsyncFunction must return soon. The answer is sent when its future is ready; no thread is held
// meanwhile. Callbacks of futures must not throw.
using AsyncFunction = std::function<Future<Values>(const FunctionCall&, Values arguments)>;

// The functions that a worker offers. A value; it is filled before the worker starts.
class FunctionRegistry {
 public:
  // Errors: ALREADY_EXISTS; INVALID_ARGUMENT for an empty name.
  absl::Status Register(const std::string& name, SyncFunction function);
  absl::Status RegisterAsync(const std::string& name, AsyncFunction function);

  // Registers a function on an object of type T (a psd::Object) that this worker owns. Its first
  // argument is a reference to the object; `method(T&, const FunctionCall&, Values)` gets the
  // object and the other arguments.
  template <typename T, typename F>
  absl::Status RegisterMethod(const std::string& name, F method) {
    return AddMethod(name, Immediate([name, method](const FunctionCall& call,
                                                    Values arguments) -> absl::StatusOr<Values> {
                       PSD_ASSIGN_OR_RETURN(auto object, TakeObject<T>(name, arguments));
                       return method(*object, call, std::move(arguments));
                     }));
  }
  // As above, for an asynchronous method. `method` gets the object as a std::shared_ptr<T>, and
  // must keep it until it is done.
  template <typename T, typename F>
  absl::Status RegisterAsyncMethod(const std::string& name, F method) {
    return AddMethod(name, [name, method](const FunctionCall& call, Values arguments) {
      auto object = TakeObject<T>(name, arguments);
      if (!object.ok()) return Future<Values>::Ready(object.status());
      return method(*std::move(object), call, std::move(arguments));
    });
  }

  // A registered function. `run` does not throw, and returns a valid future.
  struct Offered {
    AsyncFunction run;
    bool on_object = false;  // its first argument is an object whose value must have been made
  };
  // Errors: NOT_FOUND naming the nearest known function.
  absl::StatusOr<Offered> Find(const std::string& name) const;

 private:
  absl::Status Add(const std::string& name, AsyncFunction function, bool on_object);
  absl::Status AddMethod(const std::string& name, AsyncFunction method) {
    return Add(name, std::move(method), /*on_object=*/true);
  }
  // Makes an AsyncFunction whose result is there when it returns.
  static AsyncFunction Immediate(SyncFunction function);
  // Wraps a function so that it does not throw and its future is valid.
  static AsyncFunction Guarded(AsyncFunction function);
  // Removes the first argument and returns the object that it refers to.
  static absl::StatusOr<std::shared_ptr<store::Object>> TakeAnyObject(const std::string& method,
                                                                      Values& arguments);
  template <typename T>
  static absl::StatusOr<std::shared_ptr<T>> TakeObject(const std::string& method,
                                                       Values& arguments) {
    PSD_ASSIGN_OR_RETURN(auto any, TakeAnyObject(method, arguments));
    auto object = std::dynamic_pointer_cast<T>(any);
    if (object == nullptr) return NoSuchMethod(method, *any);
    return object;
  }
  static absl::Status NoSuchMethod(const std::string& method, const store::Object& object);

  std::map<std::string, Offered> functions_;
};

}  // namespace psd::services
