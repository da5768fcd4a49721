#pragma once

// Registered functions: typed C++ that a daemon or a trainer offers under a name. Never code that
// a client sent.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/dist_autograd/context.h"
#include "core/rpc/rpc_agent.h"
#include "core/store/value.h"

namespace psd::worker {

class Runtime;

// What a function is told beside its arguments.
struct FunctionCall {
  Runtime& runtime;  // of the worker that runs it
  rpc::PeerInfo caller;
  absl::Time deadline;                                   // on the worker's clock
  std::shared_ptr<dist_autograd::ContextState> context;  // null outside one
  std::function<bool()> cancelled;
};

using Values = std::vector<store::Value>;
// Runs on the executor and may block.
using Function = std::function<absl::StatusOr<Values>(const FunctionCall&, Values arguments)>;
// Returns at once; the answer goes out when the future is ready. Holds no thread meanwhile.
using AsyncFunction = std::function<Future<Values>(const FunctionCall&, Values arguments)>;

// A value; filled before the worker starts.
class FunctionRegistry {
 public:
  // Errors: ALREADY_EXISTS; INVALID_ARGUMENT for an empty name.
  absl::Status Register(const std::string& name, Function function);
  absl::Status RegisterAsync(const std::string& name, AsyncFunction function);

  // Errors: NOT_FOUND naming the nearest known function.
  absl::StatusOr<AsyncFunction> Find(const std::string& name) const;

 private:
  std::map<std::string, AsyncFunction> functions_;
};

}  // namespace psd::worker
