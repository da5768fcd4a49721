#pragma once

// One rank's part in a group: performs the effects of its GroupLedger with messages, threads and
// tensors.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/device.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/timer.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/gate.h"
#include "core/services/collectives/call_data.h"
#include "core/services/collectives/collective_call.h"
#include "core/services/collectives/ended_groups.h"
#include "core/services/collectives/group_ledger.h"
#include "core/services/collectives/transfer_ledger.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/collective.pb.h"

namespace psd::services {

// The members of a group, by rank, in one generation. A group that is built again has another
// generation, in which messages of the former one are refused.
struct GroupMembers {
  std::string name;  // of the group
  uint64_t generation = 0;
  std::vector<rpc::PeerInfo> workers;
  int rank = 0;  // of this worker

  std::vector<std::string> Names() const;
};

// Shared by the service and the user's handle. Thread-safe.
class CollectiveGroup : public std::enable_shared_from_this<CollectiveGroup> {
 public:
  // The parts of the worker that the group uses. They must exist until Close has returned.
  struct Uses {
    rpc::RpcAgent& agent;
    Executor& executor;
    TimerQueue& timers;
    const Clock& clock;
    // The account for the memory of results; null if it is not charged.
    std::shared_ptr<MemoryAccount> memory;  // shared with the worker
  };
  using Tensors = std::vector<Tensor>;

  // If the group fails or is left, it is kept in `ended`. Requires: at least two members.
  CollectiveGroup(Uses uses, GroupMembers members, const PlanLimits& limits = {},
                  std::weak_ptr<EndedGroups> ended = {});

  const GroupMembers& members() const { return members_; }
  // OK as long as the group has not failed and was not left.
  absl::Status failure() const PSD_EXCLUDES(mutex_);

  // Asks all other ranks to say when their part ends. These calls also fail if a rank dies. Must be
  // called once, when all ranks have made their part.
  void Watch() PSD_EXCLUDES(mutex_);

  // Says whether all ranks reach each other through shared memory. To be called before the first
  // Start, with the same value on all ranks.
  void set_shares_memory(bool shares) { shares_memory_ = shares; }

  // Makes the group's next call. See CallData for the inputs and the results, which are in memory
  // of `device`; null means the host. Results for a device are copied there on the executor.
  // Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED: the call does not count as made. The failure of
  // the group: DEADLINE_EXCEEDED (a rank is late), UNAVAILABLE or ABORTED (a rank died),
  // FAILED_PRECONDITION (ranks call different things; a rank has left; this rank has left).
  Future<Tensors> Start(CollectiveCall call, Tensors inputs, absl::Duration timeout,
                        std::shared_ptr<Device> device = nullptr) PSD_EXCLUDES(mutex_);

  // Sends a tensor to another rank, or receives one. The n-th send from one rank to another meets
  // the n-th receive there. A send is done when the other rank has made its receive and the tensor
  // is given to the carrier. Errors: as Start.
  Future<Unit> Send(const Tensor& tensor, int to, const std::string& label, absl::Duration timeout)
      PSD_EXCLUDES(mutex_);
  Future<Tensor> Receive(int from, const std::string& label, absl::Duration timeout)
      PSD_EXCLUDES(mutex_);

  // Fails the group on all ranks, because this rank cannot make its next call.
  void GiveUp(const absl::Status& why) PSD_EXCLUDES(mutex_);

  // Ends this rank's part: calls that are not complete here fail. Before that it waits at most
  // `limit` until the other ranks have got what was sent to them.
  void Leave(absl::Duration limit) PSD_EXCLUDES(mutex_);
  // As Leave, for a worker that stops. Returns when the group no longer uses the worker's parts.
  void Close(absl::Duration limit) PSD_EXCLUDES(mutex_);

  // ---- for DeviceCalls

  absl::Time Now() const { return uses_.clock.Now(); }
  // Whether this rank has left the group, which had not failed.
  bool has_left() const PSD_EXCLUDES(mutex_);
  // Runs the task on the worker's executor as soon as that has room; on this thread if the group is
  // closed.
  void RunSoon(Task task);
  // Runs the task at that time on the worker's thread for timers, unless the worker stops before.
  void RunAt(absl::Time when, Task task);
  // Calls `then` once when this rank's part has ended, at once if it has ended already. `then`
  // must not wait. Must be called at most once.
  void OnEnd(absl::AnyInvocable<void() &&> then) PSD_EXCLUDES(mutex_);

  // ---- messages of other ranks. Errors: INVALID_ARGUMENT.

  absl::Status ServeEnter(int from, const v1::CollectiveEnter& request, std::vector<Buffer> data)
      PSD_EXCLUDES(mutex_);
  absl::Status ServePiece(int from, const v1::CollectivePiece& request, std::vector<Buffer> data)
      PSD_EXCLUDES(mutex_);
  absl::Status ServeTake(int from, const v1::CollectiveTake& request,
                         const rpc::Answer<rpc::Contents>& answer) PSD_EXCLUDES(mutex_);
  void ServeWatch(int from, const rpc::Answer<v1::CollectiveEnd>& answer) PSD_EXCLUDES(mutex_);
  // The session of that rank here with this epoch has ended. Has no effect unless the rank watches
  // this one in that session; the watch may also come later, on another thread.
  void SessionEnded(int from, uint64_t epoch) PSD_EXCLUDES(mutex_);

 private:
  using WatchAnswer = rpc::Answer<v1::CollectiveEnd>;
  struct OutgoingPiece {
    int phase = 0;
    size_t index = 0;
  };
  // The pieces of a call for one rank.
  struct Line {
    bool open = false;
    size_t in_flight = 0;
    std::deque<OutgoingPiece> waiting;
  };
  // A call that this rank or another one has made. Members that are not guarded by mutex_ are set
  // before the first effect that uses them.
  struct Running {
    Running(int ranks, int rank) : data(ranks, rank), lines(ranks) {}
    CallData data;
    const Promise<Tensors> result;
    absl::Time deadline = absl::InfiniteFuture();
    std::shared_ptr<Device> device;        // for the results; null for the host; shared with users
    bool entered = false;                  // guarded by mutex_
    std::optional<TensorForm> given_form;  // of what the root gives; guarded by mutex_
    std::vector<Line> lines;               // by rank; guarded by mutex_
    int open_lines = 0;                    // guarded by mutex_
    bool complete = false;                 // guarded by mutex_
  };
  using RunningPtr = std::shared_ptr<Running>;  // shared with tasks and with answers to come

  struct Step {
    GroupEffect effect;
    RunningPtr running;  // null for kFail
  };
  using Steps = absl::InlinedVector<Step, 4>;

  // Returns the steps to be performed for `effects`. Must be called before the lock is released
  // under which the ledger has returned them.
  Steps Resolve(const GroupEffects& effects) PSD_REQUIRES(mutex_);
  // Performs steps in order, without the lock. `own_thread`: the thread has no other work to do,
  // and may reduce large tensors.
  void Perform(const Steps& steps, bool own_thread = false) PSD_EXCLUDES(mutex_);
  void Tell(uint64_t number, uint64_t completed, const RunningPtr& running) PSD_EXCLUDES(mutex_);
  void Open(uint64_t number, const RunningPtr& running, int to) PSD_EXCLUDES(mutex_);
  void SendReduced(uint64_t number, const RunningPtr& running, size_t index) PSD_EXCLUDES(mutex_);
  // Sends pieces that wait in the line, as long as few enough are in flight.
  void Pump(uint64_t number, const RunningPtr& running, int to) PSD_EXCLUDES(mutex_);
  // Reduces here, or on the executor. `most_here` is how many bytes a thread that receives messages
  // may still reduce.
  void ReduceOrLater(uint64_t number, const RunningPtr& running, size_t index, bool own_thread,
                     size_t& most_here);
  void Complete(const RunningPtr& running) PSD_EXCLUDES(mutex_);
  // Copies the result of a call to its device, sets it, and cancels the timer `limit`.
  void CopyResults(const RunningPtr& running, const Tensors& here, TimerQueue::Id limit)
      PSD_EXCLUDES(mutex_);
  // Fails the group if the copy is not done at `when`. A device that does nothing keeps the thread
  // that copies, but not the caller. Returns the timer; 0 if the group is closed.
  TimerQueue::Id LimitCopy(const RunningPtr& running, absl::Time when) PSD_EXCLUDES(mutex_);
  // Sets the result of a call. `from` is the rank at fault if it is an error.
  void SetResult(const Running& running, absl::StatusOr<Tensors> results, int from)
      PSD_EXCLUDES(mutex_);
  void FailAll() PSD_EXCLUDES(mutex_);
  void RunTask(Task task);
  // Submits the task to the worker's executor or, if that has no room, calls `retry` after a while
  // on the worker's thread for timers. Returns false, and does nothing, if the group is closed.
  bool SubmitOrRetry(Task task, Task retry);

  // ---- sends and receives, in collective_transfers.cc

  using TakeAnswer = rpc::Answer<rpc::Contents>;
  struct Sending {
    Tensor tensor;
    Promise<Unit> sent;
  };
  struct Receiving {
    Promise<Tensor> received;
    rpc::Call question;  // not set before it is asked
  };
  void Give(const TakeAnswer& answer, const TransferLedger::Key& key, const Sending& sending)
      PSD_EXCLUDES(mutex_);
  // Keeps a send whose question was given up, as the group has ended at the other rank.
  void NotTaken(const TransferLedger::Key& key, const Sending& sending) PSD_EXCLUDES(mutex_);
  // Keeps a send until the other rank asks for it. Returns an error if that rank has left.
  absl::Status Hold(const TransferLedger::Key& key, const Sending& sending) PSD_REQUIRES(mutex_);
  // Answers questions for sends that will not be made, because the group has ended here.
  static void EndQuestions(const std::map<TransferLedger::Key, TakeAnswer>& questions,
                           const v1::CollectiveEnd& end);
  void NotReceived(int from, uint64_t number, const absl::Status& why) PSD_EXCLUDES(mutex_);
  // The group has ended at `from` before it made the send that this rank has asked for.
  void EndedBefore(int from, uint64_t number, const v1::CollectiveEnd& end) PSD_EXCLUDES(mutex_);
  // `rank` has left. Returns an error if a send to it waits. Adds its questions to `unanswered`, to
  // be answered without the lock.
  absl::Status LeftTransfers(int rank, std::vector<TakeAnswer>& unanswered) PSD_REQUIRES(mutex_);
  absl::Status Received(int from, uint64_t number, const rpc::Reply& reply) PSD_EXCLUDES(mutex_);
  // Fails the transfers that wait. The other ranks have been told how the group has ended.
  void FailTransfers(const absl::Status& failure, const v1::CollectiveEnd& end)
      PSD_EXCLUDES(mutex_);

  // Pass an event to the ledger.
  void Fail(const absl::Status& failure) PSD_EXCLUDES(mutex_);
  void Lost(int rank, const absl::Status& why) PSD_EXCLUDES(mutex_);
  // Fails the group, because this rank cannot take what has come from `from`: INVALID_ARGUMENT says
  // that no honest rank sends it; with another code this rank is to blame.
  void CannotTake(int from, const absl::Status& why) PSD_EXCLUDES(mutex_);

  // A zero timeout means none.
  rpc::Call StartMessage(const rpc::MethodInfo& method, int to, rpc::Payload payload,
                         absl::Duration timeout);
  // Sends a message. `done` is called without the lock if the other rank has taken it; otherwise
  // the group fails.
  void SendMessage(const rpc::MethodInfo& method, int to, rpc::Payload payload, absl::Time deadline,
                   absl::AnyInvocable<void()> done) PSD_EXCLUDES(mutex_);
  // A message failed, whose time was over at `limit`. If that was long ago, this process was
  // stopped, and the others may have found it late: what they have said meanwhile is read first.
  void NotTaken(int to, const absl::Status& why, absl::Time limit) PSD_EXCLUDES(mutex_);
  void WatchEnded(int rank, const absl::StatusOr<rpc::Reply>& reply) PSD_EXCLUDES(mutex_);
  static void EndWatches(const std::map<int, WatchAnswer>& watchers, const v1::CollectiveEnd& end);
  // Returns how the group has ended here. Requires: it has failed, or this rank has left.
  v1::CollectiveEnd End() const PSD_REQUIRES(mutex_);
  // The timer that was set for `armed` has come.
  void Expire(absl::Time armed) PSD_EXCLUDES(mutex_);
  // Sets a timer for the earliest deadline, unless one comes before or the group has failed.
  void Arm() PSD_EXCLUDES(mutex_);

  RunningPtr FindOrAdd(uint64_t number) PSD_REQUIRES(mutex_);
  // Makes the plan of a call that is entered, once the form is known.
  void Settle(Running& running) PSD_REQUIRES(mutex_);
  int size() const { return static_cast<int>(members_.workers.size()); }

  const Uses uses_;
  const GroupMembers members_;
  const PlanLimits limits_;
  const std::weak_ptr<EndedGroups> ended_;
  std::atomic<bool> shares_memory_{false};
  const std::shared_ptr<rref::Gate> gate_ = std::make_shared<rref::Gate>();
  mutable Mutex mutex_;  // leaf
  CondVar sent_;         // for Leave: a message was answered, or steps were performed
  GroupLedger ledger_ PSD_GUARDED_BY(mutex_);
  std::map<uint64_t, RunningPtr> running_ PSD_GUARDED_BY(mutex_);
  TransferLedger transfers_ PSD_GUARDED_BY(mutex_);
  std::map<TransferLedger::Key, Sending> sending_ PSD_GUARDED_BY(mutex_);
  std::map<TransferLedger::Key, Receiving> receiving_ PSD_GUARDED_BY(mutex_);
  // The questions of others for sends that this rank has not made yet.
  std::map<TransferLedger::Key, TakeAnswer> asking_ PSD_GUARDED_BY(mutex_);
  // By rank: the requests of the others that wait for the end of this rank's part.
  std::map<int, WatchAnswer> watchers_ PSD_GUARDED_BY(mutex_);
  // By rank: the epoch of the session here in which that rank has watched; 0 if it has not.
  std::vector<uint64_t> watched_in_ PSD_GUARDED_BY(mutex_);
  // By rank: the epoch of the latest of its sessions here that have ended; 0 if none has.
  std::vector<uint64_t> ended_in_ PSD_GUARDED_BY(mutex_);
  std::vector<rpc::Call> watches_ PSD_GUARDED_BY(mutex_);  // this rank's, by rank
  // The messages that were sent and not answered, to be cancelled when the group fails.
  std::map<uint64_t, rpc::Call> messages_ PSD_GUARDED_BY(mutex_);
  uint64_t last_message_ PSD_GUARDED_BY(mutex_) = 0;
  size_t unanswered_ PSD_GUARDED_BY(mutex_) = 0;  // messages sent or waiting to be sent
  size_t performing_ PSD_GUARDED_BY(mutex_) = 0;  // lists of steps that are not performed yet
  absl::Time armed_ PSD_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool left_ PSD_GUARDED_BY(mutex_) = false;
  absl::AnyInvocable<void() &&> on_end_ PSD_GUARDED_BY(mutex_);  // null if nobody is to be told
};

// The methods between ranks.
inline constexpr rpc::Declared<v1::CollectiveEnter, Unit> kEnterCall{
    {"collective.enter", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};
inline constexpr rpc::Declared<v1::CollectivePiece, Unit> kSendPiece{
    {"collective.piece", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};
inline constexpr rpc::Declared<v1::CollectiveTake, rpc::Contents> kTakeTensor{
    {"collective.take", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};
inline constexpr rpc::Declared<v1::CollectiveWatch, v1::CollectiveEnd> kWatchRank{
    {"collective.watch", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};

}  // namespace psd::services
