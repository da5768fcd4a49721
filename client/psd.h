#pragma once

// The public interface for trainers. Its parts, in reading order:
//
//   1. Function               a program of operators, or a registered C++ function
//   2. Worker                 a member of the job: creates and fetches values on owners, calls them
//   3. Context                one distributed-autograd pass
//   4. DistributedOptimizer   steps parameters on the owners that hold them
//
// An owner is a worker that holds parameters: a psd daemon. A trainer pulls parameters from owners,
// computes a loss, runs backward, and asks the owners to step. Many trainers may share parameters
// and optimizers. A trainer in outline:
//
//   psd::WorkerOptions options;
//   options.name = "trainer0";
//   options.owners = {{"owner0", "127.0.0.1:7071"}};
//   PSD_ASSIGN_OR_RETURN(auto worker, psd::Worker::Start(options));
//   psd::CreateOptions parameter;
//   parameter.requires_grad = true;
//   PSD_ASSIGN_OR_RETURN(psd::RRef w, worker->GetOrCreate("owner0", "w",
//       psd::Uniform({10, 784}, -0.03, 0.03, /*seed=*/1), parameter));
//   psd::Adam adam;
//   adam.lr = 1e-3;
//   PSD_ASSIGN_OR_RETURN(auto optimizer,
//       psd::DistributedOptimizer::Create(*worker, "main", adam, {w}));
//   for (const Batch& batch : batches) {
//     PSD_ASSIGN_OR_RETURN(psd::Context context, worker->NewContext());
//     PSD_ASSIGN_OR_RETURN(auto parameters, worker->ToHere({w}, context));
//     psd::Variable loss = psd::CrossEntropy(psd::Linear(batch.x, parameters[0]), batch.y);
//     PSD_RETURN_IF_ERROR(context.Backward({loss}));
//     PSD_RETURN_IF_ERROR(optimizer->Step(context));
//   }
//   PSD_RETURN_IF_ERROR(worker->Shutdown());
//
// Tensors (psd::Tensor), differentiable operators on variables (psd::Linear, psd::Relu, …) and
// errors (absl::Status, psd::GetDetail) come from the headers included here.

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/worker_info.h"
#include "core/autograd/functions/functions.h"
#include "core/autograd/variable.h"
#include "core/base/future.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_config.h"
#include "core/program/program.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref.h"
#include "core/services/calls/functions.h"
#include "core/services/calls/typed_function.h"
#include "core/services/rows/rows_query.h"
#include "core/store/value.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"

namespace psd {

namespace worker {
class Runtime;
}

using program::Program;            // a graph of operators that an owner can run; see ProgramBuilder
using program::ProgramBuilder;     // builds a Program, one operator call at a time
using rref::RRef;                  // a counted reference to a value on its owner
using services::FunctionCall;      // passed to a registered function: tells who called it, and more
using services::FunctionRegistry;  // the registered functions that this worker offers
using services::ReadValue;         // converts a Value to a C++ type: ReadValue<double>(results[0])
using services::ReadValues;        // converts all arguments or results of a call
using services::RowsQuery;         // a table and the ids of the rows that are wanted
using services::Typed;             // makes a C++ function one that can be registered
using services::TypedMethod;       // the same for a member function
using store::Value;                // an argument or result: tensor, number, string, list, RRef, …
using Values = std::vector<Value>;  // the arguments or the results of a call

// ---------------------------------------------------------------------------------------------
// Creation programs: programs without inputs and with one result. GetOrCreate runs one on the owner
// to make a value that does not exist yet.

// Every element is uniform in [low, high). The same seed gives the same elements on every machine.
Program Uniform(const Shape& shape, double low, double high, uint64_t seed,
                DType dtype = DType::kF32);
// Every element is from a normal distribution. The same seed gives the same elements everywhere.
Program Normal(const Shape& shape, double mean, double deviation, uint64_t seed,
               DType dtype = DType::kF32);
Program Zeros(const Shape& shape, DType dtype = DType::kF32);
Program Full(const Shape& shape, double value, DType dtype = DType::kF32);

// ---------------------------------------------------------------------------------------------
// Function

// A function that a worker can be asked to run: a program, or a C++ function registered there. A
// value that is cheap to copy. A program travels to each owner once; later calls send only its
// fingerprint.
class Function {
 public:
  Function(Program program);  // NOLINT: a program is a function
  // A program of one operator ("add", "matmul", "relu", …) that takes the call's arguments as its
  // inputs. `arguments` is their number.
  static Function Operator(std::string name, int arguments, Attributes attributes = {});
  // A C++ function that the callee has registered under `name` (see WorkerOptions::functions). A
  // call fails with NOT_FOUND if the callee has none of that name.
  static Function Registered(std::string name);

  const std::shared_ptr<const Program>& program() const { return program_; }
  const program::Fingerprint& fingerprint() const { return fingerprint_; }  // only for programs
  const std::string& name() const { return name_; }                         // empty for programs

 private:
  Function() = default;
  std::shared_ptr<const Program> program_;  // shared by copies; null for registered functions
  program::Fingerprint fingerprint_;
  std::string name_;
};

// ---------------------------------------------------------------------------------------------
// Worker

struct OwnerAddress {
  std::string name;
  std::string address;  // "10.0.0.5:7071"
};

struct WorkerOptions {
  // Unique in the job: 1 to 127 characters of A-Z a-z 0-9 _ : -
  std::string name;
  // The owners to attach to. Worker::Start fails unless all of them answer within `start_timeout`.
  // Every few seconds it logs which owner it waits for and why ("owner_awaited"). An address that
  // is not host:port fails at once with INVALID_ARGUMENT.
  std::vector<OwnerAddress> owners;
  absl::Duration start_timeout = absl::Seconds(30);
  // If false, the worker attaches to the owners without joining the job: it gets no rank (rank() is
  // 0) and counts in no group. For tools that inspect or save a job.
  bool join = true;
  // The "host:port" at which other workers reach this one. If empty, the worker does not listen;
  // owners call it back on the connections that it opened.
  std::string listen;
  // The address that other workers dial: "host:port", or "host" for the port listened on. Required
  // if `listen` is all interfaces (0.0.0.0). If empty, others dial the address listened on.
  std::string advertise;
  // The number of trainers in the job, which all of them must declare alike. Declared trainers form
  // the group that barriers, all-gathers and group shutdown wait for by default. 0 declares no
  // group: trainers may come and go.
  uint32_t group_size = 0;
  // The timeout of calls that set none of their own. absl::ZeroDuration() means no timeout.
  absl::Duration default_timeout = absl::Seconds(60);
  // The number of threads that run functions which other workers call here. As many more run the
  // callbacks of futures.
  int threads = 2;
  // The most memory that this worker takes for values and for messages under way, in bytes. 0 sets
  // no limit.
  size_t memory_budget_bytes = 0;
  // Whether messages to and from workers of the same host and user go through shared memory, if
  // both ends allow it and it is possible. Otherwise they use the network, and the log says why.
  bool shared_memory = true;
  // Leases, retry window and keepalive; see rpc::SessionOptions.
  rpc::SessionOptions session;
  // The functions that other workers may call here.
  FunctionRegistry functions;
  // If null, warnings and errors go to standard error.
  std::shared_ptr<Logger> logger;
};

class Context;

struct CallOptions {
  // The most time that the call may take. Without a value the worker's default timeout applies;
  // absl::ZeroDuration() means no timeout. A negative timeout fails with INVALID_ARGUMENT.
  std::optional<absl::Duration> timeout;
  // The context that records the call, so that gradients can flow back through it. It is read only
  // while the call is being started. If it is null, or under a NoGradGuard, nothing is recorded. A
  // context that was moved from fails the call with FAILED_PRECONDITION.
  const Context* context = nullptr;
};

struct ShutdownOptions {
  // How long calls and functions that are under way may continue.
  absl::Duration drain = absl::Seconds(10);
  // If true, Shutdown first waits until every trainer of the declared group shuts down too and none
  // of them has a call under way. This worker serves calls until then.
  bool with_group = false;
  // The timeout of the wait for the group. absl::ZeroDuration() means no timeout.
  absl::Duration group_timeout = absl::ZeroDuration();
  // If true, references that are still held make Shutdown return FAILED_PRECONDITION. If false they
  // are only logged.
  bool refuse_held_references = false;
};

struct CreateOptions {
  // Whether gradients are collected for the value. Optimizers step only values that require grad.
  bool requires_grad = false;
  // If true, the value is an embedding table: [rows, width] of f32 or f64, read by LookUpRows and
  // stepped in place, row by row, so that no operation moves the whole table. If false, it is a
  // parameter, which is fetched whole and gets a new version with every step.
  bool rows = false;
  // The device of the owner that holds the value, for example "cuda:0". Other workers that fetch it
  // get its elements on the host. Only floating tensors can be on another device than the CPU.
  // GetOrCreate fails with INVALID_ARGUMENT, naming the owner's devices, if it has no such device.
  std::string device = "cpu";
};

// One named value in a listing.
struct ValueInfo {
  std::string name;
  std::string kind;      // "tensor f32[128, 784]", "optimizer/adam", …
  uint64_t version = 0;  // see Assign
  size_t bytes = 0;
};

// One version of a parameter.
struct PulledParameter {
  Tensor elements;
  uint64_t version = 0;
};

// A member of the job. Thread-safe. The destructor leaves the job at once, without finishing calls.
//
// Errors of all calls below: UNAVAILABLE (nobody answers at the address), DEADLINE_EXCEEDED,
// ABORTED (the owner was restarted, or this worker's session there ended), NOT_FOUND (no such
// worker, value or function), INVALID_ARGUMENT, FAILED_PRECONDITION (this worker was shut down),
// RESOURCE_EXHAUSTED (too much load, or memory is short: retry later). psd::GetDetail says which
// worker and object an error is about, what to do, and whether a change may have been applied all
// the same.
class Worker {
 public:
  // Joins the job: attaches to the owners and gets a rank from the registrar that they name.
  // Errors: also RESOURCE_EXHAUSTED, which names the present use and the limits, if the system
  // refuses a thread. After an error nothing is left behind.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(WorkerOptions options);
  ~Worker();

  const std::string& name() const;
  int rank() const;
  // Returns the name, incarnation and rank of this worker.
  WorkerInfo Info() const;
  // Returns the worker called `name`, and makes it reachable from here if it listens.
  // Errors: NOT_FOUND naming the nearest name.
  absl::StatusOr<WorkerInfo> Info(const std::string& name);
  // Returns all workers of the job by rank; without a registrar only this one.
  absl::StatusOr<std::vector<WorkerInfo>> Infos();
  // Returns the names of the owners that this worker is attached to.
  std::vector<std::string> owners() const;
  // Returns all owners of the job: with a registrar those that have joined and listen, else those
  // that this worker is attached to. The address is empty for an owner that is absent: the
  // registrar's configuration names it, or it had joined and was lost.
  absl::StatusOr<std::vector<OwnerAddress>> JobOwners();

  // ---- values on owners

  // Returns a reference to the value called `name` on `owner`. If there is no such value, the owner
  // makes it by running `create`. If several workers ask at the same time, the value is made once
  // and all get a reference to it.
  // Errors: FAILED_PRECONDITION if the value exists with another shape, dtype or other options.
  absl::StatusOr<RRef> GetOrCreate(const std::string& owner, const std::string& name,
                                   const Program& create, CreateOptions options = {});
  // Returns a reference to an existing value.
  // Errors: NOT_FOUND naming the owner and the nearest name there.
  absl::StatusOr<RRef> Lookup(const std::string& owner, const std::string& name);
  // Removes the name of a value, or of the owner's part of an optimizer. A value lives on as long
  // as any worker holds an RRef to it. An optimizer ends: trainers that still use it are refused.
  absl::Status Drop(const std::string& owner, const std::string& name);
  // Replaces the elements of a parameter by a new version, or writes every row of a table. A lookup
  // that runs meanwhile may see old and new rows, but each row is whole. Returns the number of the
  // new version; an applied step makes a new version too.
  absl::StatusOr<uint64_t> Assign(const RRef& rref, const Tensor& elements);
  // Returns the values on `owner` whose names start with `prefix`, sorted by name.
  absl::StatusOr<std::vector<ValueInfo>> List(const std::string& owner,
                                              const std::string& prefix = "");

  // Fetches values, in the order of `rrefs`. Tensors arrive as variables. In a context, backward
  // sends the gradients of those that require grad back to their owner; without a context, and
  // under a NoGradGuard, they are constants. There is one exchange per owner, and all parameters of
  // one owner come from the same moment between two steps.
  // Errors: INVALID_ARGUMENT if the form that returns variables meets a value that is no tensor.
  absl::StatusOr<std::vector<Variable>> ToHere(const std::vector<RRef>& rrefs,
                                               const Context& context);
  absl::StatusOr<std::vector<Value>> ToHere(const std::vector<RRef>& rrefs,
                                            const CallOptions& options = {});
  Future<std::vector<Value>> ToHereAsync(const std::vector<RRef>& rrefs,
                                         const CallOptions& options = {});

  // Returns a value that this worker itself owns, without a copy or a message. Waits until the
  // value has been made.
  // Errors: FAILED_PRECONDITION if another worker owns it, naming both and the reference.
  absl::StatusOr<Value> LocalValue(const RRef& rref) const;

  // Fetches parameters as plain tensors with the numbers of their versions, for a trainer that
  // computes in another framework. Its gradients come back by Context::PushGradient. Nothing is
  // recorded in a context.
  // Errors: INVALID_ARGUMENT for a value that is no parameter, and if `options` names a context.
  absl::StatusOr<std::vector<PulledParameter>> Pull(const std::vector<RRef>& rrefs,
                                                    const CallOptions& options = {});

  // Fetches rows of tables. The result of a query has the shape of its ids with the table's width
  // as one more, last axis. There is one exchange per owner. Each row is whole, but two rows may be
  // from before and after the same step. In a context, backward sends gradients of these rows only,
  // with those of repeated ids summed, to tables that require grad. A row that a large query names
  // several times travels once.
  // Errors: INVALID_ARGUMENT naming the table and the first id that is out of its range.
  absl::StatusOr<std::vector<Variable>> LookUpRows(const std::vector<RowsQuery>& queries,
                                                   const Context& context);
  absl::StatusOr<std::vector<Variable>> LookUpRows(const std::vector<RowsQuery>& queries,
                                                   const CallOptions& options = {});

  // ---- calls

  // About callbacks (OnReady, Then) of the futures that this worker, its RRefs and its functions
  // return: if the result is there already, a callback runs at once on the thread that calls
  // OnReady or Then; otherwise it runs on a thread that is kept for callbacks. A callback may
  // therefore compute, make calls and wait for them. At most `threads` callbacks run at the same
  // time, not counting those that wait for a future. A callback must not throw (OnReady) and must
  // not shut the worker down. The handover to the thread makes an empty call about a fifth slower
  // if the calls follow each other (docs/architecture.md).

  // Runs `function` on `callee`, which may be this worker, and returns its results. A callee is
  // given by its name, its WorkerInfo or its rank. client/calls.h has helpers that wait for several
  // calls and that call methods of objects.
  absl::StatusOr<Values> RpcSync(const Callee& callee, const Function& function,
                                 const Values& arguments, const CallOptions& options = {});
  Future<Values> RpcAsync(const Callee& callee, const Function& function, const Values& arguments,
                          const CallOptions& options = {});
  // Runs `function` on `callee` and leaves its first result there. Returns a reference to that
  // result at once; if the function fails, ToHere returns its error. If a registered function
  // returns a new leaf that requires grad, the result is a parameter: gradients are collected for
  // it, and optimizers can step it.
  absl::StatusOr<RRef> Remote(const Callee& callee, const Function& function,
                              const Values& arguments, const CallOptions& options = {});

  // Sets the timeout of later calls that set none of their own. absl::ZeroDuration() means no
  // timeout. Errors: INVALID_ARGUMENT for a negative timeout.
  absl::Status SetDefaultTimeout(absl::Duration timeout);
  absl::Duration default_timeout() const;

  // ---- collective operations
  //
  // `members` names the workers that take part and must include this one. If it is empty, all
  // trainers of the declared group take part (WorkerOptions::group_size). absl::ZeroDuration()
  // means no timeout.

  // Returns when all members have called the barrier of that name.
  // Errors: DEADLINE_EXCEEDED naming the members that were missing; UNAVAILABLE or ABORTED naming a
  // member that left or was restarted; NOT_FOUND (a member that has not joined the job);
  // FAILED_PRECONDITION (no registrar, or no declared group).
  absl::Status Barrier(const std::string& name, const std::vector<std::string>& members = {},
                       absl::Duration timeout = absl::ZeroDuration());
  // A barrier to which each member brings a value. Returns the values of all members, by name. A
  // value may have at most 1 MiB and must hold no references. Errors: as Barrier, and
  // INVALID_ARGUMENT for a reference.
  absl::StatusOr<std::map<std::string, Value>> AllGather(
      const std::string& name, const Value& value, const std::vector<std::string>& members = {},
      absl::Duration timeout = absl::ZeroDuration());

  // ---- the rest

  // Opens a distributed-autograd context. It is released when the returned object is destroyed.
  absl::StatusOr<Context> NewContext();

  // Leaves the job: waits at most `drain` for pending calls, releases the references that this
  // worker holds, and ends its sessions. Later calls fail with FAILED_PRECONDITION. May be called
  // again, which does nothing.
  absl::Status Shutdown(absl::Duration drain = absl::Seconds(10));
  // As above, with the choices of ShutdownOptions. The worker is shut down even if an error is
  // returned: that of the wait for the group, or FAILED_PRECONDITION for references that are held.
  absl::Status Shutdown(const ShutdownOptions& options);

  // Returns the runtime below this interface, for uses that the interface does not cover.
  worker::Runtime& runtime();

 private:
  friend class Context;
  friend class DistributedOptimizer;
  struct State;
  explicit Worker(std::shared_ptr<State> state);
  // As LookUpRows, but asks for repeated ids as often as they are given.
  absl::StatusOr<std::vector<Variable>> LookUpEach(const std::vector<RowsQuery>& queries,
                                                   const CallOptions& options);
  std::shared_ptr<State> state_;  // shared with contexts and optimizers, which may outlive it
};

// ---------------------------------------------------------------------------------------------
// Context

// One distributed-autograd pass: records the calls that are made in it, then collects gradients on
// the workers that own the leaves. Make one for each train step. The destructor releases what the
// context holds on every worker. Move-only. Thread-safe, except for moving.
class Context {
 public:
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  ~Context();

  // Returns no id (GlobalId::IsNone) if this context was moved from. All other calls on such a
  // context fail with FAILED_PRECONDITION.
  GlobalId id() const;

  // Computes the gradients of the sum of `roots`, which have one element each, with respect to all
  // leaves that require grad. Each gradient is added to this context on the worker that owns the
  // leaf. Returns when all workers are done. May be repeated; gradients accumulate.
  // Errors: INVALID_ARGUMENT (no roots; a root that has several elements, is a leaf, or does not
  // require grad; a timeout that is not positive); FAILED_PRECONDITION (another pass is running in
  // this context); DEADLINE_EXCEEDED naming the gradients that are missing; and the errors of
  // operators and of the workers that take part.
  absl::Status Backward(const std::vector<Variable>& roots,
                        const dist_autograd::BackwardOptions& options = {});
  // The same from a root that any worker owns. Errors: INVALID_ARGUMENT if it is no tensor.
  absl::Status Backward(const RRef& root, const dist_autograd::BackwardOptions& options = {});

  // ---- gradients from outside, for a trainer whose forward runs in another framework

  // Runs backward from several tensors that came in this context: parameters that ToHere fetched,
  // or results of calls. `gradients` holds the gradient of the loss with respect to each output, of
  // the same shape and dtype, where Backward would start with 1. Gradients of parameters count for
  // the versions that were fetched, even if the owner has stepped since.
  // Errors: as Backward; INVALID_ARGUMENT naming the output that a gradient does not fit.
  absl::Status BackwardFrom(const std::vector<Variable>& outputs,
                            const std::vector<Tensor>& gradients,
                            const dist_autograd::BackwardOptions& options = {});
  // Adds a gradient to those that this context collects on the owner of `parameter`. No tensor of
  // this context is needed. `version` is the version that the gradient was computed from, as
  // Worker::Pull returned it; 0 means unknown. The gradient counts once even if the message is
  // retried.
  // Errors: INVALID_ARGUMENT if its shape or dtype is not the parameter's, if the parameter does
  // not require grad, or if it has not reached that version yet.
  absl::Status PushGradient(const RRef& parameter, const Tensor& gradient, uint64_t version);

  // Returns the gradient that this context has collected for a leaf of this trainer, or fetches
  // that of a parameter from its owner.
  // Errors: NOT_FOUND if no gradient has reached it, or this context never reached its owner;
  // INVALID_ARGUMENT for a value that collects none (a constant, the result of an operation, a
  // value that does not require grad), and for a gradient that is sparse.
  absl::StatusOr<Tensor> Gradient(const Variable& leaf) const;
  absl::StatusOr<Tensor> Gradient(const RRef& parameter) const;
  // Fetches a sparse gradient: that of a table, or of a parameter that was used only by looking up
  // rows. Ids may repeat. Errors: as Gradient; INVALID_ARGUMENT for a gradient that is dense.
  absl::StatusOr<SparseTensor> SparseGradient(const RRef& table) const;

 private:
  friend class Worker;
  friend class DistributedOptimizer;
  absl::Status CheckUsable() const;
  absl::StatusOr<Value> FetchGradient(const RRef& leaf) const;
  Context(std::shared_ptr<Worker::State> worker,
          std::shared_ptr<dist_autograd::ContextState> state);
  std::shared_ptr<Worker::State> worker_;               // shared with the worker
  std::shared_ptr<dist_autograd::ContextState> state_;  // shared with calls in flight
};

// ---------------------------------------------------------------------------------------------
// Optimizers

using optim::OptimizerSpec;

// The options of the optimizers. Formulas, names and defaults are those of torch.optim. Each struct
// converts to the OptimizerSpec that DistributedOptimizer::Create takes. stochastic_rounding is
// accepted for bf16 parameters only: rounding to nearest would lose their small steps.
struct Sgd {
  double lr = 0.01;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT: options are a spec
};

struct Adagrad {
  double lr = 0.01;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct Adamax {
  double lr = 1e-3;  // the default of PyTorch's functional adamax; the class Adamax has 0.002
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct Adadelta {
  double lr = 1;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct RmsProp {
  double lr = 0.01;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

struct Rprop {
  double lr = 0.01;  // the size of the first step
  double etaminus = 0.5;
  double etaplus = 1.2;
  double step_size_min = 1e-6;
  double step_size_max = 50;
  bool maximize = false;
  bool stochastic_rounding = false;
  operator OptimizerSpec() const;  // NOLINT
};

// For tables only: torch.optim.SparseAdam.
struct SparseAdam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool maximize = false;
  operator OptimizerSpec() const;  // NOLINT
};

// For tables only: Adagrad with one accumulator per row, to which the mean of the squares of the
// row's gradient is added. FBGEMM and TorchRec use the same formula.
struct RowwiseAdagrad {
  double lr = 0.01;
  double lr_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  operator OptimizerSpec() const;  // NOLINT
};

// Parameters that share options. The options are those of the optimizer's spec, overridden by
// `options`.
struct ParameterGroup {
  std::vector<RRef> parameters;
  std::map<std::string, double> options;
};

// OptimizerSettings hold for a whole optimizer. All trainers that share a named optimizer must give
// the same settings.
//   schedule      Sets the learning rate by the number of accepted steps, for example
//                 Schedule::Cosine(10'000).WithWarmup(500). The owner with the smallest name counts
//                 the steps. With several owners every step needs one more exchange.
//   loss_scaling  LossScaling::Dynamic() adapts the factor by which trainers multiply their losses;
//                 see StepOptions::loss_scale. Every step needs one more exchange.
//   mode          Says when a step is applied:
//     UpdateMode::Asynchronous()       Each step is applied on its own, as it comes.
//     UpdateMode::Synchronous(n)       Steps are applied in rounds: one step of each of n trainers,
//                                      applied as one, with the mean of their gradients, or the
//                                      sum if UpdateMode::Reduction::kSum is given as well.
//                                      Every step waits for its round. A trainer that dies or
//                                      leaves is dropped from the round. A step over several
//                                      owners needs one more exchange than a step on one.
//     UpdateMode::BoundedStaleness(s)  Each step is applied on its own, but a gradient that was
//                                      computed from a version more than s behind is refused with
//                                      FAILED_PRECONDITION, and so is one of an unknown version
//                                      unless the mode is made WithUnknownVersions(). With
//                                      WhenStale::kWait a step also waits as long as it would make
//                                      gradients too old that other trainers are still computing;
//                                      with several owners that needs one more exchange.
//                 A trainer is a member of the optimizer, and is waited for, from its first step
//                 until it destroys its DistributedOptimizer or its sessions end.
using optim::LossScaling;
using optim::OptimizerSettings;
using optim::Schedule;
using optim::UpdateMode;

// Says how a trainer joins a named optimizer.
struct JoinOptions {
  // If only a part of the optimizer is left, because an owner was restarted and lost its part, then
  // all of it begins afresh: without state, and at step 0 on every owner. The parameters stay as
  // they are. The option has no effect if the optimizer is whole, so every trainer of a job may set
  // it. It also has no effect while a load has not finished, or if the given parameters are on
  // other owners.
  bool start_afresh = false;
};

// The options of one step.
struct StepOptions {
  // Every element of a gradient is clamped to [-clip_value, clip_value]. At least 0.
  double clip_value = std::numeric_limits<double>::infinity();
  // Scales all gradients by one factor so that their common norm, over all owners, is at most this
  // (torch.nn.utils.clip_grad_norm_). Applied before clip_value. Needs one more exchange. A NaN or
  // infinity among the gradients fails the step with INVALID_ARGUMENT before anything has changed.
  double clip_norm = std::numeric_limits<double>::infinity();
  // The factor by which the loss was multiplied; gradients are divided by it. 0 means that the loss
  // was not scaled. An optimizer with loss scaling requires the value that LossScale() returned
  // before Backward. It skips a step with a NaN or infinity on any owner on all owners, and moves
  // the scale by the rules of torch.cuda.amp.GradScaler.
  double loss_scale = 0;
  // For a step with several contexts: applies the mean of their gradients instead of the sum.
  bool mean_of_contexts = false;
  // If true, no owner applies the step before every owner has checked it. Needs one more exchange.
  bool check_first = false;
  // The timeout of each exchange, as CallOptions::timeout. A synchronous step waits for the other
  // trainers within it.
  std::optional<absl::Duration> timeout;
};

// The result of one step on one owner.
struct OwnerOutcome {
  std::string owner;
  absl::Status status;          // OK if the step was applied there, or had nothing to do there
  bool fate_unknown = false;    // the step may or may not have been applied
  bool held_back = false;       // not applied only because another owner's check failed
  uint64_t steps_accepted = 0;  // so far, by that owner, from all trainers together
  int parameters_stepped = 0;   // in this step, on that owner
  // The most versions that a parameter had moved on since a gradient was computed from it.
  uint64_t max_staleness = 0;
  int trainers = 0;  // the number of trainers whose gradients were applied: several in a round
};

struct StepAttempt;

struct StepOutcome {
  GlobalId step_id;
  absl::Status refused;              // an error if no owner was asked to apply the step, saying why
  std::vector<OwnerOutcome> owners;  // in order of first appearance among the parameters
  bool skipped = false;      // applied on no owner because a scaled loss overflowed; not an error
  double gradient_norm = 0;  // before clipping; measured for clip_norm and loss scaling only
  // For RetryFailed; shared with copies.
  std::shared_ptr<const StepAttempt> attempt;
  // Returns OK if the step succeeded everywhere. Otherwise one error names every owner that failed
  // and the owners where the step was applied.
  absl::Status status() const;
};

// An optimizer over parameters on any number of owners. Each owner keeps the state of its own
// parameters and steps them. Thread-safe. Steps that share a parameter are applied one after the
// other on its owner.
class DistributedOptimizer {
 public:
  // Creates or joins a named optimizer. All trainers that give the same name, parameters, options
  // and settings share one optimizer and its state, which live until the name is dropped on the
  // owners.
  // Errors: FAILED_PRECONDITION if the name exists with other parameters, options or settings, or
  // if a part of the optimizer is missing because its owner was restarted or the part was dropped.
  // The error names that owner and says how to restore the part (see also JoinOptions).
  // INVALID_ARGUMENT for an unknown or out-of-range option, no parameters at all, an RRef that is
  // no parameter, or a parameter that is given twice. The errors of all owners are reported.
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const std::string& name, const OptimizerSpec& spec,
      const std::vector<RRef>& parameters, const OptimizerSettings& settings = {},
      const JoinOptions& join = {});
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const std::string& name, const OptimizerSpec& spec,
      const std::vector<ParameterGroup>& groups, const OptimizerSettings& settings = {},
      const JoinOptions& join = {});
  // Creates an optimizer that only this object uses. Its state ends with this object or with the
  // worker's sessions.
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const OptimizerSpec& spec, const std::vector<RRef>& parameters,
      const OptimizerSettings& settings = {});
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const OptimizerSpec& spec, const std::vector<ParameterGroup>& groups,
      const OptimizerSettings& settings = {});
  ~DistributedOptimizer();

  // Applies the gradients of `context` on all owners in parallel, and waits for them. Parameters
  // without a gradient stay untouched. A retried message is not applied twice.
  // Errors: FAILED_PRECONDITION, with nothing applied, if one of several owners was restarted since
  // Create, or if the optimizer was loaded from a save or begun afresh; create it again then. Also
  // the errors of the settings' mode. A step that fails on some owners may have been applied on
  // others: StepDetailed tells, and RetryFailed tries again.
  absl::Status Step(const Context& context, const StepOptions& options = {}) {
    return StepDetailed(context, options).status();
  }
  StepOutcome StepDetailed(const Context& context, const StepOptions& options = {});
  // Takes one step with the sum of the gradients of several contexts (gradient accumulation).
  StepOutcome StepDetailed(const std::vector<const Context*>& contexts,
                           const StepOptions& options = {});
  // Repeats a step on the owners where it failed. Because it keeps the id of the step, an owner
  // that had applied the step, although its answer was lost, does not apply it again. The contexts
  // of the step must still exist.
  StepOutcome RetryFailed(const StepOutcome& outcome);

  // Returns the factor to multiply the next loss by. 1 without loss scaling.
  double LossScale() const;

  // Changes options of one group for all trainers that share the optimizer, from the next step on.
  // `group` counts from 0 in the order of creation. With a schedule, "lr" is the rate from which
  // the schedule computes.
  // Errors: INVALID_ARGUMENT (no such group, unknown or out-of-range option); FAILED_PRECONDITION
  // if the change needs optimizer state that was not created (such as momentum above 0 after 0).
  absl::Status SetOptions(size_t group, const std::map<std::string, double>& changes);
  // Returns the present options of one group.
  absl::StatusOr<OptimizerSpec> Options(size_t group = 0) const;

  // Returns the options of the first group at creation, with every default filled in.
  const OptimizerSpec& spec() const;

 private:
  struct State;
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Make(
      Worker& worker, const std::string& name, const OptimizerSpec& spec,
      const std::vector<ParameterGroup>& groups, const OptimizerSettings& settings,
      const JoinOptions& join);
  explicit DistributedOptimizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace psd
