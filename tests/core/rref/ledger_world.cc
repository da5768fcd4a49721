// The steps of a history, the rpc layer of the simulated world, and the invariants.
#include "tests/core/rref/ledger_world.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace psd::rref::sim {
namespace {

// The world must come to rest within this many messages.
constexpr int kMaxMessagesToRest = 100'000;

template <typename Map>
auto Nth(Map& map, uint32_t which) {
  return std::next(map.begin(), static_cast<ptrdiff_t>(which % map.size()));
}

}  // namespace

LedgerWorld::LedgerWorld(int workers, Mistake mistake) : mistake_(mistake) {
  for (int i = 0; i < workers; ++i) workers_.push_back(std::make_unique<Worker>(next_life_++));
}

std::string LedgerWorld::Run(const History& history) {
  for (const Step& step : history) {
    Play(step);
    CheckNothingFreedEarly();
    if (!wrong_.empty()) return wrong_;
  }
  ComeToRest();
  return wrong_;
}

void LedgerWorld::Wrong(const std::string& what) {
  if (wrong_.empty()) wrong_ = what;
}

// ---- steps

void LedgerWorld::Play(const Step& step) {
  const auto size = static_cast<uint32_t>(workers_.size());
  const int one = static_cast<int>(step.a % size);
  const int other = (one + 1 + static_cast<int>(step.b % (size - 1))) % static_cast<int>(size);
  switch (step.action % 24) {
    case 0:
    case 1:
      return Create(one, other);
    case 2:
      return Send(NewCall(Kind::kLookup, one, other));
    case 3:
    case 4:
      return Send(NewCall(Kind::kAsk, one, other));
    case 5:
    case 6:
      return PassHandle(one, other, step.c);
    case 7:
    case 8:
      return DropHandle(one, step.c);
    case 9:
      return GiveUp(one, step.c);
    case 10:
      if (step.c % 4 == 0) EndSessionOf(one, other);
      if (step.c % 16 == 1) Restart(one);
      return;
    default:
      if (!network_.empty()) Deliver(step.a % network_.size(), step.c % 6 == 0);
  }
}

void LedgerWorld::Create(int caller, int callee) {
  Call call = NewCall(Kind::kCreate, caller, callee);
  Worker& self = *workers_[caller];
  call.about = {callee, workers_[callee]->life, self.ids.Next(), self.ids.Next()};
  self.user.Add(NameOf(callee), 0, call.about.value, call.about.fork);
  self.handles[call.about.fork] = {call.about, call.session.epoch, /*created=*/true};
  Send(call);
}

// A fork that is not counted yet cannot keep a value alive for another worker. The exception is the
// fork of a value that this worker created, once the creation has begun.
bool LedgerWorld::MayBePassedOn(const Worker& holder, GlobalId fork, const Handle& handle) const {
  if (!holder.user.Check(fork).ok()) return false;
  const bool begun = handle.created && IsThere(*workers_[handle.about.owner], handle.about.value);
  return begun || holder.user.state(fork) == ForkState::kConfirmed;
}

void LedgerWorld::PassHandle(int caller, int callee, uint32_t which) {
  Worker& self = *workers_[caller];
  if (self.handles.empty()) return;
  auto& [fork, handle] = *Nth(self.handles, which);
  if (!handle.mine || callee == handle.about.owner || !self.user.Check(fork).ok()) return;
  if (!MayBePassedOn(self, fork, handle) && mistake_ != Mistake::kUncountedReferenceIsPassedOn)
    return;
  Call call = NewCall(Kind::kPass, caller, callee);
  call.about = handle.about;
  call.keeper = {caller, self.life, fork, handle.epoch};
  ++handle.in_calls;
  Send(call);
}

void LedgerWorld::DropHandle(int holder, uint32_t which) {
  Worker& self = *workers_[holder];
  if (self.handles.empty()) return;
  auto it = Nth(self.handles, which);
  it->second.mine = false;
  LetGo(holder, it->first);
}

void LedgerWorld::EndSessionOf(int caller, int callee) {
  auto here = workers_[callee]->here.find(caller);
  if (here != workers_[callee]->here.end()) EndHere(callee, caller, here->second);
}

void LedgerWorld::Restart(int worker) {
  ++probes_.restarts;
  const Incarnation former = workers_[worker]->life;
  workers_[worker] = std::make_unique<Worker>(next_life_++);
  for (int peer = 0; peer < static_cast<int>(workers_.size()); ++peer) {
    if (peer == worker) continue;
    Message notice;
    auto here = workers_[peer]->here.find(worker);
    if (here != workers_[peer]->here.end()) {
      notice.what = Message::What::kSessionEnds;
      notice.call.caller = worker;
      notice.call.callee = peer;
      notice.call.caller_life = here->second.peer;
      notice.call.session.epoch = here->second.epoch;
      network_.push_back(notice);
    }
    auto there = workers_[peer]->sessions.find(worker);
    if (there != workers_[peer]->sessions.end() && there->second.there == former) {
      notice.what = Message::What::kSessionLost;
      notice.call.caller = peer;
      notice.call.callee = worker;
      notice.call.caller_life = workers_[peer]->life;
      notice.call.session = there->second;
      network_.push_back(notice);
    }
  }
}

// Gives up a call, as if its deadline had passed or it had been cancelled.
void LedgerWorld::GiveUp(int caller, uint32_t which) {
  Worker& self = *workers_[caller];
  if (self.calls.empty()) return;
  const Call call = Nth(self.calls, which)->second;
  if (call.kind == Kind::kRelease || call.kind == Kind::kCounted) return;  // nobody waits for these
  ++probes_.given_up;
  self.calls.erase(call.id);
  Call cancel = call;
  cancel.kind = Kind::kCancel;
  network_.push_back({Message::What::kRequest, cancel});
  Failed(call, /*may_exist=*/true);
}

// Delivers any message of the network. A repeated message stays in the network.
void LedgerWorld::Deliver(size_t index, bool repeat) {
  const Message message = network_[index];
  const bool repeats = repeat && message.what <= Message::What::kAnswer;
  if (repeats) {
    ++probes_.repeated;
  } else {
    network_[index] = network_.back();
    network_.pop_back();
  }
  const Call& call = message.call;
  switch (message.what) {
    case Message::What::kRequest:
      return OnRequest(message);
    case Message::What::kAnswer:
      return OnAnswer(message);
    case Message::What::kMade:
      return Made(call);
    case Message::What::kSessionEnds:
      return EndHere(call.callee, call.caller, KeyOf(call));
    case Message::What::kSessionLost:
      return OnSessionLost(call);
  }
}

// ---- rpc

LedgerWorld::Session& LedgerWorld::SessionOn(int caller, int callee) {
  auto [session, first] = workers_[caller]->sessions.try_emplace(callee);
  if (first) session->second = {workers_[callee]->life, 1};
  return session->second;
}

LedgerWorld::Call LedgerWorld::NewCall(Kind kind, int caller, int callee) {
  Call call;
  call.id = next_call_++;
  call.kind = kind;
  call.caller = caller;
  call.callee = callee;
  call.caller_life = workers_[caller]->life;
  call.session = SessionOn(caller, callee);
  return call;
}

void LedgerWorld::Send(const Call& call) {
  workers_[call.caller]->calls[call.id] = call;
  network_.push_back({Message::What::kRequest, call});
}

void LedgerWorld::Answer(const Call& call, bool ok) {
  Worker& self = *workers_[call.callee];
  const Message message{Message::What::kAnswer, call, ok};
  self.serving.erase(call.id);
  self.answered[call.id] = message;
  network_.push_back(message);
}

bool LedgerWorld::Admit(const Call& call) {
  Worker& self = *workers_[call.callee];
  const SessionKey key = KeyOf(call);
  if (call.session.there != self.life || self.ended.count({key.peer, key.epoch}) > 0) return false;
  auto here = self.here.find(call.caller);
  if (here != self.here.end()) {
    if (here->second == key) return true;
    const SessionKey former = here->second;
    if (std::tie(key.peer, key.epoch) < std::tie(former.peer, former.epoch)) return false;
    EndHere(call.callee, call.caller, former);
  }
  self.here[call.caller] = key;
  if (workers_[call.caller]->life == key.peer) return true;
  Message lease_ends;  // the request comes from a former life of its caller
  lease_ends.what = Message::What::kSessionEnds;
  lease_ends.call = call;
  network_.push_back(lease_ends);
  return true;
}

void LedgerWorld::EndHere(int callee, int caller, SessionKey key) {
  Worker& self = *workers_[callee];
  if (!self.ended.insert({key.peer, key.epoch}).second) return;
  ++probes_.sessions_ended;
  auto here = self.here.find(caller);
  if (here != self.here.end() && here->second == key) self.here.erase(here);
  for (GlobalId value : self.owner.EndSession(key)) Freed(self, value);
  if (mistake_ != Mistake::kLoansOutliveTheirSession) {
    for (GlobalId child : self.loans.EndSession(key)) {
      ++probes_.loans_ended_by_death;
      Release(callee, self.user.ChildAccepted(child));
    }
  }
  if (workers_[caller]->life != key.peer) return;
  Message told;
  told.what = Message::What::kSessionLost;
  told.call.caller = caller;
  told.call.callee = callee;
  told.call.caller_life = key.peer;
  told.call.session = {self.life, key.epoch};
  network_.push_back(told);
}

void LedgerWorld::OnSessionLost(const Call& call) {
  Worker& self = *workers_[call.caller];
  Session& session = SessionOn(call.caller, call.callee);
  if (self.life != call.caller_life || !(session == call.session)) return;
  self.user.SessionLost({session.there, session.epoch}, absl::AbortedError("session ended"));
  session = {workers_[call.callee]->life, session.epoch + 1};
  std::vector<Call> lost;
  for (const auto& [id, pending] : self.calls) {
    if (pending.callee == call.callee && pending.session == call.session) lost.push_back(pending);
  }
  for (const Call& pending : lost) {
    self.calls.erase(pending.id);
    Failed(pending, /*may_exist=*/true);
  }
}

void LedgerWorld::OnRequest(const Message& message) {
  const Call& call = message.call;
  if (!Admit(call)) return;  // its caller learns that the session has ended
  Worker& self = *workers_[call.callee];
  if (call.kind == Kind::kCancel) return ServeCancel(call);
  if (self.cancelled.count(call.id) > 0 || self.serving.count(call.id) > 0) return;
  auto answered = self.answered.find(call.id);
  if (answered != self.answered.end()) {
    network_.push_back(answered->second);
    // Requests of these two kinds are served again, because the ledgers must not rely on rpc for
    // them.
    if (call.kind != Kind::kRelease && call.kind != Kind::kCounted) return;
  }
  Serve(call);
}

void LedgerWorld::OnAnswer(const Message& message) {
  const Call& call = message.call;
  Worker& self = *workers_[call.caller];
  if (self.life != call.caller_life || self.calls.erase(call.id) == 0) return;
  if (message.ok) return Succeeded(call);
  Failed(call, /*may_exist=*/call.kind == Kind::kFork);
}

// ---- invariants

bool LedgerWorld::IsThere(const Worker& owner, GlobalId value) const {
  return owner.hosted.count(value) > 0 || owner.under_creation.count(value) > 0;
}

// A confirmed fork keeps its value alive, so its holder can always use the value.
void LedgerWorld::CheckNothingFreedEarly() {
  for (const auto& worker : workers_) {
    for (const auto& [fork, handle] : worker->handles) {
      if (worker->user.state(fork) != ForkState::kConfirmed) continue;
      const Worker& owner = *workers_[handle.about.owner];
      if (owner.life != handle.about.owner_life) continue;
      // The session has ended, which the worker has yet to learn.
      if (owner.ended.count({worker->life, handle.epoch}) > 0) continue;
      if (!IsThere(owner, handle.about.value) || owner.owner.ForkCount(handle.about.value) == 0) {
        Wrong(absl::StrCat("value ", handle.about.value.ToString(), " was freed early: fork ",
                           fork.ToString(), " is held"));
      }
    }
  }
}

void LedgerWorld::ComeToRest() {
  for (int i = 0; i < kMaxMessagesToRest && wrong_.empty(); ++i) {
    for (int holder = 0; holder < static_cast<int>(workers_.size()); ++holder) {
      std::vector<GlobalId> mine;  // collected each time, because messages may bring more handles
      for (auto& [fork, handle] : workers_[holder]->handles) {
        if (std::exchange(handle.mine, false)) mine.push_back(fork);
      }
      for (GlobalId fork : mine) LetGo(holder, fork);
    }
    if (network_.empty()) return CheckNothingLeft();
    Deliver(0, /*repeat=*/false);
    CheckNothingFreedEarly();
  }
  Wrong("it does not come to rest");
}

void LedgerWorld::CheckNothingLeft() {
  for (const auto& worker : workers_) {
    const std::pair<const char*, size_t> counts[] = {
        {"forks held", worker->user.NumForks()},
        {"forks pending", worker->user.NumPending()},
        {"children in flight", worker->user.NumChildrenInFlight()},
        {"loans", worker->loans.size()},
        {"forks counted", worker->owner.NumForks()},
        {"values with forks", worker->owner.NumValues()},
        {"values", worker->hosted.size()},
        {"values under creation", worker->under_creation.size()},
        {"handles", worker->handles.size()},
        {"calls", worker->calls.size()},
    };
    for (const auto& [what, count] : counts) {
      if (count > 0) Wrong(absl::StrCat(count, " ", what, " are left of life ", worker->life));
    }
  }
}

}  // namespace psd::rref::sim
