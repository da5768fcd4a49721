// Pass: begins the pass on a worker, finds out which gradients to expect, and sends marks.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/collect.h"
#include "core/base/faults.h"
#include "core/base/status.h"
#include "core/dist_autograd/pass.h"

namespace psd::dist_autograd {
namespace {

// Whether all edges of `sends` lead to leaves without hooks. (A hook may take long.)
bool LeadsToPlainLeavesOnly(const std::vector<std::shared_ptr<SendFunction>>& sends) {
  const auto plain = [](const Edge& edge) {
    return !edge || (edge.node->next().empty() && edge.node->hooks() == nullptr);
  };
  return std::all_of(sends.begin(), sends.end(), [&](const auto& send) {
    return std::all_of(send->next().begin(), send->next().end(), plain);
  });
}

}  // namespace

// ---- start
//
// A pass may fail before it has begun: its context may be released while it is planned. Then it
// sends nothing.

Future<Unit> Pass::Run(const std::vector<Root>& roots) {
  StartTimer(info_.timeout);
  auto self = shared_from_this();
  absl::Status status = Plan(roots);
  if (!status.ok()) Fail(ErrorOn(host_->self().name, status), "");
  return finished_.future();
}

absl::Status Pass::Plan(const std::vector<Root>& roots) {
  if (info_.mode == BackwardMode::kFast) {
    {
      MutexLock lock(mutex_);
      if (done_) return absl::OkStatus();
      Begin(context_->Sends(), StartBy::kAll, roots);
    }
    FeedRoots(roots);
    return absl::OkStatus();
  }
  GraphWalk walk(*context_, host_->self().incarnation, GraphWalk::Upstream::kFollow);
  for (const Root& root : roots) PSD_RETURN_IF_ERROR(walk.From(root.output.gradient_edge().node));
  walk.End();
  Marks marks;
  for (const RecvFunction* recv : walk.receives()) {
    if (recv->foreign()) {
      MarkFromRoots(roots);
      return absl::OkStatus();
    }
    marks[recv->peer()].push_back(recv->message().counter);
  }
  PSD_ASSIGN_OR_RETURN(Sends sends, FindSends(walk.own_messages()));
  {
    MutexLock lock(mutex_);
    if (done_) return absl::OkStatus();
    unsent_marks_ = std::move(marks);
    Begin(std::move(sends), StartBy::kElsewhere, roots);
  }
  FeedRoots(roots);
  return absl::OkStatus();
}

// Used if tensors depend on messages of further workers: before gradients are sent, every worker is
// told which of its messages will receive gradients.
void Pass::MarkFromRoots(std::vector<Root> roots) {
  Marks marks;
  absl::Status status;
  {
    MutexLock lock(mutex_);
    if (done_) return;
    for (const Root& root : roots) {
      if (status.ok()) status = walk_.From(root.output.gradient_edge().node);
    }
    marks = TakeFound();
  }
  if (!status.ok()) return Fail(ErrorOn(host_->self().name, status), "");
  SendMarks(std::move(marks), [self = shared_from_this(), roots](const absl::Status& marked) {
    if (!marked.ok()) return self->Fail(marked, "");
    {
      MutexLock lock(self->mutex_);
      if (self->done_) return;
      self->Begin(self->marked_sends_, StartBy::kMarked, roots);
    }
    // This thread reads the network, so it must not run a user's hooks.
    const absl::Status queued = self->host_->RunOwn([self, roots] { self->FeedRoots(roots); });
    if (!queued.ok()) self->Fail(ErrorOn(self->host_->self().name, queued), "");
  });
}

absl::StatusOr<Pass::Sends> Pass::FindSends(const std::vector<GlobalId>& messages) const {
  Sends sends;
  sends.reserve(messages.size());
  for (GlobalId message : messages) {
    PSD_ASSIGN_OR_RETURN(auto send, context_->FindSend(message));
    sends.push_back(std::move(send));
  }
  return sends;
}

absl::StatusOr<Pass::Sends> Pass::SendsToExpect(StartBy start,
                                                const std::vector<uint64_t>& expected) {
  if (start == StartBy::kAll || FaultOn("unused_results_expected")) return context_->Sends();
  if (start == StartBy::kMarked) {
    MutexLock lock(mutex_);
    return marked_sends_;
  }
  std::vector<GlobalId> messages;
  for (uint64_t counter : expected) messages.push_back({host_->self().incarnation, counter});
  std::sort(messages.begin(), messages.end());
  messages.erase(std::unique(messages.begin(), messages.end()), messages.end());
  PSD_ASSIGN_OR_RETURN(Sends sends, FindSends(messages));
  if (!context_->HasRecvsFromSelf()) return sends;
  // Messages that this worker sent to itself are not in the caller's lists; the walk finds them.
  GraphWalk walk(*context_, host_->self().incarnation, GraphWalk::Upstream::kIgnore);
  for (const auto& send : sends) PSD_RETURN_IF_ERROR(walk.From(send));
  PSD_ASSIGN_OR_RETURN(Sends own, FindSends(walk.own_messages()));
  for (auto& send : own) {
    if (!std::binary_search(messages.begin(), messages.end(), send->message())) {
      sends.push_back(std::move(send));
    }
  }
  return sends;
}

void Pass::Begin(Sends sends, StartBy start, const std::vector<Root>& roots) {
  walk_.End();
  light_ = roots.empty() && LeadsToPlainLeavesOnly(sends);
  start_ = start;
  std::vector<std::shared_ptr<Node>> starts;
  for (const auto& send : sends) {
    missing_.insert(send->message());
    if (send->leaves().empty()) starts.push_back(send);
  }
  for (const Root& root : roots) starts.push_back(root.output.gradient_edge().node);
  graph_ = std::make_unique<GraphPass>(std::move(starts), PassContext{this, info_.retain_graph});
  begun_ = true;
}

void Pass::StartTimer(absl::Duration delay) {
  TimerQueue::Id timer = host_->RunAfter(delay, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr) return;
    std::string missing;
    {
      MutexLock lock(self->mutex_);
      missing = self->MissingText();
    }
    self->Fail(absl::DeadlineExceededError(absl::StrCat(
                   "error on ", self->host_->self().name, ": backward in context ",
                   self->context_->id().ToString(), " did not end in time; ", missing)),
               "");
  });
  MutexLock lock(mutex_);
  timer_ = timer;
}

void Pass::FeedRoots(const std::vector<Root>& roots) {
  for (const Root& root : roots) Feed(root.output.gradient_edge().node, SeedOf(root));
  graph_->Forget();  // frees its bookkeeping now, while other workers are busy
}

// ---- marks

void Pass::Mark(const std::vector<GlobalId>& messages,
                absl::AnyInvocable<void(absl::Status)> done) {
  auto sends = FindSends(messages);
  if (!sends.ok()) return done(sends.status());
  Marks marks;
  absl::Status status;
  {
    MutexLock lock(mutex_);
    if (begun_ || done_) {
      status = absl::FailedPreconditionError("marks for a pass that runs or has ended here");
    }
    for (const auto& send : *sends) {
      if (!status.ok() || !marked_.insert(send->message()).second) continue;
      marked_sends_.push_back(send);
      status = walk_.From(send);
    }
    marks = TakeFound();
  }
  if (!status.ok()) return done(ErrorOn(host_->self().name, status));
  SendMarks(std::move(marks), std::move(done));
}

Pass::Marks Pass::TakeFound() {
  for (GlobalId message : walk_.own_messages()) {
    if (!marked_.insert(message).second) continue;
    auto send = context_->FindSend(message);
    if (send.ok()) marked_sends_.push_back(*std::move(send));
  }
  Marks marks;
  for (; marks_sent_ < walk_.receives().size(); ++marks_sent_) {
    const RecvFunction* recv = walk_.receives()[marks_sent_];
    marks[recv->peer()].push_back(recv->message().counter);
  }
  return marks;
}

void Pass::SendMarks(Marks marks, absl::AnyInvocable<void(absl::Status)> done) {
  std::vector<Future<Unit>> sent;
  for (auto& [peer, messages] : marks) {
    rpc::Request request;
    request.method = "autograd.mark";
    request.payload.header = EncodeMarkInfo({info_, std::move(messages)});
    sent.push_back(host_->Send(peer, std::move(request), info_.timeout)
                       .Then([peer = peer](const absl::StatusOr<rpc::Reply>& reply) {
                         return reply.ok() ? absl::OkStatus() : ErrorOn(peer, reply.status());
                       }));
  }
  Settle(sent).OnReady([done = std::move(done)](
                           const absl::StatusOr<std::vector<absl::StatusOr<Unit>>>& all) mutable {
    absl::Status first_error;
    for (const absl::StatusOr<Unit>& marked : *all) first_error.Update(marked.status());
    done(std::move(first_error));
  });
}

}  // namespace psd::dist_autograd
