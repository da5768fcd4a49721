#pragma once

// Collective operations of trainers: all-reduce, broadcast, all-gather and others, over tensors.
//
//   PSD_ASSIGN_OR_RETURN(auto group, psd::Group::Join(*worker, "ranks"));
//   PSD_ASSIGN_OR_RETURN(psd::Tensor sum, group->AllReduce(gradient));

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/worker.h"
#include "core/base/future.h"
#include "core/services/collectives/collective_call.h"
#include "core/tensor/tensor.h"

namespace psd {

using services::Reduction;  // kSum, kMean, kMin, kMax

struct GroupOptions {
  // The workers of the group in the order of their ranks, the same list from each of them. If it is
  // empty, they are the trainers of the declared group (WorkerOptions::group_size), in the order of
  // their ranks in the job.
  std::vector<std::string> members;
  // The number of ranks that the group must have; 0 to take what `members` or the job says.
  size_t size = 0;
  // The most time that all members may take until they have joined. Must be positive.
  absl::Duration join_timeout = absl::Seconds(60);
  // The most time that a call may take which sets no timeout of its own. Must be positive.
  absl::Duration timeout = absl::Seconds(60);
};

struct CollectiveOptions {
  // The most time that the call may take; absl::ZeroDuration() means that of the group. Longer than
  // the ranks are ever apart: a rank that is late ends the group.
  absl::Duration timeout = absl::ZeroDuration();
  // A name for the call, at most 128 bytes. Ranks that give different names to a call get an error,
  // so names find calls that have the same shape and come in another order.
  std::string label;
};

// A rank's part in a group of workers that compute together. All ranks make the same calls in the
// same order; a call returns when all ranks have made it and its result is there. Several calls may
// be under way (…Async). Workers may be in several groups, also in two over the same workers.
//
// Results have the same bits on all ranks and from run to run: each element is reduced in the order
// of the ranks, whatever its position, the size of the tensor and the carrier. f16 and bf16 are
// summed in f32 and rounded once. Tensors need not be contiguous; results are.
//
// Every call has a deadline. If a rank dies, is late, or calls something else (another operation,
// dtype, shape, root or label), the group has failed: the calls of all ranks that are under way
// fail with an error that names the rank, and so do later ones. A call that is under way when a
// rank dies may have completed on some ranks; the next call fails on these. The survivors go on in
// a group that is built again: Rebuild.
//
// The members must listen (WorkerOptions::listen), unless there is only one.
//
// Errors of all calls: DEADLINE_EXCEEDED (a rank is late), UNAVAILABLE or ABORTED (a rank has died,
// was restarted, or cannot be reached), FAILED_PRECONDITION (the ranks' calls differ; a rank has
// left; the worker was shut down), RESOURCE_EXHAUSTED (memory). GetDetail(status)->worker is the
// name of the worker that is late or dead. INVALID_ARGUMENT for what this rank alone does wrong:
// the call does not count, and the others wait for a right one.
//
// Thread-safe; if several threads make calls, they must agree on the order. The destructor leaves
// the group, as Leave.
class Group {
 public:
  // Joins the group called `name`, which all members do at the same time. Waits for members that
  // have not joined the job yet. Requires a registrar, unless `options` names this worker as the
  // only member. A name may be used again for another group once all members have joined the one
  // before.
  // Errors: DEADLINE_EXCEEDED naming the members that have not come; NOT_FOUND naming one that has
  // not joined the job in that time; UNAVAILABLE or ABORTED naming a member that died meanwhile, or
  // that another member cannot reach; FAILED_PRECONDITION (no registrar, no declared group, a
  // member that does not listen, options that differ between members); INVALID_ARGUMENT.
  static absl::StatusOr<std::shared_ptr<Group>> Join(Worker& worker, const std::string& name,
                                                     const GroupOptions& options = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Joins the same group again with the members that are left: those that the registrar still knows
  // in the same incarnation, less `without`, in their former order. All of them call it with the
  // same `without`; it should name the rank in the error of a call that was late, because a worker
  // that is slow or stopped remains known until its lease ends. This group fails, if it has not.
  // Waits at most `timeout`. Errors: as Join.
  absl::StatusOr<std::shared_ptr<Group>> Rebuild(Worker& worker,
                                                 const std::vector<std::string>& without = {},
                                                 absl::Duration timeout = absl::Seconds(60));
  // Ends this rank's part, once what it sent has reached the others, for which it waits at most 10
  // seconds. Calls that are under way here fail, as do later calls here and those of the others
  // that need this rank. May be repeated.
  void Leave();

  const std::string& name() const;
  int rank() const;
  int size() const;
  // The names of the workers, by rank.
  const std::vector<std::string>& members() const;
  // OK as long as the group can be used.
  absl::Status status() const;

  // The reduction of the tensors of all ranks, which have the same shape and dtype: a floating
  // dtype, i32 or i64. Means are of floating dtypes only.
  absl::StatusOr<Tensor> AllReduce(const Tensor& tensor, Reduction reduction = Reduction::kSum,
                                   const CollectiveOptions& options = {});
  // The r-th of size() equal blocks of that reduction along the first axis, on rank r.
  absl::StatusOr<Tensor> ReduceScatter(const Tensor& tensor, Reduction reduction = Reduction::kSum,
                                       const CollectiveOptions& options = {});
  // The tensors of all ranks, by rank. They have the same shape and dtype.
  absl::StatusOr<std::vector<Tensor>> AllGather(const Tensor& tensor,
                                                const CollectiveOptions& options = {});
  // The tensor of rank `root`. The other ranks' tensors say which shape and dtype they expect;
  // ranks with an undefined one take what comes.
  absl::StatusOr<Tensor> Broadcast(const Tensor& tensor, int root,
                                   const CollectiveOptions& options = {});
  // On rank `root` the tensors of all ranks, by rank; none elsewhere. They have the same shape and
  // dtype.
  absl::StatusOr<std::vector<Tensor>> Gather(const Tensor& tensor, int root,
                                             const CollectiveOptions& options = {});
  // The r-th tensor of rank `root`, on rank r. The root gives one for each rank, all of the same
  // shape and dtype; the other ranks give none.
  absl::StatusOr<Tensor> Scatter(const std::vector<Tensor>& tensors, int root,
                                 const CollectiveOptions& options = {});
  // Returns when all ranks have called it.
  absl::Status Barrier(const CollectiveOptions& options = {});

  // Sends a tensor to another rank, which makes a Receive from this one. Sends and receives of a
  // pair of ranks meet in the order in which they are made; they are no calls of the whole group,
  // and may come in any order with these. Send returns when the other rank makes its receive, so
  // two ranks that both send first must use SendAsync. The labels of both must agree.
  absl::Status Send(const Tensor& tensor, int to, const CollectiveOptions& options = {});
  absl::StatusOr<Tensor> Receive(int from, const CollectiveOptions& options = {});

  // The same, without waiting. The order of the calls is that in which they are started.
  Future<Tensor> AllReduceAsync(const Tensor& tensor, Reduction reduction = Reduction::kSum,
                                const CollectiveOptions& options = {});
  Future<Tensor> ReduceScatterAsync(const Tensor& tensor, Reduction reduction = Reduction::kSum,
                                    const CollectiveOptions& options = {});
  Future<std::vector<Tensor>> AllGatherAsync(const Tensor& tensor,
                                             const CollectiveOptions& options = {});
  Future<Tensor> BroadcastAsync(const Tensor& tensor, int root,
                                const CollectiveOptions& options = {});
  Future<std::vector<Tensor>> GatherAsync(const Tensor& tensor, int root,
                                          const CollectiveOptions& options = {});
  Future<Tensor> ScatterAsync(const std::vector<Tensor>& tensors, int root,
                              const CollectiveOptions& options = {});
  Future<Unit> BarrierAsync(const CollectiveOptions& options = {});
  Future<Unit> SendAsync(const Tensor& tensor, int to, const CollectiveOptions& options = {});
  Future<Tensor> ReceiveAsync(int from, const CollectiveOptions& options = {});

 private:
  struct State;
  struct Request;  // a call and its inputs
  explicit Group(std::unique_ptr<State> state);
  // As Join, but does not wait for members that have not joined the job.
  static absl::StatusOr<std::shared_ptr<Group>> JoinPresent(Worker& worker, const std::string& name,
                                                            const GroupOptions& options);
  // Callbacks of the results of these three run on the thread that sets them.
  Future<std::vector<Tensor>> Start(Request request, const CollectiveOptions& options);
  Future<Unit> StartSend(const Tensor& tensor, int to, const CollectiveOptions& options);
  Future<Tensor> StartReceive(int from, const CollectiveOptions& options);
  // Start for users: callbacks run on the worker's threads for them.
  Future<std::vector<Tensor>> StartForUser(Request request, const CollectiveOptions& options);

  // Returns the timeout of a call. Errors: INVALID_ARGUMENT for a negative one.
  absl::StatusOr<absl::Duration> TimeoutOf(const CollectiveOptions& options) const;
  Request ToBroadcast(const Tensor& tensor, int root, const CollectiveOptions& options) const;

  const std::unique_ptr<State> state_;
};

}  // namespace psd
