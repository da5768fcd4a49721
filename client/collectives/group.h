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
  // The most time that Join waits for all members. Must be positive.
  absl::Duration join_timeout = absl::Seconds(60);
  // The timeout of calls that set none of their own. Must be positive and finite.
  absl::Duration timeout = absl::Seconds(60);
};

struct CollectiveOptions {
  // The most time that the call may take. absl::ZeroDuration() means the timeout of the group.
  // Must be finite. Choose it longer than any rank may lag behind the others, because a rank that
  // is late ends the group.
  absl::Duration timeout = absl::ZeroDuration();
  // A name for the call, at most 128 bytes. The call fails if the ranks give it different names. So
  // names reveal that the ranks make calls of equal shapes in different orders.
  std::string label;
};

// A rank's part in a group of workers that compute together. All ranks make the same calls in the
// same order. A call returns when all ranks have made it and its result is there; with the …Async
// functions a rank can have several calls under way. A worker may be in several groups, also in two
// with the same members.
//
// Results have the same bits on all ranks and from run to run: each element is reduced in the order
// of the ranks, whatever its position, the size of the tensor and the carrier. f16 and bf16 are
// summed in f32 and rounded once. Reductions by NCCL (see below) promise less. Tensors need not be
// contiguous; results are.
//
// Tensors may be on devices of the worker (WorkerOptions::devices). Their elements travel through
// memory of the host, so results have the bits that tensors of the host would give, and each rank
// may have its tensors elsewhere. A result is on the device of the tensor that this rank gives to
// the call; if it gives none (Receive, and Broadcast and Scatter on ranks other than the root), the
// result is on the host. The call is made when the tensor has been computed, as work of the
// thread's CurrentStream or work that this stream waits for. Results come to a device as work of
// its default stream. If a result finds no room there, the group fails.
//
// If the tensors of all ranks are on CUDA devices, each rank's on another GPU, and all workers find
// the same version of NCCL, the GPUs perform the call themselves: AllReduce, ReduceScatter,
// AllGather, Gather and Broadcast, of tensors from 32 KiB on, but no minimum or maximum of floating
// numbers. A reduction by NCCL has the same bits on all ranks; which ranks are added first is
// NCCL's choice, and f16 and bf16 may be rounded after each addition. So its bits may differ from
// those of tensors on the host, for tensors of another size, and with other GPUs or versions. The
// ranks tell each other before each such call where their tensors are. If one call cannot be
// performed by the GPUs, it goes through the host, and the worker's log says once why. Everything
// below holds for both ways.
//
// Every call has a deadline. If a rank dies, is late, or makes another call than the others
// (another operation, dtype, shape, root or label), the group fails: all calls that are under way
// fail on all ranks with an error that names the rank, and so do later calls. A call that is under
// way when a rank dies may complete on some ranks; the next call fails there. A call that a late
// rank makes just when the others give up may complete on that rank alone. The survivors can go on
// in a group that they build again: see Rebuild.
//
// The members must listen (WorkerOptions::listen), unless there is only one.
//
// Errors of all calls: DEADLINE_EXCEEDED (a rank is late), UNAVAILABLE or ABORTED (a rank has died,
// was restarted, or cannot be reached), FAILED_PRECONDITION (the ranks' calls differ; a rank has
// left; the worker was shut down), RESOURCE_EXHAUSTED (memory). GetDetail(status)->worker is the
// name of the worker that is late or dead. INVALID_ARGUMENT for a mistake in the arguments of this
// rank, UNAVAILABLE naming a device of this rank that is lost: the call does not count, and the
// others wait for a correct one.
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

  // Joins the same group again with the members that are left, in their former order: those that
  // the registrar still knows in the same incarnation, except for `without`. All of them call it
  // with the same `without`. A rank that was late should be in `without`, because the registrar
  // knows a slow or stopped worker until its lease ends. If a member answers here but the registrar
  // does not know it, this waits for the registrar. This group fails, unless it has failed before.
  // Waits at most `timeout`. Errors: as Join; UNAVAILABLE naming a member that is alive and that
  // the registrar does not know; INVALID_ARGUMENT if nobody is left.
  absl::StatusOr<std::shared_ptr<Group>> Rebuild(Worker& worker,
                                                 const std::vector<std::string>& without = {},
                                                 absl::Duration timeout = absl::Seconds(60));
  // Fails the group on all ranks, with the text of `why` and the name of this rank. A rank that
  // cannot make its next call should call it, so that the others do not wait. The group has the
  // code of `why`, but FAILED_PRECONDITION for INVALID_ARGUMENT. Returns the status that the group
  // has then, which is an earlier failure if there was one; in a group of one, which does not fail,
  // it returns `why`. Requires: `why` is not OK.
  absl::Status Fail(const absl::Status& why);
  // Ends this rank's part. First waits, for at most 10 seconds, until everything that this rank has
  // sent has reached the others. Then calls that are under way here fail, later calls here fail,
  // and so do calls of other ranks that need this one. May be repeated.
  void Leave();

  const std::string& name() const;
  int rank() const;
  int size() const;
  // The names of the workers, by rank.
  const std::vector<std::string>& members() const;
  // GroupOptions::timeout.
  absl::Duration timeout() const;
  // OK as long as the group can be used.
  absl::Status status() const;

  // Returns the reduction of the tensors of all ranks. They have the same shape and the same dtype:
  // a floating dtype, i32 or i64. A mean needs a floating dtype.
  absl::StatusOr<Tensor> AllReduce(const Tensor& tensor, Reduction reduction = Reduction::kSum,
                                   const CollectiveOptions& options = {});
  // Reduces as AllReduce does, cuts the result along the first axis into size() equal blocks, and
  // returns the r-th block on rank r.
  absl::StatusOr<Tensor> ReduceScatter(const Tensor& tensor, Reduction reduction = Reduction::kSum,
                                       const CollectiveOptions& options = {});
  // Returns the tensors of all ranks, by rank. They have the same shape and dtype.
  absl::StatusOr<std::vector<Tensor>> AllGather(const Tensor& tensor,
                                                const CollectiveOptions& options = {});
  // Returns the tensor of rank `root`. The tensors of the other ranks only say which shape and
  // dtype they expect, and on which device. A rank that gives an undefined tensor takes any.
  absl::StatusOr<Tensor> Broadcast(const Tensor& tensor, int root,
                                   const CollectiveOptions& options = {});
  // Returns the tensors of all ranks, by rank, on rank `root`, and no tensors on the others. All
  // tensors have the same shape and dtype.
  absl::StatusOr<std::vector<Tensor>> Gather(const Tensor& tensor, int root,
                                             const CollectiveOptions& options = {});
  // Returns the r-th tensor of rank `root` on rank r. The root gives one tensor for each rank, all
  // of the same shape and dtype. The other ranks give none.
  absl::StatusOr<Tensor> Scatter(const std::vector<Tensor>& tensors, int root,
                                 const CollectiveOptions& options = {});
  // Returns when all ranks have called it.
  absl::Status Barrier(const CollectiveOptions& options = {});

  // Sends a tensor to another rank, which calls Receive with this rank. The sends and receives of a
  // pair of ranks meet in the order in which they are made. They may come in any order with the
  // calls of the whole group. Send returns when the other rank has called Receive, so two ranks
  // that both send first must use SendAsync. Both must give the same label.
  absl::Status Send(const Tensor& tensor, int to, const CollectiveOptions& options = {});
  absl::StatusOr<Tensor> Receive(int from, const CollectiveOptions& options = {});

  // The same without waiting. The calls count in the order in which they are started.
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
  // Returns the members that are left, for Rebuild.
  absl::StatusOr<std::vector<std::string>> Survivors(Worker& worker,
                                                     const std::vector<std::string>& without,
                                                     absl::Time until) const;
  // As Join, but does not wait for members that have not joined the job.
  static absl::StatusOr<std::shared_ptr<Group>> JoinPresent(Worker& worker, const std::string& name,
                                                            const GroupOptions& options);
  // Callbacks of the results of these three run on the thread that sets them.
  Future<std::vector<Tensor>> Start(Request request, const CollectiveOptions& options);
  Future<Unit> StartSend(const Tensor& tensor, int to, const CollectiveOptions& options);
  Future<Tensor> StartReceive(int from, const CollectiveOptions& options);
  // As Start, for a call with one result. Callbacks of the result run on the worker's threads for
  // continuations.
  Future<Tensor> StartForOne(Request request, const CollectiveOptions& options);

  // Returns the timeout of a call. Errors: INVALID_ARGUMENT for a negative one.
  absl::StatusOr<absl::Duration> TimeoutOf(const CollectiveOptions& options) const;
  // Returns null for null, which means the host.
  // Errors: INVALID_ARGUMENT for a device that is not one of the worker's.
  absl::StatusOr<std::shared_ptr<Device>> HandleOf(const Device* device) const;
  Request ToBroadcast(const Tensor& tensor, int root, const CollectiveOptions& options) const;

  const std::unique_ptr<State> state_;
};

}  // namespace psd
