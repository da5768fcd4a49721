// The callees and callers of the simulated world, which act as core/rref does.
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/core/rref/ledger_world.h"

namespace psd::rref::sim {

// ---- callee

void LedgerWorld::Serve(const Call& call) {
  Worker& self = *workers_[call.callee];
  switch (call.kind) {
    case Kind::kCreate:
      return ServeCreate(call);
    case Kind::kLookup:
      return ServeLookup(call);
    case Kind::kAsk:
      return ServeAsk(call);
    case Kind::kPass:
      return ServePass(call);
    case Kind::kFork:
      return ServeFork(call);
    case Kind::kCounted:
      if (self.loans.Return(KeyOf(call), call.about.fork)) {
        Release(call.callee, self.user.ChildAccepted(call.about.fork));
      }
      return Answer(call, true);
    case Kind::kRelease:
      if (self.owner.DeleteFork(call.about.value, call.about.fork, KeyOf(call))) {
        Freed(self, call.about.value);
      }
      return Answer(call, true);
    case Kind::kCancel:
      return;
  }
}

void LedgerWorld::ServeCreate(const Call& call) {
  Worker& self = *workers_[call.callee];
  if (!self.owner.AddFork(call.about.value, call.about.fork, KeyOf(call))) {
    return Answer(call, false);
  }
  self.under_creation.insert(call.about.value);
  self.serving[call.id] = call;
  network_.push_back({Message::What::kMade, call});
}

// The creation ends, even if nobody holds the value any more.
void LedgerWorld::Made(const Call& call) {
  Worker& self = *workers_[call.callee];
  if (self.life != call.session.there) return;
  self.under_creation.erase(call.about.value);
  if (self.owner.ForkCount(call.about.value) > 0) {
    self.hosted.insert(call.about.value);
  } else {
    ++probes_.made_for_nobody;
  }
  Answer(call, true);
}

void LedgerWorld::ServeLookup(Call call) {
  Worker& self = *workers_[call.callee];
  if (self.hosted.empty()) return Answer(call, false);
  const GlobalId value =
      *std::next(self.hosted.begin(), static_cast<ptrdiff_t>(call.id % self.hosted.size()));
  call.about = {call.callee, self.life, value, self.ids.Next()};
  Answer(call, self.owner.AddFork(value, call.about.fork, KeyOf(call)));
}

void LedgerWorld::ServeAsk(Call call) {
  Worker& self = *workers_[call.callee];
  for (const auto& [fork, handle] : self.handles) {
    // An answer to the owner itself may carry only references to values that have been made.
    if (handle.about.owner == call.caller || !MayBePassedOn(self, fork, handle)) continue;
    const GlobalId child = self.ids.Next();
    if (mistake_ == Mistake::kLentReferenceIsNotKept) {
      // The deliberate mistake: nothing keeps the lent reference.
    } else if (!self.user.AddChild(fork, child).ok()) {
      continue;
    } else if (!self.loans.Add(KeyOf(call), child)) {
      Wrong("a loan to a session that has ended");
    }
    call.about = handle.about;
    call.about.fork = child;
    call.keeper = {call.callee, self.life, fork, handle.epoch};
    return Answer(call, true);
  }
  Answer(call, false);
}

// The function begins when the owner has counted the callee's own fork.
void LedgerWorld::ServePass(const Call& call) {
  workers_[call.callee]->serving[call.id] = call;
  Call fork = NewCall(Kind::kFork, call.callee, call.about.owner);
  fork.keeper = call.keeper;
  fork.passed_by = call.id;
  Borrow(call.callee, call.about, std::move(fork));
}

void LedgerWorld::ServeFork(const Call& call) {
  Worker& self = *workers_[call.callee];
  const GlobalId value = call.about.value;
  bool counted = self.owner.AddFork(value, call.about.fork, KeyOf(call));
  if (counted && !IsThere(self, value)) {
    self.owner.DeleteFork(value, call.about.fork, KeyOf(call));
    ++probes_.refused_forks;
    counted = false;
    if (MustBeThere(call)) {
      Wrong(absl::StrCat("value ", value.ToString(), " is gone: worker", call.keeper.worker,
                         " should have kept it"));
    }
  }
  if (counted && self.under_creation.count(value) > 0) ++probes_.forks_while_made;
  Answer(call, counted);
}

bool LedgerWorld::MustBeThere(const Call& fork) const {
  const Worker& asker = *workers_[fork.caller];
  if (asker.life != fork.caller_life || asker.calls.count(fork.id) == 0) return false;
  const Worker& keeper = *workers_[fork.keeper.worker];
  const Worker& owner = *workers_[fork.callee];
  if (keeper.life != fork.keeper.life) return false;
  if (owner.ended.count({keeper.life, fork.keeper.epoch}) > 0) return false;
  if (fork.lent.has_value()) return keeper.ended.count({asker.life, fork.lent_in}) == 0;
  const bool waits = keeper.calls.count(fork.passed_by) > 0;
  return waits && keeper.user.state(fork.keeper.fork) != ForkState::kFailed;
}

// Takes back the reference that an answer has given.
void LedgerWorld::ServeCancel(const Call& call) {
  Worker& self = *workers_[call.callee];
  if (!self.cancelled.insert(call.id).second) return;
  auto answered = self.answered.find(call.id);
  if (answered == self.answered.end() || !answered->second.ok) return;
  const Call given = answered->second.call;
  if (given.kind == Kind::kLookup) {
    ++probes_.answers_taken_back;
    if (self.owner.DeleteFork(given.about.value, given.about.fork, KeyOf(given))) {
      Freed(self, given.about.value);
    }
  }
  if (given.kind == Kind::kAsk && self.loans.Return(KeyOf(given), given.about.fork)) {
    ++probes_.answers_taken_back;
    Release(call.callee, self.user.ChildAccepted(given.about.fork));
  }
}

void LedgerWorld::Freed(Worker& owner, GlobalId value) {
  if (owner.under_creation.count(value) > 0) return;  // it is freed when it has been made
  if (owner.hosted.erase(value) != 1) {
    Wrong(absl::StrCat("value ", value.ToString(), " was freed twice"));
  }
}

// ---- caller

void LedgerWorld::Succeeded(const Call& call) {
  Worker& self = *workers_[call.caller];
  switch (call.kind) {
    case Kind::kCreate:
      return Release(call.caller,
                     self.user.Confirm(call.about.fork, {call.session.there, call.session.epoch}));
    case Kind::kLookup:
      self.user.Add(NameOf(call.callee), call.session.there, call.about.value, call.about.fork);
      Release(call.caller,
              self.user.Confirm(call.about.fork, {call.session.there, call.session.epoch}));
      self.handles[call.about.fork] = {call.about, call.session.epoch};
      return;
    case Kind::kAsk: {
      Call fork = NewCall(Kind::kFork, call.caller, call.about.owner);
      fork.keeper = call.keeper;
      fork.lent = call.about.fork;
      fork.lent_in = call.session.epoch;
      return Borrow(call.caller, call.about, std::move(fork));
    }
    case Kind::kPass: {
      auto handle = self.handles.find(call.about.fork);
      --handle->second.in_calls;
      return LetGo(call.caller, call.about.fork);
    }
    case Kind::kFork:
      Release(call.caller,
              self.user.Confirm(call.about.fork, {call.session.there, call.session.epoch}));
      return BorrowEnded(call, true);
    case Kind::kCounted:
    case Kind::kRelease:
    case Kind::kCancel:
      return;
  }
}

void LedgerWorld::Failed(const Call& call, bool may_exist) {
  Worker& self = *workers_[call.caller];
  const absl::Status why = absl::AbortedError("failed");
  if (call.kind == Kind::kCreate || call.kind == Kind::kFork) {
    Release(call.caller, self.user.Fail(call.about.fork, why, may_exist));
  }
  if (call.kind == Kind::kFork) BorrowEnded(call, false);
  if (call.kind == Kind::kPass) Succeeded(call);  // the call no longer needs its argument
}

void LedgerWorld::Borrow(int holder, const Reference& from, Call fork) {
  Worker& self = *workers_[holder];
  fork.about = from;
  fork.about.fork = self.ids.Next();
  self.user.Add(NameOf(from.owner), from.owner_life, from.value, fork.about.fork);
  self.handles[fork.about.fork] = {fork.about, fork.session.epoch};
  if (fork.session.there != from.owner_life) return Failed(fork, true);  // the owner was restarted
  Send(fork);
}

// The worker that lent or passed the reference is told whether the fork was counted or not.
void LedgerWorld::BorrowEnded(const Call& call, bool ok) {
  Worker& self = *workers_[call.caller];
  if (call.lent.has_value()) {
    Call counted = NewCall(Kind::kCounted, call.caller, call.keeper.worker);
    counted.about.fork = *call.lent;
    Send(counted);
  }
  auto served = self.serving.find(call.passed_by);
  if (served == self.serving.end()) return;
  if (ok && call.passed_by % 2 == 0) {  // otherwise the function keeps its argument
    self.handles[call.about.fork].mine = false;
    LetGo(call.caller, call.about.fork);
  }
  Answer(Call(served->second), ok);
}

void LedgerWorld::LetGo(int holder, GlobalId fork) {
  Worker& self = *workers_[holder];
  auto handle = self.handles.find(fork);
  if (handle == self.handles.end() || handle->second.mine || handle->second.in_calls > 0) return;
  self.handles.erase(handle);
  Release(holder, self.user.Drop(fork));
}

void LedgerWorld::Release(int holder, const std::optional<ForkRelease>& release) {
  if (!release.has_value()) return;
  Call call = NewCall(Kind::kRelease, holder, release->owner.back() - '0');
  // The owner has been restarted, and all its counts are gone.
  if (release->owner_incarnation != 0 && release->owner_incarnation != call.session.there) return;
  call.about.value = release->value;
  call.about.fork = release->fork;
  Send(call);
}

}  // namespace psd::rref::sim
