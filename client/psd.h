#pragma once

// psd for trainers: the whole public face, in reading order.
//
//   1. Worker        a member of the job: holds references, calls functions on owners
//   2. Function      what is called: a program of operators, or a registered C++ function
//   3. Context       one distributed-autograd pass
//   4. DistributedOptimizer   steps parameters where they live
//
// A trainer in outline:
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
#include "core/store/value.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"
#include "core/worker/functions.h"
#include "core/worker/rows_query.h"
#include "core/worker/typed_function.h"

namespace psd {

namespace worker {
class Runtime;
}

using program::Program;          // operators as data; see program::ProgramBuilder
using program::ProgramBuilder;   // builds one call by call
using rref::RRef;                // a counted reference to a value on its owner
using store::Value;              // what calls take and return
using worker::FunctionCall;      // what a registered function is told beside its arguments
using worker::FunctionRegistry;  // registered functions that this worker offers
using worker::ReadValue;         // a Value as a C++ type: ReadValue<double>(results[0])
using worker::ReadValues;        // all of a call's arguments or results, each as its type
using worker::RowsQuery;         // which rows of which table
using worker::Typed;             // a C++ function as one that can be registered
using worker::TypedMethod;       // the same for a member function
using Values = std::vector<Value>;

// ---------------------------------------------------------------------------------------------
// Creation programs: what GetOrCreate runs on the owner when the name is new.

// Every element uniform in [low, high), the same on every machine for the same seed.
Program Uniform(const Shape& shape, double low, double high, uint64_t seed,
                DType dtype = DType::kF32);
// Every element from a normal distribution, the same on every machine for the same seed.
Program Normal(const Shape& shape, double mean, double deviation, uint64_t seed,
               DType dtype = DType::kF32);
Program Zeros(const Shape& shape, DType dtype = DType::kF32);
Program Full(const Shape& shape, double value, DType dtype = DType::kF32);

// ---------------------------------------------------------------------------------------------
// Function: what is called.

// A value; cheap to copy. A program is sent once per owner and then named by its fingerprint.
class Function {
 public:
  Function(Program program);  // NOLINT: a program is a function
  // One operator ("add", "matmul", "relu", …) on the call's arguments: the shortest program.
  static Function Operator(std::string name, int arguments, Attributes attributes = {});
  // A C++ function that the callee has registered.
  static Function Registered(std::string name);

  const std::shared_ptr<const Program>& program() const { return program_; }
  const program::Fingerprint& fingerprint() const { return fingerprint_; }  // the program's
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
  // The owners to attach to. Starting fails unless all of them answer within `start_timeout`; while
  // it waits, it logs every few seconds for whom and why ("owner_awaited"). An address that is not
  // host:port is INVALID_ARGUMENT at once.
  std::vector<OwnerAddress> owners;
  absl::Duration start_timeout = absl::Seconds(30);
  // False: attaches to the owners without joining the job. It has no rank and counts in no group:
  // for tools that look at a job or save it.
  bool join = true;
  // "host:port" where other workers may reach this one. Empty: not listening; owners call back on
  // the connections opened from here.
  std::string listen;
  // Where others dial this worker: "host:port", or "host" with the port listened on. Required if
  // `listen` is all interfaces (0.0.0.0). Empty: the address listened on.
  std::string advertise;
  // Trainers that the job will have, the same from all of them; 0: they come and go. With it they
  // can wait for each other: barriers, all-gathers, group shutdown.
  uint32_t group_size = 0;
  // Of calls that say nothing else. ZeroDuration: none.
  absl::Duration default_timeout = absl::Seconds(60);
  // Threads for functions that are called here, and as many for callbacks of futures.
  int threads = 2;
  // The most memory that this worker takes for values and for messages under way, in bytes; 0 sets
  // no limit.
  size_t memory_budget_bytes = 0;
  // Leases, retry window, keepalive; see rpc::SessionOptions.
  rpc::SessionOptions session;
  // Functions that others may call here.
  FunctionRegistry functions;
  // Null: warnings and errors go to standard error.
  std::shared_ptr<Logger> logger;
};

class Context;

struct CallOptions {
  // None: WorkerOptions::default_timeout. ZeroDuration: the call may take for ever. A negative one
  // is refused with INVALID_ARGUMENT.
  std::optional<absl::Duration> timeout;
  // The call is recorded in this context, so that gradients can flow back through it, unless it is
  // made under a NoGradGuard. One that was moved from is refused with FAILED_PRECONDITION.
  const Context* context = nullptr;
};

struct ShutdownOptions {
  // How long calls and functions that are under way may go on.
  absl::Duration drain = absl::Seconds(10);
  // Waits first until every trainer of the declared group shuts down too and none of them has a
  // call under way: until then this worker serves on.
  bool with_group = false;
  absl::Duration group_timeout = absl::ZeroDuration();  // ZeroDuration: none
  // References that are still held are an error, not only a warning in the log.
  bool refuse_held_references = false;
};

struct CreateOptions {
  bool requires_grad = false;
  // An embedding table, [rows, width] of f32 or f64: read by LookUpRows, stepped row by row and in
  // place, so that neither ever moves the whole table. Without: a parameter, which moves through
  // versions and is fetched whole.
  bool rows = false;
};

// What a listing says of a named value.
struct ValueInfo {
  std::string name;
  std::string kind;  // "tensor f32[128, 784]", "optimizer/adam", …
  uint64_t version = 0;
  size_t bytes = 0;
};

// One version of a parameter.
struct PulledParameter {
  Tensor elements;
  uint64_t version = 0;
};

// A member of the job. Thread-safe. The destructor leaves at once, without finishing calls.
//
// Errors, for all calls below: UNAVAILABLE (nobody answers there), DEADLINE_EXCEEDED, ABORTED (the
// owner was restarted, or our session there ended), NOT_FOUND (no such worker, value or function),
// INVALID_ARGUMENT, RESOURCE_EXHAUSTED (load or memory; retry later). psd::GetDetail says which
// worker and object, what to do, and whether a mutation's fate is unknown.
class Worker {
 public:
  // Joins: attaches to the owners, gets a rank from the registrar that they name.
  // RESOURCE_EXHAUSTED too if the system refuses a thread, naming what is in use and the limits;
  // nothing stays behind then.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(WorkerOptions options);
  ~Worker();

  const std::string& name() const;
  int rank() const;
  // This worker, one of that name, and all of the job by rank (without a registrar: this one).
  // Info(name) makes the other reachable, if it listens. Errors: NOT_FOUND naming the nearest.
  WorkerInfo Info() const;
  absl::StatusOr<WorkerInfo> Info(const std::string& name);
  absl::StatusOr<std::vector<WorkerInfo>> Infos();
  // The owners that it is attached to.
  std::vector<std::string> owners() const;
  // All owners of the job: those that joined the registrar and listen, else the attached ones.
  // An owner that the registrar's configuration names and that is not there has no address.
  absl::StatusOr<std::vector<OwnerAddress>> JobOwners();

  // ---- values on owners

  // The value called `name` on `owner`, made there by `create` if there is none: of several
  // callers one creates and all get the same.
  // Errors: FAILED_PRECONDITION when it exists with another shape or dtype or requires_grad.
  absl::StatusOr<RRef> GetOrCreate(const std::string& owner, const std::string& name,
                                   const Program& create, CreateOptions options = {});
  // Errors: NOT_FOUND naming the owner and the nearest name there.
  absl::StatusOr<RRef> Lookup(const std::string& owner, const std::string& name);
  // Ends the name; whoever holds an RRef keeps the value.
  absl::Status Drop(const std::string& owner, const std::string& name);
  // Publishes `elements` as the new version of a parameter, or writes every row of a table (each
  // row whole; a lookup meanwhile may see some of them only). Returns the version's number.
  absl::StatusOr<uint64_t> Assign(const RRef& rref, const Tensor& elements);
  // Named values whose name starts with `prefix`, sorted.
  absl::StatusOr<std::vector<ValueInfo>> List(const std::string& owner,
                                              const std::string& prefix = "");

  // Fetches. Tensors arrive as variables; inside a context, those that require grad lead back to
  // their owner. Outside of one, and under a NoGradGuard, they are constants. All RRefs of one
  // owner come in one exchange and, where they are parameters, from between two steps.
  absl::StatusOr<std::vector<Variable>> ToHere(const std::vector<RRef>& rrefs,
                                               const Context& context);
  absl::StatusOr<std::vector<Value>> ToHere(const std::vector<RRef>& rrefs,
                                            const CallOptions& options = {});
  Future<std::vector<Value>> ToHereAsync(const std::vector<RRef>& rrefs,
                                         const CallOptions& options = {});

  // The value behind a reference of this worker's own, without a copy or a message.
  // Errors: FAILED_PRECONDITION on any worker but the owner, naming both and the reference.
  absl::StatusOr<Value> LocalValue(const RRef& rref) const;

  // Parameters as plain tensors, outside of any context, with the versions that they are: what
  // another framework computes with. Its gradients come back by Context::PushGradient.
  // Errors: INVALID_ARGUMENT for what is no parameter.
  absl::StatusOr<std::vector<PulledParameter>> Pull(const std::vector<RRef>& rrefs,
                                                    const CallOptions& options = {});

  // Rows of tables: for each query [the extents of its ids, width]. One exchange per owner; each
  // row is whole, but two rows may stem from before and after one step. Inside a context, rows of
  // tables that require grad lead back: backward sends the gradients of these rows only, those of
  // repeated ids added up. A row that a large query names several times is carried once.
  // Errors: INVALID_ARGUMENT naming the table and the first id that is out of its range.
  absl::StatusOr<std::vector<Variable>> LookUpRows(const std::vector<RowsQuery>& queries,
                                                   const Context& context);
  absl::StatusOr<std::vector<Variable>> LookUpRows(const std::vector<RowsQuery>& queries,
                                                   const CallOptions& options = {});

  // ---- calls

  // Callbacks of futures (OnReady, Then) that this worker, its RRefs and the functions that it runs
  // give out run at once where the result is there already, else on threads of their own. So they
  // may take their time, call, and wait for calls. Up to `threads` of them run side by side, those
  // that wait for a future not counted. They must not shut the worker down.

  // Runs `function` on `callee` (this worker too) and waits for its results. See client/calls.h for
  // waiting for several calls, and for calls through references.
  absl::StatusOr<Values> RpcSync(const Callee& callee, const Function& function,
                                 const Values& arguments, const CallOptions& options = {});
  Future<Values> RpcAsync(const Callee& callee, const Function& function, const Values& arguments,
                          const CallOptions& options = {});
  // Runs it there and leaves the (first) result there; returns at once. Its error, if any, is told
  // by ToHere. A new leaf that requires grad, made by a registered function, is a parameter there:
  // gradients are collected for it, and optimizers step it.
  absl::StatusOr<RRef> Remote(const Callee& callee, const Function& function,
                              const Values& arguments, const CallOptions& options = {});

  // Of calls that say nothing else, from now on. Errors: INVALID_ARGUMENT for a negative one.
  absl::Status SetDefaultTimeout(absl::Duration timeout);
  absl::Duration default_timeout() const;

  // ---- together: among `members`, this worker included; empty: the declared group of trainers

  // Returns when all of them have come to the barrier of that name.
  // Errors: DEADLINE_EXCEEDED naming who was missing; UNAVAILABLE or ABORTED naming who left or
  // was restarted; NOT_FOUND; FAILED_PRECONDITION (no registrar, no declared group).
  absl::Status Barrier(const std::string& name, const std::vector<std::string>& members = {},
                       absl::Duration timeout = absl::ZeroDuration());
  // A barrier to which all bring a value, and from which each takes those of all, by name. For
  // small things: at most 1 MiB from each, and no references.
  absl::StatusOr<std::map<std::string, Value>> AllGather(
      const std::string& name, const Value& value, const std::vector<std::string>& members = {},
      absl::Duration timeout = absl::ZeroDuration());

  // ---- the rest

  // A new distributed-autograd context, released when the returned scope ends.
  absl::StatusOr<Context> NewContext();

  // Finishes what is pending for at most `drain`, releases forks, ends the sessions. Further calls
  // fail with FAILED_PRECONDITION.
  absl::Status Shutdown(absl::Duration drain = absl::Seconds(10));
  // The worker is shut down whatever is returned: the group's error, or FAILED_PRECONDITION for
  // references that are held.
  absl::Status Shutdown(const ShutdownOptions& options);

  // For what this face does not show.
  worker::Runtime& runtime();

 private:
  friend class Context;
  friend class DistributedOptimizer;
  struct State;
  explicit Worker(std::shared_ptr<State> state);
  // As LookUpRows, with every id as often as it is given.
  absl::StatusOr<std::vector<Variable>> LookUpEach(const std::vector<RowsQuery>& queries,
                                                   const CallOptions& options);
  std::shared_ptr<State> state_;  // shared with contexts and optimizers, which may outlive it
};

// ---------------------------------------------------------------------------------------------
// Context

// One distributed-autograd pass: records the calls made in it, then collects gradients. Move-only
// scope; leaving it releases what it holds on every worker. Thread-safe but for moving.
class Context {
 public:
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  ~Context();

  // Returns no id (GlobalId::IsNone) if this context was moved from. All other calls on such a
  // context fail with FAILED_PRECONDITION.
  GlobalId id() const;

  // Gradients of the sum of `roots` (one element each) with respect to everything that requires
  // grad, added up in this context on the workers that own it. May be repeated; accumulates.
  // Errors: see dist_autograd::DistAutograd::Backward.
  absl::Status Backward(const std::vector<Variable>& roots,
                        const dist_autograd::BackwardOptions& options = {});
  // From a value that any worker owns. Errors: INVALID_ARGUMENT for what is no tensor.
  absl::Status Backward(const RRef& root, const dist_autograd::BackwardOptions& options = {});

  // ---- gradients from outside, for a trainer whose forward runs in another framework

  // Backward from tensors that came in this context: parameters that were pulled, results of
  // calls. `gradients`, one for each output and of its shape and dtype, take the place of 1. They
  // belong to the versions that were pulled, whatever was stepped since.
  // Errors: as Backward; INVALID_ARGUMENT naming the output that a gradient does not fit.
  absl::Status BackwardFrom(const std::vector<Variable>& outputs,
                            const std::vector<Tensor>& gradients,
                            const dist_autograd::BackwardOptions& options = {});
  // Without any tensor of this context: adds a gradient computed from `version` of the parameter
  // (see Worker::Pull; 0: unknown) to what is collected on its owner. Applied once, however often
  // it is sent.
  // Errors: INVALID_ARGUMENT unless it has the parameter's shape and dtype and the parameter
  // requires grad and has reached that version.
  absl::Status PushGradient(const RRef& parameter, const Tensor& gradient, uint64_t version);

  // The gradient of a leaf of this trainer, or of a parameter, fetched from its owner.
  // Errors: NOT_FOUND when none has reached it, or this context never reached its owner;
  // INVALID_ARGUMENT for what collects none: a constant, the result of an operation, a value that
  // requires no grad.
  absl::StatusOr<Tensor> Gradient(const Variable& leaf) const;
  absl::StatusOr<Tensor> Gradient(const RRef& parameter) const;
  // The same where it is sparse: of rows, and of a parameter of which rows were looked up and
  // nothing else was used. Ids may repeat.
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

// Formulas and defaults are PyTorch's.
struct Sgd {
  double lr = 0.01;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool stochastic_rounding = false;  // of bf16 parameters, which it needs
  operator OptimizerSpec() const;    // NOLINT: options are a spec
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
  double lr = 1e-3;  // as PyTorch's functional Adamax; its class has 0.002
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

// For rows only.
struct SparseAdam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool maximize = false;
  operator OptimizerSpec() const;  // NOLINT
};

// For rows only: one accumulator per row, the mean of the squares of its gradient (FBGEMM's,
// TorchRec's).
struct RowwiseAdagrad {
  double lr = 0.01;
  double lr_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  operator OptimizerSpec() const;  // NOLINT
};

// Parameters that share options: those of the optimizer's spec, but for `options`.
struct ParameterGroup {
  std::vector<RRef> parameters;
  std::map<std::string, double> options;
};

// What holds for a whole optimizer. All who share a named one must give the same.
//   schedule      of the learning rate, by the number of accepted steps, which the owner of
//                 the smallest name counts: Schedule::Cosine(10'000).WithWarmup(500). With several
//                 owners it costs a step one exchange more.
//   loss_scaling  LossScaling::Dynamic(): see StepOptions::loss_scale. One exchange more.
//   mode          when a step is applied. UpdateMode::Asynchronous(): by itself, as it comes.
//                 Synchronous(n): in rounds of one step of each of n trainers, applied as one (the
//                 mean of their gradients, or the sum); every step waits for its round, and who
//                 dies or leaves is dropped from it. BoundedStaleness(s): by itself, but a
//                 gradient of a version more than s behind is refused with FAILED_PRECONDITION,
//                 and so is one of an unknown version unless the mode is made
//                 WithUnknownVersions(); with WhenStale::kWait a step also waits while it would
//                 make gradients too old that other trainers still compute (with several owners
//                 one exchange more). A trainer takes part, and is waited for, from its first step
//                 until it destroys its DistributedOptimizer or its sessions end.
using optim::LossScaling;
using optim::OptimizerSettings;
using optim::Schedule;
using optim::UpdateMode;

// How a trainer comes to a named optimizer.
struct JoinOptions {
  // Where only a part of the optimizer is left, because an owner was restarted and lost its part,
  // all of it begins afresh: without state, and at step 0 on every owner. The parameters stay as
  // they are. Where all of it is there this changes nothing, so every trainer of a job may say it;
  // nor does it while a load has not finished, or when the parameters given are on other owners.
  bool start_afresh = false;
};

// Of one step.
struct StepOptions {
  // Every gradient element is clamped to +-clip_value. At least 0.
  double clip_value = std::numeric_limits<double>::infinity();
  // All gradients together are scaled down so that their norm over all owners is at most this
  // (torch.nn.utils.clip_grad_norm_; before clip_value). Exact; costs one exchange more. A NaN or
  // infinity among them is refused with INVALID_ARGUMENT before anything has changed.
  double clip_norm = std::numeric_limits<double>::infinity();
  // What the loss was multiplied by: gradients are divided by it. 0: it was not. Required with
  // loss scaling (give what LossScale() said before Backward): then a step with a NaN or infinity
  // on any owner is skipped on all of them, and the scale moves as torch.cuda.amp.GradScaler's.
  double loss_scale = 0;
  // Of several contexts: the mean of their gradients instead of the sum.
  bool mean_of_contexts = false;
  // No owner applies the step before every owner has checked it (one exchange more).
  bool check_first = false;
  // As CallOptions::timeout, for each exchange. A synchronous step waits for the other trainers.
  std::optional<absl::Duration> timeout;
};

// What one owner said to a step.
struct OwnerOutcome {
  std::string owner;
  absl::Status status;          // OK: the step is applied there, once
  bool fate_unknown = false;    // it may or may not have been applied
  bool held_back = false;       // not applied only because another owner's check failed
  uint64_t steps_accepted = 0;  // by that owner, all trainers together
  int parameters_stepped = 0;
  uint64_t max_staleness = 0;  // versions between those that gradients belong to and those stepped
  int trainers = 0;            // whose gradients were applied: several in a synchronous round
};

struct StepAttempt;

struct StepOutcome {
  GlobalId step_id;
  absl::Status refused;              // why no owner was asked to apply anything; OK: they were
  std::vector<OwnerOutcome> owners;  // in order of first appearance among the parameters
  bool skipped = false;      // a scaled loss had overflowed: applied nowhere, and that is fine
  double gradient_norm = 0;  // before clipping, if it was measured
  // For RetryFailed; shared with copies.
  std::shared_ptr<const StepAttempt> attempt;
  // OK if all are; otherwise one error that names every owner that failed and what was applied.
  absl::Status status() const;
};

// An optimizer over parameters on any number of owners; each owner keeps and steps its part.
// Thread-safe; concurrent steps that share a parameter are serial on its owner.
class DistributedOptimizer {
 public:
  // Named: every trainer that gives the same name, parameters, options and settings shares one
  // optimizer and its state. It lives until the name is dropped.
  // Errors: FAILED_PRECONDITION when the name exists with other parameters, options or settings, or
  // when only a part of the optimizer is left: an owner was restarted, or its part was dropped. The
  // error names the owner and what brings the rest back (see also JoinOptions). INVALID_ARGUMENT
  // for an unknown or out-of-range option, no parameters at all, an RRef that is no parameter, or
  // one given twice. All owners' errors are reported.
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const std::string& name, const OptimizerSpec& spec,
      const std::vector<RRef>& parameters, const OptimizerSettings& settings = {},
      const JoinOptions& join = {});
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const std::string& name, const OptimizerSpec& spec,
      const std::vector<ParameterGroup>& groups, const OptimizerSettings& settings = {},
      const JoinOptions& join = {});
  // Private to its creator: it ends with this object or with the worker's sessions.
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const OptimizerSpec& spec, const std::vector<RRef>& parameters,
      const OptimizerSettings& settings = {});
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      Worker& worker, const OptimizerSpec& spec, const std::vector<ParameterGroup>& groups,
      const OptimizerSettings& settings = {});
  ~DistributedOptimizer();

  // Applies the gradients of `context` on every owner, in parallel, and waits for all of them.
  // Parameters without a gradient are untouched. Nothing is applied twice, however often a message
  // is sent.
  // Errors: FAILED_PRECONDITION, and nothing is applied, when one of several owners was restarted
  // since (see Create), or when the optimizer was loaded or begun afresh: create it again.
  absl::Status Step(const Context& context, const StepOptions& options = {}) {
    return StepDetailed(context, options).status();
  }
  StepOutcome StepDetailed(const Context& context, const StepOptions& options = {});
  // One step with the gradients of several contexts added up: accumulation.
  StepOutcome StepDetailed(const std::vector<const Context*>& contexts,
                           const StepOptions& options = {});
  // The same step again, with its id, where it failed: what was applied stays as it is, and an
  // owner that had applied it without our knowing does nothing. The contexts must still live.
  StepOutcome RetryFailed(const StepOutcome& outcome);

  // What to multiply the next loss by; 1 without loss scaling.
  double LossScale() const;

  // Changes options of one group (in the order of creation) for all who share the optimizer, from
  // their next step on. With a schedule, "lr" is the rate that it starts from.
  // Errors: INVALID_ARGUMENT (no such group, unknown or out-of-range option); FAILED_PRECONDITION
  // when the change would need other optimizer state than was reserved (momentum from 0, say).
  absl::Status SetOptions(size_t group, const std::map<std::string, double>& changes);
  // The options of one group as they are now.
  absl::StatusOr<OptimizerSpec> Options(size_t group = 0) const;

  // The first group's at creation, defaults included.
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
