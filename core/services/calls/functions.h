#pragma once

// Registered functions: C++ functions that a daemon or a trainer offers under a name. Clients never
// send code.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "core/dist_autograd/context.h"
#include "core/rpc/rpc_agent.h"
#include "core/store/value.h"

namespace psd::worker {
class Runtime;
}  // namespace psd::worker

namespace psd::services {

// The information that a function gets beside its arguments.
struct FunctionCall {
  worker::Runtime& runtime;  // the worker that runs the function
  rpc::PeerInfo caller;
  absl::Time deadline;                                   // on the worker's clock
  std::shared_ptr<dist_autograd::ContextState> context;  // null outside a context
  std::function<bool()> cancelled;
};

using store::Values;
// Functions of both kinds run on the executor, in the queue of the caller's session. An exception
// that one throws is answered as INTERNAL, with its text.
// A Function may block.
using Function = std::function<absl::StatusOr<Values>(const FunctionCall&, Values arguments)>;
// An AsyncFunction must return soon. The answer is sent when its future is ready; no thread is held
// meanwhile. Callbacks of futures must not throw.
using AsyncFunction = std::function<Future<Values>(const FunctionCall&, Values arguments)>;

// The functions that a worker offers. A value; it is filled before the worker starts.
class FunctionRegistry {
 public:
  // Errors: ALREADY_EXISTS; INVALID_ARGUMENT for an empty name.
  absl::Status Register(const std::string& name, Function function);
  absl::Status RegisterAsync(const std::string& name, AsyncFunction function);

  // Registers a function on an object of type T (a store::Object) that this worker owns. Its first
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
  // The asynchronous form. `method` gets the object as a std::shared_ptr<T>, to keep until it is
  // done.
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
    bool on_object = false;  // the value of its first argument, an object, must have been made
  };
  // Errors: NOT_FOUND naming the nearest known function.
  absl::StatusOr<Offered> Find(const std::string& name) const;

 private:
  absl::Status Add(const std::string& name, AsyncFunction function, bool on_object);
  absl::Status AddMethod(const std::string& name, AsyncFunction method) {
    return Add(name, std::move(method), /*on_object=*/true);
  }
  // Wraps a function whose result is there when it returns.
  static AsyncFunction Immediate(Function function);
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
