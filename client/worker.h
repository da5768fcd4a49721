#pragma once

// Part 2 of client/psd.h: a member of the job, which creates, fetches and drops values on owners,
// and calls functions on other workers.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/function.h"
#include "client/worker_info.h"
#include "core/autograd/variable.h"
#include "core/base/future.h"
#include "core/base/log.h"
#include "core/rpc/session_options.h"
#include "core/rref/rref.h"
#include "core/services/rows/rows_query.h"
#include "core/tensor/tensor.h"

namespace psd {

class Device;  // core/base/device.h

namespace carrier {
class Carrier;
}
namespace worker {
class Runtime;
}

using rref::RRef;           // a counted reference to a value on its owner
using services::RowsQuery;  // a table and the ids of the rows that are wanted

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
  // This worker's place among the trainers of the group, from 0. The registrar is asked for this
  // rank, and gives it unless another worker has it; otherwise it gives the lowest free one. Owners
  // that are members of the job have ranks too. Without a value the registrar chooses.
  std::optional<uint32_t> group_rank;
  // The timeout of calls that set none of their own. absl::ZeroDuration() means no timeout.
  absl::Duration default_timeout = absl::Seconds(60);
  // The number of threads that run functions which other workers call here. As many more run the
  // callbacks of futures.
  int threads = 2;
  // The most memory that this worker takes for values and for messages under way, in bytes. 0 sets
  // no limit.
  size_t memory_budget_bytes = 0;
  // The devices besides the CPU on which this worker may have values, such as the parameters of a
  // Replica, and compute; by their names. Each has a memory budget of its own, and may belong to
  // several workers of a process. No two have the same name.
  std::vector<std::shared_ptr<Device>> devices;  // shared with their creator
  // Whether messages to and from workers of the same host and user go through shared memory, if
  // both ends allow it and it is possible. Otherwise they use the network, and the log says why.
  bool shared_memory = true;
  // The absolute path of a folder in which workers of this host find each other although their
  // network namespaces differ, such as a volume of several containers. Empty: only workers of one
  // network namespace share memory.
  std::string shared_memory_folder;
  // Whether this worker and workers of the same host read each other's memory on a device that both
  // use in place, instead of copying it. Both ends must allow it and exchange messages through
  // shared memory. A process that reads such memory can also write to it, so allow it only between
  // workers that trust each other. The default is no.
  bool share_devices = false;
  // Leases, retry window and pauses between attempts to connect; see core/rpc/session_options.h.
  // Its `memory` is set by the worker.
  rpc::SessionOptions session;
  // The functions that other workers may call here.
  FunctionRegistry functions;
  // If null, warnings and errors go to standard error.
  std::shared_ptr<Logger> logger;

  // Returns options with what the environment says, as `psctl run` and other launchers set it:
  //
  //   PSD_NAME        name; required
  //   PSD_GROUP_SIZE  group_size: 1 to 65536
  //   PSD_RANK        group_rank: 0 to PSD_GROUP_SIZE - 1, which must be set too
  //   PSD_OWNERS      owners: "owner0=10.0.0.5:7071,owner1=10.0.0.6:7071"
  //   PSD_REGISTRAR   "registrar=127.0.0.1:7071", which becomes the first of the owners, because a
  //                   worker joins the job there, even if it hosts no values
  //   PSD_SHARED_MEMORY_FOLDER  shared_memory_folder: an absolute path
  //
  // At least one of PSD_OWNERS and PSD_REGISTRAR must be set. Everything else has its default.
  // Not to be called while another thread changes the environment.
  // Errors: INVALID_ARGUMENT naming the variable and its value, FAILED_PRECONDITION naming a
  // variable that is not set; both say what to do.
  static absl::StatusOr<WorkerOptions> FromEnvironment();
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
  // Where this worker wants the tensors that the call gives: the name of one of its own devices
  // (WorkerOptions::devices), whatever device their owner has them on. Values of this worker that
  // are there already are not copied. Sparse tensors are always on the host, and so are the
  // gradients of rows that were looked up. A call fails with INVALID_ARGUMENT,
  // naming the devices, before anything is sent if this worker has no such device. It fails with
  // RESOURCE_EXHAUSTED, naming need, budget and use, if the device has no room for its results.
  std::string device = "cpu";
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
  // get its elements on the host. Only floating tensors and embedding tables can be on another
  // device than the CPU.
  // "auto" finds an existing value on any device. A new one is made on the owner's device whose
  // memory budget has the most bytes left; on the CPU if the owner has no other devices, if all are
  // lost, or if no other device can have the value. Creations that run at the same time may choose
  // the same device.
  // GetOrCreate fails with INVALID_ARGUMENT, naming the owner's devices, if it has no such device;
  // with FAILED_PRECONDITION if the value exists on another device; and with RESOURCE_EXHAUSTED,
  // naming need, budget and use, if the device has no room.
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

// The number of references between this worker and others.
struct ReferenceCounts {
  size_t owned = 0;        // values of this worker to which other workers hold references
  size_t forks = 0;        // those references of other workers
  size_t held = 0;         // references of this worker to values of other workers
  size_t unconfirmed = 0;  // of these, the ones that the owner has not confirmed yet
  size_t loans = 0;        // references that are kept for a worker that got them from here
  size_t releases = 0;     // releases that the owners have not answered yet
};

// The number of distributed-autograd contexts on this worker.
struct ContextCounts {
  size_t contexts = 0;        // of this worker, and of others that have reached it
  size_t running_passes = 0;  // backward passes that have not ended
};

// A member of the job. Thread-safe. The destructor leaves the job at once, without finishing calls.
//
// Errors of all calls below: UNAVAILABLE (nobody answers at the address), DEADLINE_EXCEEDED,
// ABORTED (the owner was restarted, or this worker's session there ended), NOT_FOUND (no such
// worker, value or function), INVALID_ARGUMENT, FAILED_PRECONDITION (this worker was shut down),
// PERMISSION_DENIED (the policy of the worker that is asked forbids this; the error names the right
// and the object), RESOURCE_EXHAUSTED (too much load, or memory is short: retry later).
// psd::GetDetail says which worker and object an error is about, what to do, and whether a change
// may have been applied all the same.
class Worker {
 public:
  // Joins the job: attaches to the owners and gets a rank from the registrar that they name.
  // Errors: also RESOURCE_EXHAUSTED, which names the present use and the limits, if the system
  // refuses a thread. After an error nothing is left behind.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(WorkerOptions options);
  ~Worker();

  const std::string& name() const;
  int rank() const;
  // The "host:port" at which other workers reach this one (WorkerOptions::advertise, or else the
  // address listened on, with its port). Empty if this worker does not listen.
  const std::string& address() const;
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
  // Errors: NOT_FOUND naming the owner, and the nearest name there if this worker may list all.
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
  // one owner come from the same moment between two steps. Tensors of an owner on the same host are
  // lent by it: as long as one of them is kept, even a small one, the owner keeps everything that
  // came with it. To keep a part for long, keep its Clone.
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
  // recorded in a context. The tensors are lent as those of ToHere are.
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
  // value may have at most 1 MiB and must hold no references. Errors: as for Barrier, and
  // INVALID_ARGUMENT for a reference.
  absl::StatusOr<std::map<std::string, Value>> AllGather(
      const std::string& name, const Value& value, const std::vector<std::string>& members = {},
      absl::Duration timeout = absl::ZeroDuration());

  // ---- contexts, statistics and shutdown

  // Opens a distributed-autograd context. It is released when the returned object is destroyed.
  absl::StatusOr<Context> NewContext();

  // Return counts of the references and contexts that exist here now. They fall back to zero when
  // nothing is held any more, so a test or a monitor can find leaks with them.
  ReferenceCounts ReferenceStats() const;
  ContextCounts ContextStats() const;

  // Leaves the job: waits at most `drain` for pending calls, releases the references that this
  // worker holds, and ends its sessions. Later calls fail with FAILED_PRECONDITION. May be called
  // again, which does nothing.
  absl::Status Shutdown(absl::Duration drain = absl::Seconds(10));
  // As above, with the given options. The worker is shut down even if an error is returned. The
  // error is that of the wait for the group, or FAILED_PRECONDITION for references that are held.
  absl::Status Shutdown(const ShutdownOptions& options);

 private:
  friend class Context;
  friend class DistributedOptimizer;
  // For client/ and tests: runtime_of.h
  friend worker::Runtime& RuntimeOf(Worker& worker);
  friend absl::StatusOr<std::unique_ptr<Worker>> StartWithCarrier(
      std::shared_ptr<carrier::Carrier> carrier, WorkerOptions options);
  struct State;
  explicit Worker(std::shared_ptr<State> state);
  // As LookUpRows, but does not remove repeated ids from the queries.
  absl::StatusOr<std::vector<Variable>> LookUpEach(const std::vector<RowsQuery>& queries,
                                                   const CallOptions& options);
  std::shared_ptr<State> state_;  // shared with contexts and optimizers, which may outlive it
};

}  // namespace psd
