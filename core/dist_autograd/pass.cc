// Pass: takes gradients while it runs, and ends the pass.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/faults.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/dist_autograd/pass.h"

namespace psd::dist_autograd {
namespace {

absl::Status Unexpected(GlobalId message) {
  return absl::InvalidArgumentError(
      absl::StrCat("gradients for message ", message.ToString(),
                   ", which this pass does not expect or has received"));
}

bool AllOnHost(const Tensors& gradients) {
  return std::all_of(gradients.begin(), gradients.end(), [](const Tensor& gradient) {
    return !gradient.defined() || gradient.OnHost();
  });
}

constexpr size_t kMaxNamedMessages = 8;
constexpr size_t kMaxParked = 65'536;

// Each worker gives up a little before the worker that started the pass on it, so that its error,
// which names the missing messages, still arrives.
absl::Duration TimeoutHere(absl::Duration timeout) {
  return timeout - std::min(timeout / 10, absl::Milliseconds(500));
}

}  // namespace

absl::Status ErrorOn(const std::string& worker, const absl::Status& status) {
  if (absl::StartsWith(status.message(), "error on ")) return status;
  return Annotate(status, absl::StrCat("error on ", worker));
}

void Pass::Receive(Arrival arrival, StartBy start, const std::vector<uint64_t>& expected) {
  // Computed before the lock is taken, because these functions take the context's lock.
  absl::StatusOr<Sends> sends = Sends();
  if (start != StartBy::kElsewhere) sends = SendsToExpect(start, expected);
  if (!sends.ok()) return arrival.call->Reply(sends.status());
  std::vector<Arrival> take;
  bool starts = false;
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    if (done_) {
      refused = failure_.ok() ? absl::AbortedError("the pass has ended") : failure_;
    } else if (!begun_ && start == StartBy::kElsewhere) {
      if (parked_.size() < kMaxParked) return parked_.push_back(std::move(arrival));
      refused = absl::ResourceExhaustedError("too many gradients before the pass has started");
    } else if (!begun_) {
      Begin(*std::move(sends), start, {});
      starts = true;
      starter_ = arrival.call;
      take.swap(parked_);
    }
  }
  if (!refused.ok()) return arrival.call->Reply(ErrorOn(host_->self().name, refused));
  if (starts) {
    StartTimer(TimeoutHere(info_.timeout));
    arrival.call->OnCancel([weak = weak_from_this()] {
      if (auto self = weak.lock()) {
        self->Fail(WithRemedy(absl::CancelledError("the backward pass was given up by the worker "
                                                   "that started it: its timeout has passed, or it "
                                                   "has cancelled the call"),
                              "give Backward a longer timeout"),
                   "");
      }
    });
  }
  Take(std::move(arrival), starts);
  for (Arrival& parked : take) Take(std::move(parked), false);
}

// Prepares gradients that have arrived: fills in zeros in fast mode, and makes those of leaves
// contiguous.
absl::Status Pass::FillGaps(const SendFunction& send, Tensors& gradients) const {
  if (info_.mode == BackwardMode::kFast) PSD_RETURN_IF_ERROR(send.FillZeros(gradients));
  if (send.leaves().empty()) return absl::OkStatus();
  for (Tensor& gradient : gradients) {
    if (!gradient.defined() || gradient.IsContiguous()) continue;
    PSD_ASSIGN_OR_RETURN(gradient, gradient.Contiguous());
  }
  return absl::OkStatus();
}

void Pass::Take(Arrival arrival, bool starts) {
  const bool of_leaves = !arrival.send->leaves().empty();
  const absl::Status filled = FillGaps(*arrival.send, arrival.gradients);
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    if (done_) {
      refused = failure_.ok() ? absl::AbortedError("the pass has ended") : failure_;
    } else if (missing_.erase(arrival.send->message()) == 0) {
      refused = Unexpected(arrival.send->message());
    } else if (of_leaves && filled.ok()) {
      CollectLeaves(*arrival.send, std::move(arrival.gradients));
    }
  }
  if (!refused.ok()) {
    if (starts) Fail(ErrorOn(host_->self().name, refused), "");
    return arrival.call->Reply(ErrorOn(host_->self().name, refused));
  }
  if (!starts) arrival.call->Reply(rpc::Payload{});
  if (!filled.ok()) return Fail(ErrorOn(host_->self().name, filled), "");
  if (of_leaves) return FinishIfDone();
  if (light_ && AllOnHost(arrival.gradients))
    return Feed(arrival.send, std::move(arrival.gradients));
  absl::Status queued =
      host_->RunOnExecutor(*arrival.call, [self = shared_from_this(), send = arrival.send,
                                           gradients = std::move(arrival.gradients)]() mutable {
        self->FeedOnExecutor(send, std::move(gradients));
      });
  if (!queued.ok()) Fail(ErrorOn(host_->self().name, queued), "");
}

void Pass::FeedOnExecutor(const std::shared_ptr<Node>& start, Tensors gradients) {
  for (Tensor& gradient : gradients) {
    if (!light_ || !gradient.defined()) continue;
    absl::StatusOr<Tensor> here = gradient.ToHost();
    if (!here.ok()) return Fail(ErrorOn(host_->self().name, here.status()), "");
    gradient = *std::move(here);
  }
  Feed(start, std::move(gradients));
}

void Pass::Feed(const std::shared_ptr<Node>& start, Tensors gradients) {
  absl::Status status = graph_->Feed(start, std::move(gradients));
  if (!status.ok()) return Fail(ErrorOn(host_->self().name, status), "");
  DrainLocal();
  FinishIfDone();
}

// Feeds gradients of messages that this worker sent to itself. A loop is used because feeding them
// directly would be a recursion.
void Pass::DrainLocal() {
  {
    MutexLock lock(mutex_);
    if (draining_) return;
    draining_ = true;
  }
  while (true) {
    std::pair<GlobalId, Tensors> next;
    bool expected = false;
    {
      MutexLock lock(mutex_);
      if (local_.empty()) {
        draining_ = false;
        return;
      }
      next = std::move(local_.back());
      local_.pop_back();
      expected = missing_.erase(next.first) > 0;
    }
    auto send = context_->FindSend(next.first);
    absl::Status status = send.status();
    if (status.ok() && !expected) status = Unexpected(next.first);
    if (status.ok()) status = FillGaps(**send, next.second);
    if (status.ok() && !(*send)->leaves().empty()) {
      MutexLock lock(mutex_);
      CollectLeaves(**send, std::move(next.second));
    } else if (status.ok()) {
      status = graph_->Feed(*send, std::move(next.second));
    }
    if (!status.ok()) Fail(ErrorOn(host_->self().name, status), "");
  }
}

void Pass::CollectLeaves(const SendFunction& send, Tensors gradients) {
  const size_t wanted = collected_.size() + gradients.size();
  if (wanted > collected_.capacity())
    collected_.reserve(std::max(wanted, 2 * collected_.capacity()));
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) Collect(send.leaves()[i], std::move(gradients[i]));
  }
}

void Pass::Collect(const LeafInfo& leaf, Tensor gradient) {
  if (FaultOn("gradients_kept_at_once")) context_->Accumulate(leaf, gradient).IgnoreError();
  if (FaultOn("gradient_collected_twice")) collected_.emplace_back(leaf, gradient);
  if (!FaultOn("gradients_kept_at_once")) collected_.emplace_back(leaf, std::move(gradient));
}

absl::Status Pass::Accumulate(const LeafInfo& leaf, Tensor gradient) {
  MutexLock lock(mutex_);
  Collect(leaf, std::move(gradient));
  return absl::OkStatus();
}

absl::Status Pass::AccumulateSparse(const LeafInfo& leaf, SparseTensor gradient) {
  MutexLock lock(mutex_);
  collected_sparse_.emplace_back(leaf, std::move(gradient));
  return absl::OkStatus();
}

rpc::Payload Pass::ReachedBeside(const std::string& starter) const {
  std::vector<std::string> reached = context_->Reached();
  reached.erase(std::remove_if(reached.begin(), reached.end(),
                               [&](const std::string& worker) {
                                 return worker == starter || worker == host_->self().name;
                               }),
                reached.end());
  if (reached.size() > kMaxReachedWorkers) reached.resize(kMaxReachedWorkers);
  return {EncodeGradientAnswer({std::move(reached), absl::OkStatus()}), {}};
}

void Pass::FinishIfDone() {
  bool may_wait = false;
  {
    MutexLock lock(mutex_);
    const bool unanswered = outstanding_ > 0 && !FaultOn("pass_ends_before_its_peers");
    if (done_ || !begun_ || unanswered || draining_ || !local_.empty()) return;
    if (!missing_.empty() || !graph_->Finished()) return;
    done_ = true;
    may_wait = FinishMayWait();
  }
  // This thread may read the network, so it must not wait for a device. If the executor is full,
  // somebody must do it.
  if (may_wait && host_->RunOwn([self = shared_from_this()] { self->Finish(); }).ok()) return;
  Finish();
}

bool Pass::FinishMayWait() const {
  if (collected_.empty() && collected_sparse_.empty()) return false;
  return context_->HasDeviceGradients() ||
         std::any_of(collected_.begin(), collected_.end(),
                     [](const auto& each) { return !each.second.OnHost(); });
}

void Pass::Finish() {
  absl::Status committed = Commit();
  std::shared_ptr<rpc::ServerCall> starter;
  TimerQueue::Id timer = 0;
  {
    MutexLock lock(mutex_);
    failure_ = committed;
    starter.swap(starter_);
    timer = timer_;
  }
  host_->CancelTimer(timer);
  host_->PassEnded(*this);
  if (!committed.ok()) TellAborted(committed, "");
  if (starter != nullptr) {
    starter->Reply(committed.ok()
                       ? absl::StatusOr<rpc::Payload>(ReachedBeside(starter->caller().name))
                       : committed);
  }
  finished_.Set(committed.ok() ? absl::StatusOr<Unit>(Unit{}) : committed);
}

// Adds the collected gradients to the context. This happens at the end, so that a pass that fails
// changes nothing there.
absl::Status Pass::Commit() {
  std::vector<std::pair<LeafInfo, Tensor>> collected;
  std::vector<std::pair<LeafInfo, SparseTensor>> sparse;
  {
    MutexLock lock(mutex_);
    collected.swap(collected_);
    sparse.swap(collected_sparse_);
  }
  absl::Status status = context_->AccumulateAll(std::move(collected), std::move(sparse));
  return status.ok() ? status : ErrorOn(host_->self().name, status);
}

std::string Pass::MissingText() const {
  if (!begun_) return "it never started here";
  if (missing_.empty()) {
    return absl::StrCat("all gradients have come here, ", outstanding_,
                        " messages to other workers are unanswered");
  }
  std::vector<GlobalId> missing(missing_.begin(), missing_.end());
  std::sort(missing.begin(), missing.end());
  std::string text = absl::StrCat(missing.size(), " messages received no gradients:");
  for (size_t i = 0; i < missing.size() && i < kMaxNamedMessages; ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ", ", missing[i].ToString());
  }
  if (missing.size() > kMaxNamedMessages)
    absl::StrAppend(&text, " and ", missing.size() - kMaxNamedMessages, " more");
  absl::StrAppend(&text, " (results that the loss did not use? exact mode does without them)");
  return text;
}

void Pass::Fail(absl::Status status, const std::string& source) {
  std::vector<Arrival> parked;
  std::shared_ptr<rpc::ServerCall> starter;
  TimerQueue::Id timer = 0;
  std::vector<std::pair<LeafInfo, Tensor>>
      collected;  // this and the next one are dropped at the end
  std::vector<std::pair<LeafInfo, SparseTensor>> sparse;
  auto self = shared_from_this();  // a callback may drop the last other handle
  // A worker that lost its part of the context together with our session there reports only that it
  // does not know the context. The loss of the session is the better reason.
  if (absl::Status lost = context_->usable(); !lost.ok())
    status = ErrorOn(host_->self().name, lost);
  {
    MutexLock lock(mutex_);
    if (done_) return;
    done_ = true;
    failure_ = status;
    parked.swap(parked_);
    starter.swap(starter_);
    timer = timer_;
    collected.swap(collected_);
    sparse.swap(collected_sparse_);
    if (graph_ != nullptr) graph_->Fail(status);
  }
  host_->CancelTimer(timer);
  host_->PassEnded(*this);
  if (starter != nullptr) starter->Reply(status);
  for (Arrival& arrival : parked) arrival.call->Reply(status);
  TellAborted(status, source);
  finished_.Set(status);
}

void Pass::FailIfWaiting(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    const bool own = info_.pass.incarnation == host_->self().incarnation;
    if (own || done_ || (begun_ && missing_.empty())) return;
  }
  Fail(ErrorOn(host_->self().name, why), "");
}

void Pass::TellAborted(const absl::Status& status, const std::string& source) {
  if (FaultOn("failure_not_told_to_others")) return;
  for (const std::string& peer : context_->KnownWorkers()) {
    if (peer == source || peer == host_->self().name) continue;
    rpc::Request request;
    request.method = "autograd.abort";
    request.payload.header = EncodeAbortInfo({context_->id(), info_.pass, status});
    host_->Send(peer, std::move(request), info_.timeout);
  }
}

}  // namespace psd::dist_autograd
