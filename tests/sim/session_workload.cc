// World: the calls of the workload with their answers, the faults, and the course of a history.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "tests/sim/session_world.h"

namespace psd::rpc::sim {
namespace {

constexpr absl::Duration kRage = absl::Milliseconds(2500);
constexpr absl::Duration kCalm = absl::Seconds(40);

}  // namespace

// ---------------------------------------------------------------- workload

void World::StartCall(Process& process) {
  int peer = 0;
  do {
    peer = static_cast<int>(Pick(0, names_ - 1));
  } while (NameOf(peer) == process.name);
  // Two workers that do not listen never meet, and a worker that listens may have no place for the
  // other. In these cases only a deadline ends the wait.
  const bool has_place = max_sessions_ >= static_cast<size_t>(names_) && memory_bytes_ == 0;
  const bool can_meet = peer < owners_ || (process.listens && has_place);
  absl::Time deadline = absl::InfiniteFuture();
  if (Chance(0.5) || !can_meet) deadline = now_ + Within(1, 2000);
  Ask(process, peer, Chance(0.8) ? MethodKind::kMutation : MethodKind::kRead, deadline);
}

// Two workers that listen call each other at the same moment.
void World::Meet() {
  if (owners_ < 2) return;
  int first = static_cast<int>(Pick(0, owners_ - 2));
  int second = static_cast<int>(Pick(first + 1, owners_ - 1));
  for (auto [from, to] : {std::pair(first, second), std::pair(second, first)}) {
    Process* process = Living(NameOf(from));
    if (process == nullptr || process->paused_until > now_) continue;
    Ask(*process, to, MethodKind::kMutation, absl::InfiniteFuture());
  }
}

void World::Ask(Process& process, int peer, MethodKind kind, absl::Time deadline) {
  if (process.leaving) return;
  auto call = std::make_shared<SimCall>();
  call->uid = calls_.size();
  call->caller = process.id;
  call->kind = kind;
  call->peer = NameOf(peer);
  call->gives = Chance(0.8);
  call->joins = kind == MethodKind::kMutation && Chance(0.3);
  const auto& callers = process.sessions->callers();
  if (auto known = callers.find(call->peer); known != callers.end() && Chance(0.2)) {
    call->only_incarnation = known->second->peer_info().incarnation;
  } else if (const Process* there = Living(call->peer); there != nullptr && Chance(0.1)) {
    call->only_incarnation = there->incarnation;  // others have told the caller
  }
  CallSpec spec;
  spec.kind = call->kind;
  spec.wait_for_ready = Chance(0.3);
  spec.session_bound = Chance(0.1);
  spec.only_incarnation = call->only_incarnation;
  spec.deadline = deadline;
  spec.body = call;
  calls_.push_back(call);
  Step(process, [&](Actions& actions) {
    call->id = process.sessions->StartCall(now_, call->peer, std::move(spec), actions);
  });
  if (!Chance(0.1)) return;
  On(process.id, Within(0, 300), [this, call](Process& self) {
    Step(self, [&](Actions& actions) { self.sessions->CancelCall(call->peer, call->id, actions); });
  });
}

void World::Serve(Process& process, const std::shared_ptr<SimCall>& call, const RequestMeta& meta) {
  if (meta.callee_incarnation != process.incarnation) broken_ = "ran at a wrong incarnation";
  absl::Duration start = Chance(0.5) ? absl::ZeroDuration() : Within(0, 20);
  absl::Duration work = Chance(0.1) ? Within(10, 1500) : Within(0, 10);
  absl::Duration finish = Chance(0.5) ? absl::ZeroDuration() : Within(0, 200);
  On(process.id, start, [=](Process& self) {
    if (!self.sessions->BeginRun(meta.epoch, meta.call_id)) return Answer(self, call, meta, false);
    On(self.id, work, [=](Process& self) {
      if (call->kind == MethodKind::kMutation) {
        if (!self.sessions->BeginApply(meta.epoch, meta.call_id)) {
          return Answer(self, call, meta, false);
        }
        call->applied_at.push_back(self.incarnation);
        if (call->joins) Join(self, *processes_[call->caller], meta.epoch);
      }
      On(self.id, finish, [=](Process& self) { Answer(self, call, meta, true); });
    });
  });
}

std::shared_ptr<SimAnswer> World::NewAnswer(const Process& process, const CallKey& call,
                                            absl::Status status) {
  auto answer = std::make_shared<SimAnswer>();
  answer->call = call;
  answer->from = process.incarnation;
  answer->status = std::move(status);
  return answer;
}

std::shared_ptr<SimAnswer> World::ErrorInstead(const Process& process, const CallKey& call) {
  return NewAnswer(process, call,
                   WithDetail(absl::ResourceExhaustedError("an error instead of the answer"),
                              ErrorDetail{process.name, "", "", call.sequence != 0}));
}

void World::Answer(Process& process, const std::shared_ptr<SimCall>& call, const RequestMeta& meta,
                   bool ok) {
  const CallKey answered{meta.call_id, meta.sequence, meta.epoch};
  const auto answer = NewAnswer(
      process, answered, ok ? absl::OkStatus() : absl::CancelledError("the function stopped"));
  if (ok && call->gives) answer->gives = Give(process, call, meta.epoch);
  // If there is no memory to keep the answer of a mutation, an error is kept in its place.
  auto kept = answer;
  if (ok && meta.sequence != 0 && faulty_ && Chance(4 * trouble_)) {
    kept = ErrorInstead(process, answered);
    kept->gives = answer->gives;
    kept->attempt = kept->gives == nullptr ? 0 : 1;
  }
  AnswerRoute route;
  Step(process, [&](Actions& actions) {
    route = process.sessions->OnReply(now_, meta.epoch, meta.call_id, kept, 10,
                                      /*gives=*/kept->gives != nullptr, actions);
  });
  if (route.link == 0) return;
  if (meta.sequence == 0) answer->attempt = route.attempt;
  SendAnswer(process, route.link, kept, answer);
}

void World::SendAnswer(Process& process, LinkId link, const std::shared_ptr<SimAnswer>& kept,
                       const std::shared_ptr<SimAnswer>& sent) {
  Wire wire;
  wire.control.kind = MessageKind::kReply;
  wire.answer = sent;
  if (sent->status.ok() && faulty_ && Chance(trouble_)) {  // the carrier does not take it
    const CallKey& call = sent->call;
    wire.answer = ErrorInstead(process, call);
    if (call.sequence != 0 && kept->gives != nullptr) wire.answer->attempt = 1;
    ++counts_.answers_refused;
    if (call.sequence == 0) {
      Step(process, [&](Actions& actions) {
        process.sessions->OnAnswerRefused(call.epoch, call.id, kept, actions);
      });
    }
  }
  Send(process, link, std::move(wire));
}

// ---------------------------------------------------------------- faults

void World::Fault() {
  switch (Pick(0, 10)) {
    case 0:
    case 1:
      return StopProcess();
    case 2:
      return RestartProcess();
    case 3:
      return TakeOver();
    case 4:
      return Leave();
    default:
      break;
  }
  if (links_.empty()) return;
  auto link =
      links_.lower_bound(static_cast<LinkId>(Pick(1, static_cast<int64_t>(next_link_) - 1)));
  if (link == links_.end()) return;
  if (Chance(0.5)) return Cut(link->first);
  link->second.swallows[0] = link->second.swallows[0] || Chance(0.7);
  link->second.swallows[1] = link->second.swallows[1] || Chance(0.7);
}

void World::StopProcess() {
  Process& process = *processes_[Pick(0, static_cast<int64_t>(processes_.size()) - 1)];
  process.paused_until = now_ + (Chance(0.5) ? Within(1, 600) : Within(600, 2500));
}

void World::RestartProcess() {
  int worker = static_cast<int>(Pick(0, names_ - 1));
  Process* living = Living(NameOf(worker));
  if (living != nullptr) Kill(living->id);
  At(now_ + Within(0, 1200), [this, worker] {
    if (Living(NameOf(worker)) == nullptr) Spawn(NameOf(worker), worker < owners_);
  });
}

// A process stops in order, and another may take its place.
void World::Leave() {
  Process* process = Living(NameOf(static_cast<int>(Pick(0, names_ - 1))));
  if (process == nullptr || process->paused_until > now_ || process->leaving) return;
  process->leaving = true;
  if (Chance(0.3)) return FinishLeaving(*process);
  Step(*process, [&](Actions& actions) { process->sessions->BeginLeaving(now_, actions); });
  AwaitSettled(process->id, now_ + Within(0, 1000));
}

void World::AwaitSettled(int id, absl::Time until) {
  On(id, Within(0, 20), [this, id, until](Process& self) {
    if (self.sessions->Settled(now_) || now_ >= until) return FinishLeaving(self);
    AwaitSettled(id, until);
  });
}

void World::FinishLeaving(Process& process) {
  Actions actions;
  process.sessions->Leave(actions);
  for (const Action& action : actions) {
    if (std::holds_alternative<SendRequestAction>(action))
      broken_ = "begins a call while it leaves";
  }
  Perform(process, actions);
  const int worker = process.name[1] - '0';
  Kill(process.id);
  At(now_ + Within(0, 1200), [this, worker] {
    if (Living(NameOf(worker)) == nullptr) Spawn(NameOf(worker), worker < owners_);
  });
}

// A second process starts with the name of a trainer that may still live; the first may be stopped.
void World::TakeOver() {
  if (owners_ == names_) return;
  int worker = static_cast<int>(Pick(owners_, names_ - 1));
  Process* living = Living(NameOf(worker));
  if (living != nullptr && Chance(0.6)) living->paused_until = now_ + Within(300, 2500);
  int second = Spawn(NameOf(worker), false).id;
  if (Chance(0.3)) {
    At(now_ + Within(100, 1500), [this, second] {
      if (faulty_) Kill(second);
    });
  }
}

void World::Heal() {
  faulty_ = false;
  for (auto& process : processes_) process->paused_until = absl::InfinitePast();
  for (auto& [id, link] : links_) {
    if (link.swallows[0] || link.swallows[1]) Cut(id);
  }
  for (int i = 0; i < names_; ++i) {
    Process* last = Living(NameOf(i));
    // An older one may be fenced by a newer one that died. It would then rightly be refused for
    // ever.
    bool newest = last != nullptr;
    for (auto& process : processes_) {
      newest = newest && (process->name != last->name || process->id <= last->id);
    }
    if (!newest) last = &Spawn(NameOf(i), i < owners_);
    for (auto& process : processes_) {
      if (process->name == last->name && process->id != last->id) Kill(process->id);
    }
  }
  // A trainer whose name was held by another tries again until it is let in.
  for (int again = 0; again < 4; ++again) {
    At(now_ + again * absl::Seconds(2), [this] {
      for (int i = owners_; i < names_; ++i) {
        Process* trainer = Living(NameOf(i));
        if (trainer != nullptr && !trainer->leaving) ConnectToOwners(*trainer);
      }
    });
  }
}

std::string World::Run() {
  int calls = static_cast<int>(Pick(5, 30));
  for (int i = 0; i < calls; ++i) {
    At(now_ + Within(0, 2300), [this] {
      Process* process = Living(NameOf(static_cast<int>(Pick(0, names_ - 1))));
      if (process == nullptr || process->paused_until > now_) return;
      int burst = Chance(0.1) ? (memory_bytes_ == 0 ? 15 : 40) : 1;
      for (int i = 0; i < burst; ++i) StartCall(*process);
    });
  }
  int meetings = static_cast<int>(Pick(0, 2));
  for (int i = 0; i < meetings; ++i) {
    At(now_ + (Chance(0.5) ? absl::ZeroDuration() : Within(0, 2500)), [this] { Meet(); });
  }
  int faults = Chance(0.1) ? 0 : static_cast<int>(Pick(1, 6));
  for (int i = 0; i < faults; ++i) At(now_ + Within(0, 2500), [this] { Fault(); });
  RunUntil(now_ + kRage);
  Heal();
  absl::Time end = now_ + kCalm;
  while (now_ < end && !Settled() && broken_.empty()) RunUntil(now_ + absl::Milliseconds(500));
  for (auto& process : processes_) {
    if (process->alive) AddProbes(process->sessions->probes(), probes_);
  }
  return Judge();
}

}  // namespace psd::rpc::sim
