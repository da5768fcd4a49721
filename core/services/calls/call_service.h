#pragma once

// Calls between workers, of programs and of registered functions.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/autograd/operators.h"
#include "core/base/clock.h"
#include "core/base/device.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/exchange.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/program/program_cache.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/creation_gate.h"
#include "core/rref/gate.h"
#include "core/rref/rref.h"
#include "core/rref/rref_context.h"
#include "core/services/calls/early_starts.h"
#include "core/services/calls/functions.h"
#include "core/store/store.h"
#include "core/store/value.h"

namespace psd::v1 {
class CallTarget;
}  // namespace psd::v1

namespace psd::services {

// Client and server side of the "call.*" methods. Thread-safe.
class CallService {
 public:
  // The parts of the worker that the service uses. They must outlive the service.
  struct Uses {
    rpc::RpcAgent& agent;
    store::Store& store;
    rref::RRefContext& rrefs;
    rref::CreationGate& creations;
    dist_autograd::Exchange& exchange;
    const OperatorRegistry& operators;  // the operators that programs may call
    const program::ProgramLimits& program_limits;
    program::ProgramCache& programs;
    const FunctionRegistry& functions;
    Executor& executor;
    std::shared_ptr<Executor> continuations;  // shared with the futures that users hold
    const Clock& clock;
    Logger& logger;
    std::shared_ptr<FunctionHost> host;  // shared with the functions
  };

  // Registers the methods. The agent must not have started.
  explicit CallService(Uses uses);
  ~CallService();
  CallService(const CallService&) = delete;
  CallService& operator=(const CallService&) = delete;

  // Runs `target` on `callee` and returns the results. A program is sent to each callee once, and
  // is then named by its fingerprint. Tensors in the results are on `device`, where null is the
  // host. Callbacks of the future run on Runtime::continuations.
  Future<store::Values> Run(const std::string& callee, const CallTarget& target,
                            store::Values arguments, const dist_autograd::ContextPtr& context,
                            const rpc::CallOptions& options, Device* device = nullptr);

  // Runs `target` on `callee` and keeps the first result there. Returns an RRef to it, which can be
  // used at once.
  absl::StatusOr<rref::RRef> Remote(const std::string& callee, const CallTarget& target,
                                    store::Values arguments,
                                    const dist_autograd::ContextPtr& context,
                                    const rpc::CallOptions& options);

  struct Activity {
    uint64_t served = 0;  // registered functions that have begun here
    // Functions that have begun here and not ended, and unanswered calls from here.
    uint64_t under_way = 0;
  };
  Activity activity() const { return {served_, under_way_}; }

 private:
  using CallPtr = rpc::CallPtr;
  // The payloads have the arguments and the results.
  using Method = rpc::Declared<rpc::Beside<v1::CallTarget>, rpc::Contents>;
  using Answer = rpc::Answer<rpc::Contents>;
  static const Method kProgram;
  static const Method kRun;
  static const Method kRemote;

  // A call from this worker. It lives until it is answered.
  struct Outgoing {
    const Method* method = nullptr;
    std::string callee;
    CallTarget target;
    store::Values arguments;  // kept so that the forks among them stay alive
    dist_autograd::ContextPtr context;
    rpc::CallOptions options;
    rref::RRef result;  // for kRemote only
    Promise<rpc::Reply> answered;
  };
  // Sends the call from this thread or, if it has arguments on a device, from one that may wait for
  // the device.
  void SendWhereItMayWait(const std::shared_ptr<Outgoing>& call, bool with_program);
  void Send(const std::shared_ptr<Outgoing>& call, bool with_program);
  Future<rpc::Reply> Start(std::shared_ptr<Outgoing> call);
  bool CalleeKnows(const std::string& callee, const program::Fingerprint& fingerprint)
      PSD_EXCLUDES(mutex_);

  // Errors: PERMISSION_DENIED.
  absl::Status MayCall(const rpc::ServerCall& call, const v1::CallTarget& target);
  // Runs the target of a request. `done` is called with the results and the context, on any thread.
  using Done = std::function<void(absl::StatusOr<store::Values>, dist_autograd::ContextPtr)>;
  void Serve(const CallPtr& call, const v1::CallTarget& target, const Done& done);
  void ServeFunction(const CallPtr& call, const std::string& name, const Done& done);
  // Puts `task` into the queue of the caller's session. If the queue is full, `done` gets the
  // error.
  void SubmitUser(const CallPtr& call, const dist_autograd::ContextPtr& context, const Done& done,
                  Task task);
  void RunFunctionHere(const CallPtr& call, const std::string& name, const AsyncFunction& function,
                       dist_autograd::Arguments arguments, const Done& done);
  void FunctionEnded(const CallPtr& call, const std::string& name,
                     const absl::StatusOr<store::Values>& results,
                     const dist_autograd::ContextPtr& context, const Done& done);
  // Ends the call of a function with its results. Those on a device are read by a thread that may
  // wait for the device.
  void Deliver(const CallPtr& call, store::Values results, const dist_autograd::ContextPtr& context,
               const Done& done);
  // Logs the error of a function. Returns it with the names of the function and the worker added.
  absl::Status FunctionFailed(const std::string& name, const rpc::ServerCall& call,
                              const absl::Status& status);
  // Calls `next` when its owner has confirmed every reference among the arguments, or one has
  // failed.
  static void WhenCounted(const dist_autograd::Arguments& arguments,
                          std::function<void(const absl::Status&)> next);
  // Calls `next` when the values of those `rrefs` that this worker owns have been made. Calls it
  // with an error when the call is cancelled.
  void WhenHere(const CallPtr& call, const std::vector<rref::RRef>& rrefs,
                std::function<void(const absl::Status&)> next);
  void ServeProgram(const CallPtr& call, std::shared_ptr<const program::CheckedProgram> program,
                    const Done& done);
  void StartProgram(const CallPtr& call, std::shared_ptr<const program::CheckedProgram> program,
                    const dist_autograd::Arguments& arguments, const Done& done);
  absl::StatusOr<store::Values> RunProgramHere(const rpc::ServerCall& call,
                                               const program::CheckedProgram& program,
                                               absl::Span<const Variable> inputs, bool record);
  absl::StatusOr<std::shared_ptr<const program::CheckedProgram>> FindProgram(
      const std::string& encoded, program::Fingerprint known);
  absl::Status ServeRun(const Answer& answer, rpc::Beside<v1::CallTarget> target);
  absl::Status ServeRemote(const Answer& answer, rpc::Beside<v1::CallTarget> target);
  // Stores the result of "call.remote", or its error, as the value that the caller asked for.
  void Created(const Answer& answer, GlobalId value, GlobalId fork,
               absl::StatusOr<store::Values> results);

  const Uses uses_;
  // Closed by the destructor. Shared with functions that have not ended.
  const std::shared_ptr<rref::Gate> gate_ = std::make_shared<rref::Gate>();
  std::atomic<uint64_t> served_{0};
  std::atomic<uint64_t> under_way_{0};
  // Shared with the functions that have started early and hold a thread.
  const std::shared_ptr<EarlyStarts> early_ = std::make_shared<EarlyStarts>();
  Mutex mutex_;  // leaf
  absl::flat_hash_set<std::pair<std::string, program::Fingerprint>> known_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::services
