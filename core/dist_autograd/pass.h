#pragma once

// One backward pass on one worker: it runs the worker's part of the graph, receives and sends
// gradients, and ends on all workers together. See PROTOCOL.md.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "core/autograd/engine.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/mutex.h"
#include "core/base/timer.h"
#include "core/dist_autograd/autograd_codec.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/functions.h"
#include "core/dist_autograd/gradient_messages.h"
#include "core/dist_autograd/graph_walk.h"
#include "core/rpc/rpc_agent.h"

namespace psd::dist_autograd {

class Pass;

// Returns `status` with "error on owner1: " before its text, unless a worker has already added such
// a prefix.
absl::Status ErrorOn(const std::string& worker, const absl::Status& status);

// The functions of its worker that a pass uses. Thread-safe. It must outlive its passes.
class PassHost {
 public:
  virtual ~PassHost() = default;
  virtual const rpc::PeerInfo& self() const = 0;
  // Fails at once if the worker shuts down.
  virtual Future<rpc::Reply> Send(const std::string& peer, rpc::Request request,
                                  absl::Duration timeout) = 0;
  virtual TimerQueue::Id RunAfter(absl::Duration delay, Task task) = 0;
  virtual void CancelTimer(TimerQueue::Id id) = 0;
  // Runs `task` in the queue of the session of `call`.
  virtual absl::Status RunOnExecutor(const rpc::ServerCall& call, Task task) = 0;
  // Runs `task` as work of this worker itself.
  virtual absl::Status RunOwn(Task task) = 0;
  virtual GradientMessages& messages() = 0;
  // Called once when the pass is over on this worker, before any call is answered.
  virtual void PassEnded(const Pass& pass) = 0;
};

// Gradients that have arrived for one message of this worker.
struct Arrival {
  std::shared_ptr<SendFunction> send;
  Tensors gradients;  // checked; empty if there is no gradient at all
  std::shared_ptr<rpc::ServerCall> call;
};

// Thread-safe. Shared by the host's table and by the callbacks and tasks of the pass.
class Pass : public DistributedSink, public std::enable_shared_from_this<Pass> {
 public:
  Pass(std::shared_ptr<PassHost> host, std::shared_ptr<ContextState> context, PassInfo info)
      : host_(std::move(host)),
        context_(std::move(context)),
        info_(std::move(info)),
        walk_(*context_, host_->self().incarnation, GraphWalk::Upstream::kIgnore) {}

  const PassInfo& info() const { return info_; }
  const std::shared_ptr<ContextState>& context() const { return context_; }

  // Runs the pass on the worker that initiated it, from `roots`, which were checked. The future is
  // set when all workers that take part are done.
  Future<Unit> Run(const std::vector<Root>& roots);

  // Takes gradients for one message, on a worker other than the initiator. The arrival that starts
  // the pass here is answered when the pass is over, each other one when its gradients were taken.
  void Receive(Arrival arrival, StartBy start, const std::vector<uint64_t>& expected);
  // Marks messages of this worker as ones that will receive gradients, and has other workers mark
  // those that they depend on. Then calls `done`.
  void Mark(const std::vector<GlobalId>& messages, absl::AnyInvocable<void(absl::Status)> done);

  // Ends the pass with an error, unless it has ended. Tells all workers that know the context,
  // except `source`, from which the error came. `source` is empty for an error of this worker.
  void Fail(absl::Status status, const std::string& source) PSD_EXCLUDES(mutex_);
  // Fails the pass, which another worker started, with `why` if gradients of others are still
  // missing.
  void FailIfWaiting(const absl::Status& why) PSD_EXCLUDES(mutex_);

  // The functions of DistributedSink.
  absl::Status Accumulate(const LeafInfo& leaf, Tensor gradient) override PSD_EXCLUDES(mutex_);
  absl::Status AccumulateSparse(const LeafInfo& leaf, SparseTensor gradient) override
      PSD_EXCLUDES(mutex_);
  absl::Status Deliver(const RecvFunction& recv, Tensors gradients) override PSD_EXCLUDES(mutex_);

 private:
  // For each peer: the messages of that peer that will receive gradients.
  using Marks = absl::flat_hash_map<std::string, std::vector<uint64_t>>;
  using Sends = std::vector<std::shared_ptr<SendFunction>>;

  // ---- start
  absl::Status Plan(const std::vector<Root>& roots);
  void MarkFromRoots(std::vector<Root> roots);
  absl::StatusOr<Sends> FindSends(const std::vector<GlobalId>& messages) const;
  absl::StatusOr<Sends> SendsToExpect(StartBy start, const std::vector<uint64_t>& expected);
  // Sets up the graph. Requires: the pass has not begun.
  void Begin(Sends sends, StartBy start, const std::vector<Root>& roots) PSD_REQUIRES(mutex_);
  void StartTimer(absl::Duration delay);
  void FeedRoots(const std::vector<Root>& roots);

  // ---- marks
  void SendMarks(Marks marks, absl::AnyInvocable<void(absl::Status)> done);
  Marks TakeFound() PSD_REQUIRES(mutex_);

  // ---- sending
  // Gradients for one message of another worker.
  struct Outgoing {
    rpc::PeerInfo peer;
    GradientInfo info;
    Tensors gradients;        // empty once they are not needed any more
    GradientMessage message;  // what is being sent
  };
  using OutgoingPtr = std::shared_ptr<Outgoing>;  // shared by the callbacks of one message
  // Sends them encoded as they are, when lent ones have been written.
  void Send(const OutgoingPtr& outgoing);
  void SendNow(const OutgoingPtr& outgoing);
  void OnWritten(const OutgoingPtr& outgoing, const absl::Status& written) PSD_EXCLUDES(mutex_);
  void OnAnswered(const OutgoingPtr& outgoing, const absl::StatusOr<rpc::Reply>& reply);
  // Sends copies instead of gradients that the peer could not read.
  void SendAgain(const OutgoingPtr& outgoing);
  void OnDelivered(const std::string& peer, const absl::Status& status) PSD_EXCLUDES(mutex_);

  // ---- running
  void Take(Arrival arrival, bool starts) PSD_EXCLUDES(mutex_);
  absl::Status FillGaps(const SendFunction& send, Tensors& gradients) const;
  void Collect(const LeafInfo& leaf, Tensor gradient) PSD_REQUIRES(mutex_);
  void CollectLeaves(const SendFunction& send, Tensors gradients) PSD_REQUIRES(mutex_);
  void Feed(const std::shared_ptr<Node>& start, Tensors gradients);
  // As Feed, on a thread that may wait for devices.
  void FeedOnExecutor(const std::shared_ptr<Node>& start, Tensors gradients);
  void DrainLocal();
  void FinishIfDone() PSD_EXCLUDES(mutex_);
  // Whether the end of the pass may wait for a device: it adds gradients to sums, and one of them
  // is there.
  bool FinishMayWait() const PSD_REQUIRES(mutex_);
  // Ends the pass without an error. Requires: done_.
  void Finish() PSD_EXCLUDES(mutex_);
  absl::Status Commit();
  // Returns the answer to the message of `starter`.
  rpc::Payload ReachedBeside(const std::string& starter) const;
  std::string MissingText() const PSD_REQUIRES(mutex_);
  void TellAborted(const absl::Status& status, const std::string& source);

  const std::shared_ptr<PassHost> host_;         // shared by the passes of one worker
  const std::shared_ptr<ContextState> context_;  // shared, see ContextState
  const PassInfo info_;

  // Not held while nodes run.
  mutable Mutex mutex_;                           // before: ContextState, GraphPass
  GraphWalk walk_ PSD_GUARDED_BY(mutex_);         // used by the mark phase
  size_t marks_sent_ PSD_GUARDED_BY(mutex_) = 0;  // how many of walk_.receives() were asked for
  absl::flat_hash_set<GlobalId> marked_ PSD_GUARDED_BY(mutex_);
  Sends marked_sends_ PSD_GUARDED_BY(mutex_);

  // Set by Begin and not changed afterwards, so nodes run without the lock. Does not contain the
  // send functions of leaves.
  std::unique_ptr<GraphPass> graph_;
  // Whether all sends lead to leaves without hooks, which is quick enough for any thread. The graph
  // is then fed with gradients on the host only, so that no two meet of which one is on a device.
  bool light_ = false;

  bool begun_ PSD_GUARDED_BY(mutex_) = false;
  bool done_ PSD_GUARDED_BY(mutex_) = false;
  bool draining_ PSD_GUARDED_BY(mutex_) = false;
  StartBy start_ PSD_GUARDED_BY(mutex_) = StartBy::kElsewhere;
  // Messages whose gradients have not come.
  absl::flat_hash_set<GlobalId> missing_ PSD_GUARDED_BY(mutex_);
  // Arrivals that came before the pass began.
  std::vector<Arrival> parked_ PSD_GUARDED_BY(mutex_);
  std::vector<std::pair<GlobalId, Tensors>> local_ PSD_GUARDED_BY(mutex_);
  Marks unsent_marks_ PSD_GUARDED_BY(mutex_);   // sent with the first message to each peer
  int outstanding_ PSD_GUARDED_BY(mutex_) = 0;  // own gradient messages not yet answered
  std::vector<std::pair<LeafInfo, Tensor>> collected_ PSD_GUARDED_BY(mutex_);
  std::vector<std::pair<LeafInfo, SparseTensor>> collected_sparse_ PSD_GUARDED_BY(mutex_);
  std::shared_ptr<rpc::ServerCall> starter_ PSD_GUARDED_BY(mutex_);  // answered at the end
  TimerQueue::Id timer_ PSD_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ PSD_GUARDED_BY(mutex_);
  Promise<Unit> finished_;
};

}  // namespace psd::dist_autograd
