// How a rank's part in a group ends: it fails, leaves, or hears that another rank has.
#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "core/services/collectives/collective_codec.h"
#include "core/services/collectives/collective_group.h"

namespace psd::services {
namespace {

absl::Status SessionHasEnded() {
  return absl::UnavailableError("its session here has ended");
}

}  // namespace

void CollectiveGroup::Fail(const absl::Status& failure) {
  Steps steps;
  {
    MutexLock lock(mutex_);
    GroupEffects effects;
    ledger_.Fail(failure, effects);
    steps = Resolve(effects);
  }
  Perform(steps);
}

void CollectiveGroup::Lost(int rank, const absl::Status& why) {
  Steps steps;
  {
    MutexLock lock(mutex_);
    GroupEffects effects;
    ledger_.Lost(rank, why, effects);
    steps = Resolve(effects);
  }
  Perform(steps);
}

void CollectiveGroup::CannotTake(int from, const absl::Status& why) {
  if (!absl::IsInvalidArgument(why)) return GiveUp(why);
  Steps steps;
  {
    MutexLock lock(mutex_);
    GroupEffects effects;
    ledger_.Broken(from, why, effects);
    steps = Resolve(effects);
  }
  Perform(steps);
}

void CollectiveGroup::FailAll() {
  std::map<uint64_t, RunningPtr> running;
  std::vector<RunningPtr> incomplete;
  std::map<int, WatchAnswer> watchers;
  std::map<uint64_t, rpc::Call> messages;
  absl::Status failure;
  v1::CollectiveEnd end;
  absl::AnyInvocable<void() &&> on_end;
  {
    MutexLock lock(mutex_);
    on_end.swap(on_end_);
    running.swap(running_);
    for (const auto& [number, call] : running)
      if (!call->complete) incomplete.push_back(call);
    watchers.swap(watchers_);
    messages.swap(messages_);
    failure = ledger_.failure();
    end = End();
  }
  // Before the user hears of it, and may let the group go.
  if (const auto ended = ended_.lock()) ended->Keep(shared_from_this());
  sent_.NotifyAll();
  if (on_end) std::move(on_end)();
  EndWatches(watchers, end);
  for (const RunningPtr& call : incomplete) call->result.Set(failure);
  FailTransfers(failure, end);
  // Nobody needs them any more, and they hold tensors.
  for (const auto& [id, message] : messages) message.Cancel();
}

bool CollectiveGroup::has_left() const {
  MutexLock lock(mutex_);
  return left_;
}

void CollectiveGroup::OnEnd(absl::AnyInvocable<void() &&> then) {
  {
    MutexLock lock(mutex_);
    if (ledger_.failure().ok()) {
      on_end_ = std::move(then);
      return;
    }
  }
  std::move(then)();
}

v1::CollectiveEnd CollectiveGroup::End() const {
  v1::CollectiveEnd end;
  if (left_) {
    end.set_left(true);
  } else {
    EncodeFailure(ledger_.failure(), end);
  }
  return end;
}

void CollectiveGroup::EndWatches(const std::map<int, WatchAnswer>& watchers,
                                 const v1::CollectiveEnd& end) {
  for (const auto& [rank, answer] : watchers) {
    const bool applied = rpc::BeginApply(*answer.call()).ok();
    if (applied) {
      answer(end);
    } else {
      answer(absl::CancelledError("the group was left"));
    }
  }
}

void CollectiveGroup::Leave(absl::Duration limit) {
  const absl::Time until = Clock::Steady().Now() + limit;
  Steps steps;
  std::map<int, WatchAnswer> watchers;
  std::vector<rpc::Call> watches;
  {
    MutexLock lock(mutex_);
    while (ledger_.failure().ok() && unanswered_ + performing_ > 0) {
      const absl::Duration left = until - Clock::Steady().Now();
      if (left <= absl::ZeroDuration()) break;
      sent_.WaitFor(mutex_, left);
    }
    if (ledger_.failure().ok()) {
      left_ = true;
      watchers.swap(watchers_);
      GroupEffects effects;
      ledger_.Left(members_.rank, effects);
      steps = Resolve(effects);
    }
    watches.swap(watches_);
    watches_.resize(members_.workers.size());
  }
  v1::CollectiveEnd end;
  end.set_left(true);
  EndWatches(watchers, end);
  Perform(steps);
  for (const rpc::Call& watch : watches) watch.Cancel();
}

void CollectiveGroup::GiveUp(const absl::Status& why) {
  Steps steps;
  {
    MutexLock lock(mutex_);
    GroupEffects effects;
    ledger_.GiveUp(why, effects);
    steps = Resolve(effects);
  }
  Perform(steps);
}

void CollectiveGroup::Close(absl::Duration limit) {
  Leave(limit);
  gate_->Close();
}

// ---- watches: a rank answers them when its part ends

void CollectiveGroup::Watch() {
  v1::CollectiveWatch message;
  message.set_generation(members_.generation);
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == members_.rank) continue;
    const rpc::Call watch = StartMessage(kWatchRank.info, rank, rpc::PlainPayload(message),
                                         /*timeout=*/absl::ZeroDuration());
    bool over = false;
    {
      MutexLock lock(mutex_);
      over = !ledger_.failure().ok();
      if (!over) watches_[rank] = watch;
    }
    if (over) watch.Cancel();  // nobody would end it after Leave
    watch.reply().OnReady(
        [self = shared_from_this(), rank](const absl::StatusOr<rpc::Reply>& reply) {
          self->WatchEnded(rank, reply);
        });
  }
}

void CollectiveGroup::WatchEnded(int rank, const absl::StatusOr<rpc::Reply>& reply) {
  if (!reply.ok()) return Lost(rank, reply.status());
  const auto end = rpc::Wire<v1::CollectiveEnd>::ParseReply(*reply, kWatchRank.info.name);
  if (!end.ok()) return CannotTake(rank, end.status());
  if (!end->left()) return Fail(DecodeFailure(*end));
  Steps steps;
  std::vector<TakeAnswer> unanswered;
  {
    MutexLock lock(mutex_);
    GroupEffects effects;
    ledger_.Left(rank, effects);
    if (const absl::Status waits = LeftTransfers(rank, unanswered); !waits.ok())
      ledger_.Fail(waits, effects);
    steps = Resolve(effects);
  }
  for (const TakeAnswer& answer : unanswered)
    answer(absl::CancelledError("the rank that asked has left"));
  Perform(steps);
}

void CollectiveGroup::ServeWatch(int from, const WatchAnswer& answer) {
  std::map<int, WatchAnswer> ended, former;
  v1::CollectiveEnd end;
  bool session_ended = false;
  {
    MutexLock lock(mutex_);
    watched_in_[from] = answer.call()->session_epoch();
    session_ended = watched_in_[from] <= ended_in_[from];
    if (const auto found = watchers_.find(from); found != watchers_.end())
      former.insert(watchers_.extract(found));
    if (ledger_.failure().ok()) {
      watchers_.emplace(from, answer);
    } else {
      end = End();
      ended.emplace(from, answer);
    }
  }
  for (const auto& [rank, second] : former)
    second(absl::InvalidArgumentError("a second watch of one rank"));
  EndWatches(ended, end);
  if (!ended.empty()) return;
  // Without this the answer would be kept for a rank that no longer waits for it.
  answer.call()->OnCancel([weak = weak_from_this(), from, call = answer.call().get()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    std::map<int, WatchAnswer> cancelled;
    {
      MutexLock lock(self->mutex_);
      const auto found = self->watchers_.find(from);
      if (found == self->watchers_.end() || found->second.call().get() != call) return;
      cancelled.insert(self->watchers_.extract(found));
    }
    EndWatches(cancelled, {});
  });
  if (session_ended) Lost(from, SessionHasEnded());
}

void CollectiveGroup::SessionEnded(int from, uint64_t epoch) {
  {
    MutexLock lock(mutex_);
    ended_in_[from] = std::max(ended_in_[from], epoch);
    if (watched_in_[from] != epoch) return;
  }
  Lost(from, SessionHasEnded());
}

}  // namespace psd::services
