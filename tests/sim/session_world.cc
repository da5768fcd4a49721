#include "tests/sim/session_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::rpc::sim {

struct SimAnswer : Opaque {
  bool ok = false;
  Incarnation from = 0;
  uint64_t epoch = 0;    // of the session in which it was given
  uint32_t attempt = 0;  // see ReplyMeta
  std::shared_ptr<SimCall> call;
  bool taken = false;  // by its caller
  // A fork that the answer gives the caller: a process counts it under the caller's session until
  // the caller has it, the answer was dropped, or the session has ended.
  int fork_at = -1;
  bool fork_held = false;
};

namespace {

constexpr absl::Duration kRage = absl::Milliseconds(2500);
constexpr absl::Duration kCalm = absl::Seconds(40);

struct SimWork : Opaque {
  bool cancelled = false;
};

std::string NameOf(int worker) {
  return absl::StrCat("w", worker);
}

void AddProbes(const SessionProbes& from, SessionProbes& to) {
  const auto* source = reinterpret_cast<const uint64_t*>(&from);
  auto* target = reinterpret_cast<uint64_t*>(&to);
  for (size_t i = 0; i < sizeof(SessionProbes) / sizeof(uint64_t); ++i) target[i] += source[i];
}

}  // namespace

World::World(uint64_t seed, const Rules& rules) : random_(seed), rules_(rules) {
  options_.lease = absl::Milliseconds(900);
  options_.retry_window = absl::Milliseconds(2500);
  options_.reconnect_min = absl::Milliseconds(20);
  options_.reconnect_max = absl::Milliseconds(200);
  options_.silence = absl::Milliseconds(400);
  // Small bounds, so that windows fill up.
  options_.max_unacknowledged_answers = static_cast<size_t>(Pick(4, 12));
  if (Chance(0.3)) options_.max_unacknowledged_bytes = static_cast<size_t>(Pick(100, 1000));
  names_ = static_cast<int>(std::min(Pick(2, 6), Pick(2, 6)));
  owners_ = static_cast<int>(Pick(1, Chance(0.5) ? names_ : (names_ + 1) / 2));
  // An even delay keeps two workers in step that do the same thing at the same moment.
  one_way_ = Chance(0.5) ? absl::ZeroDuration() : Within(1, 30);
  trouble_ = Chance(0.2) ? 0 : 0.002 * static_cast<double>(Pick(1, 10));
  for (int i = 0; i < names_; ++i) Spawn(NameOf(i), i < owners_);
}

// ---------------------------------------------------------------- events

void World::At(absl::Time when, std::function<void()> run) {
  events_.push(Event{when, order_++, std::move(run)});
}

void World::On(int process, absl::Duration delay, std::function<void(Process&)> run) {
  At(now_ + delay, [this, process, run = std::move(run)] {
    Process& target = *processes_[process];
    if (!target.alive) return;
    if (target.paused_until > now_) {
      On(process, target.paused_until - now_, run);
    } else {
      run(target);
    }
  });
}

void World::RunUntil(absl::Time end) {
  while (!events_.empty() && events_.top().when <= end && broken_.empty()) {
    Event event = std::move(const_cast<Event&>(events_.top()));  // popped before anyone compares
    events_.pop();
    now_ = event.when;
    event.run();
  }
  now_ = std::max(now_, end);
}

absl::Duration World::Latency() {
  if (faulty_ && Chance(0.02)) return Within(50, 600);
  if (one_way_ > absl::ZeroDuration()) return one_way_ + absl::Microseconds(Pick(0, 20));
  return absl::Microseconds(Pick(50, 8000));
}

// ---------------------------------------------------------------- processes

World::Process& World::Spawn(const std::string& name, bool listens) {
  auto process = std::make_unique<Process>();
  process->id = static_cast<int>(processes_.size());
  process->name = name;
  process->incarnation = 0xa000 + processes_.size();
  process->listens = listens;
  WorkerSessions::Options options;
  options.self = {name, process->incarnation};
  options.session = options_;
  options.jitter_seed = random_();
  process->sessions = std::make_unique<WorkerSessions>(std::move(options));
  processes_.push_back(std::move(process));
  Process& spawned = *processes_.back();
  // Who does not listen is known when it comes, and forgotten when it has left.
  for (int i = 0; i < owners_; ++i) {
    if (NameOf(i) != name) spawned.sessions->AddPeer(NameOf(i), NameOf(i));
  }
  ArmTick(spawned);
  if (!listens) ConnectToOwners(spawned);
  return spawned;
}

void World::ConnectToOwners(Process& process) {
  for (int i = 0; i < owners_; ++i) {
    if (NameOf(i) == process.name) continue;
    CallSpec spec;
    spec.connect_only = true;
    spec.wait_for_ready = true;
    spec.body = std::make_shared<SimCall>();
    Step(process, [&](Actions& actions) {
      process.sessions->StartCall(now_, NameOf(i), std::move(spec), actions);
    });
  }
}

void World::Kill(int id) {
  Process& process = *processes_[id];
  if (!process.alive) return;
  process.alive = false;
  AddProbes(process.sessions->probes(), probes_);
  for (const auto& call : calls_) {
    if (call->caller == id && call->completed == 0) call->orphaned = true;
  }
  for (auto& [link, state] : links_) {
    for (int end = 0; end < 2; ++end) {
      if (state.ends[end] != id || !state.open[end]) continue;
      state.open[end] = false;
      if (!state.swallows[end]) CloseEnd(link, 1 - end, Latency());
    }
  }
}

World::Process* World::Living(const std::string& name) {
  for (auto process = processes_.rbegin(); process != processes_.rend(); ++process) {
    if ((*process)->name == name && (*process)->alive) return process->get();
  }
  return nullptr;
}

void World::ArmTick(Process& process) {
  absl::Time wake = std::max(process.sessions->NextWake(), now_ + absl::Microseconds(10));
  if (wake >= process.tick_at) return;
  process.tick_at = wake;
  On(process.id, wake - now_, [this, wake](Process& self) {
    if (self.tick_at != wake) return;  // an earlier one took over
    self.tick_at = absl::InfiniteFuture();
    Step(self, [&](Actions& actions) { self.sessions->Tick(now_, actions); });
  });
}

void World::Step(Process& process, const std::function<void(Actions&)>& input) {
  auto actions = std::make_shared<Actions>();
  input(*actions);
  for (const Action& action : *actions) {
    auto* control = std::get_if<std::unique_ptr<SendControlAction>>(&action);
    if (control != nullptr) CheckGreeting(process, **control);
  }
  ArmTick(process);
  if (!faulty_ || !Chance(0.1)) return Perform(process, *actions);
  // A thread that was about to perform them is held up, and others overtake it.
  On(process.id, Within(0, 5), [this, actions](Process& self) { Perform(self, *actions); });
}

void World::Perform(Process& process, Actions& actions) {
  for (Action& action : actions) {
    if (auto* dial = std::get_if<DialAction>(&action)) {
      Dial(process, *dial);
    } else if (auto* close = std::get_if<CloseLinkAction>(&action)) {
      Link& link = links_[close->link];
      int end = link.ends[0] == process.id ? 0 : 1;
      if (!link.open[end]) continue;
      CloseEnd(close->link, end, absl::ZeroDuration());
      if (!link.swallows[end]) CloseEnd(close->link, 1 - end, Latency());
    } else if (auto* control = std::get_if<std::unique_ptr<SendControlAction>>(&action)) {
      Wire wire;
      wire.control = std::move((*control)->header);
      Send(process, (*control)->link, std::move(wire));
    } else if (auto* request = std::get_if<SendRequestAction>(&action)) {
      SendRequest(process, *request);
    } else if (auto* answer = std::get_if<SendAnswerAction>(&action)) {
      Wire wire;
      wire.control.kind = MessageKind::kReply;
      wire.call_id = answer->call_id;
      wire.answer = answer->answer;
      Send(process, answer->link, std::move(wire));
    } else if (auto* complete = std::get_if<CompleteAction>(&action)) {
      auto call = std::static_pointer_cast<SimCall>(complete->body);
      ++call->completed;
      call->status = complete->status;
    } else if (auto* cancel = std::get_if<CancelWorkAction>(&action)) {
      static_cast<SimWork&>(*cancel->work).cancelled = true;
    } else if (auto* dropped = std::get_if<AnswerDroppedAction>(&action)) {
      DropFork(*dropped->answer);
    } else if (auto* ended = std::get_if<SessionEndedAction>(&action)) {
      // Whoever is told may be busy, and hears of the end when the next session lives.
      const absl::Duration late = faulty_ && Chance(0.3) ? Within(0, 300) : absl::ZeroDuration();
      On(process.id, late, [this, peer = ended->peer, epoch = ended->epoch](Process& self) {
        EndSession(self, peer, epoch);
      });
    }
  }
}

void World::SendRequest(Process& process, SendRequestAction& request) {
  auto call = std::static_pointer_cast<SimCall>(request.body);
  call->attempt = request.meta.attempt;
  if (faulty_ && Chance(2 * trouble_)) {  // the carrier does not take it
    return Step(process, [&](Actions& actions) {
      process.sessions->OnSendRefused(call->peer, request.meta.call_id,
                                      absl::ResourceExhaustedError("refused"), actions);
    });
  }
  Wire wire;
  wire.control.kind = MessageKind::kRequest;
  wire.meta = request.meta;
  wire.call = std::move(call);
  Send(process, request.link, std::move(wire));
}

// The other end takes a number that it has seen for a copy of an old greeting.
void World::CheckGreeting(Process& process, const SendControlAction& sent) {
  if (sent.header.kind != MessageKind::kHello) return;
  const Link& link = links_[sent.link];
  const int peer = link.ends[link.ends[0] == process.id ? 1 : 0];
  uint64_t& latest = process.greeted[peer];
  if (sent.header.sequence <= latest) broken_ = "greets under a number that it used before";
  latest = sent.header.sequence;
}

// ---------------------------------------------------------------- network

void World::Dial(Process& process, const DialAction& dial) {
  int from = process.id;
  Process* target = Living(dial.address);
  bool unreachable = faulty_ && Chance(5 * trouble_);
  if (target == nullptr || unreachable) {
    On(from, Latency(), [this, peer = dial.peer, unreachable](Process& self) {
      Step(self, [&](Actions& actions) {
        self.sessions->OnDialFailed(now_, peer, !unreachable, absl::UnavailableError("dial"),
                                    actions);
      });
    });
    return;
  }
  LinkId id = next_link_++;
  Link link;
  link.ends[0] = from;
  link.ends[1] = target->id;
  links_[id] = link;
  target->sessions->OnAccepted(now_, id, process.name);
  ArmTick(*target);
  On(from, Latency(), [this, peer = dial.peer, id](Process& self) {
    Step(self, [&](Actions& actions) { self.sessions->OnDialed(now_, peer, id, actions); });
    if (!links_[id].open[0]) CloseEnd(id, 0, absl::ZeroDuration());
  });
}

void World::Send(Process& process, LinkId id, Wire wire) {
  Link& link = links_[id];
  int end = link.ends[0] == process.id ? 0 : 1;
  if (!link.open[end]) return;
  wire.from = process.name;
  wire.to = processes_[link.ends[1 - end]]->name;
  auto shared = std::make_shared<const Wire>(std::move(wire));
  if (link.swallows[end]) return;
  if (faulty_ && Chance(trouble_)) {  // lost: the link will notice, some time
    At(now_ + Within(1, 800), [this, id] { Cut(id); });
    return;
  }
  Deliver(id, 1 - end, shared, Latency());
  if (faulty_ && Chance(4 * trouble_)) Deliver(id, 1 - end, shared, Within(0, 400));
  if (faulty_ && Chance(4 * trouble_)) {
    At(now_ + Within(0, 3000), [this, shared] { DeliverLate(shared); });
  }
}

void World::Deliver(LinkId id, int end, const WirePtr& wire, absl::Duration delay) {
  On(links_[id].ends[end], delay, [this, id, end, wire](Process& self) {
    if (links_[id].open[end]) Receive(self, id, wire);
  });
}

// A copy turns up on whatever link the two have now.
void World::DeliverLate(const WirePtr& wire) {
  for (auto link = links_.rbegin(); link != links_.rend(); ++link) {
    for (int end = 0; end < 2; ++end) {
      const Process& to = *processes_[link->second.ends[end]];
      const Process& from = *processes_[link->second.ends[1 - end]];
      if (!link->second.open[end] || to.name != wire->to || from.name != wire->from) continue;
      // A copy of a read that was not sent again cannot have stayed behind on an older link.
      if (wire->control.kind == MessageKind::kRequest && wire->meta.sequence == 0 &&
          wire->meta.attempt == wire->call->attempt) {
        return;
      }
      // Another incarnation's hello or answers cannot come from this one's connection.
      bool own =
          wire->control.kind == MessageKind::kRequest || wire->control.kind == MessageKind::kCancel;
      if (own) Deliver(link->first, end, wire, absl::ZeroDuration());
      return;
    }
  }
}

void World::Receive(Process& self, LinkId link, const WirePtr& wire) {
  ++deliveries_;
  Step(self, [&](Actions& actions) {
    if (wire->control.kind == MessageKind::kRequest) {
      auto work = std::make_shared<SimWork>();
      if (self.sessions->OnRequest(now_, link, wire->meta, work, actions)) {
        self.leaving ? Answer(self, wire->call, wire->meta, /*ok=*/false)
                     : Serve(self, wire->call, wire->meta);
      }
    } else if (wire->control.kind == MessageKind::kReply) {
      auto& answer = static_cast<SimAnswer&>(*wire->answer);
      const ReplyMeta meta{wire->call_id, answer.epoch, answer.attempt};
      auto body = self.sessions->OnAnswer(now_, link, meta, Pick(1, 100), actions);
      if (body == nullptr) return;
      if (answer.fork_at >= 0 && !answer.fork_held && SessionLives(answer))
        broken_ = "a caller takes what was taken back";
      answer.taken = true;
      auto& call = static_cast<SimCall&>(*body);
      ++call.completed;
      call.ok = answer.ok;
      call.answered_by = answer.from;
      if (!answer.ok) call.status = absl::CancelledError("the function stopped");
    } else {
      self.sessions->OnControl(now_, link, wire->control, actions);
    }
  });
}

void World::CloseEnd(LinkId id, int end, absl::Duration delay) {
  links_[id].open[end] = links_[id].open[end] && delay > absl::ZeroDuration();
  On(links_[id].ends[end], delay, [this, id, end](Process& self) {
    links_[id].open[end] = false;
    Step(self, [&](Actions& actions) { self.sessions->OnLinkClosed(now_, id, actions); });
  });
}

void World::Cut(LinkId id) {
  CloseEnd(id, 0, Latency());
  CloseEnd(id, 1, Latency());
}

// ---------------------------------------------------------------- workload

void World::StartCall(Process& process) {
  int peer = 0;
  do {
    peer = static_cast<int>(Pick(0, names_ - 1));
  } while (NameOf(peer) == process.name);
  // Two that do not listen never meet: there only a deadline ends the wait.
  bool can_meet = process.listens || peer < owners_;
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
  call->joins = kind == MethodKind::kMutation && Chance(0.3);
  const auto& callers = process.sessions->callers();
  if (auto known = callers.find(call->peer); known != callers.end() && Chance(0.2)) {
    call->only_incarnation = known->second->peer_info().incarnation;
  }
  CallSpec spec;
  spec.kind = call->kind;
  spec.wait_for_ready = Chance(0.3);
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

void World::GiveFork(const Process& process, const std::shared_ptr<SimAnswer>& answer) {
  if (process.sessions->table().Find(answer->epoch) == nullptr) return;
  answer->fork_at = process.id;
  answer->fork_held = true;
  given_.push_back(answer);
}

void World::DropFork(Opaque& dropped) {
  auto& answer = static_cast<SimAnswer&>(dropped);
  if (answer.taken) broken_ = "an answer was dropped that its caller has";
  answer.fork_held = false;
}

void World::EndForks(const Process& process, uint64_t epoch) {
  for (const auto& answer : given_) {
    if (answer->fork_at == process.id && answer->epoch == epoch) answer->fork_held = false;
  }
}

void World::EndSession(Process& process, const PeerInfo& peer, uint64_t epoch) {
  EndForks(process, epoch);
  const uint64_t of_latest = process.joined[peer.name];
  process.members.Leave(peer.name, peer.incarnation,
                        rules_.notices_carry_epochs ? epoch : of_latest);
}

void World::Join(Process& process, const Process& caller, uint64_t epoch) {
  auto joined =
      process.members.Join(caller.name, caller.incarnation, epoch, server::Role::kTrainer, 0, "");
  if (joined.ok()) process.joined[caller.name] = epoch;
}

void World::Answer(Process& process, const std::shared_ptr<SimCall>& call, const RequestMeta& meta,
                   bool ok) {
  auto answer = std::make_shared<SimAnswer>();
  answer->ok = ok;
  answer->from = process.incarnation;
  answer->epoch = meta.epoch;
  answer->call = call;
  if (ok) GiveFork(process, answer);
  AnswerRoute route;
  Step(process, [&](Actions& actions) {
    route = process.sessions->OnReply(now_, meta.epoch, meta.call_id, answer, 10, /*gives=*/ok,
                                      actions);
  });
  if (route.link == 0) return;
  answer->attempt = route.attempt;
  Wire wire;
  wire.control.kind = MessageKind::kReply;
  wire.call_id = meta.call_id;
  wire.answer = std::move(answer);
  Send(process, route.link, std::move(wire));
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

// A process goes in an orderly way, and another may come in its place.
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

// A second process comes with the name of a trainer that may still live; the first may be stopped.
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
    // An older one may be fenced by a newer one that died: it would be refused for ever, rightly.
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
      int burst = Chance(0.1) ? 15 : 1;
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

// ---------------------------------------------------------------- the oracle

bool World::Settled() const {
  const bool calls = std::all_of(calls_.begin(), calls_.end(), [this](const auto& call) {
    return call->orphaned || call->completed > 0;
  });
  const bool leaks = std::any_of(given_.begin(), given_.end(),
                                 [this](const auto& answer) { return Leaks(*answer); });
  return calls && !leaks && JudgeMembers().empty();
}

// Whether the session in which the answer was given still lives at the process that gave it.
bool World::SessionLives(const SimAnswer& answer) const {
  const Process& giver = *processes_[answer.fork_at];
  return giver.alive && giver.sessions->table().sessions().count(answer.epoch) > 0;
}

// The answer gives the caller something that the caller will never hear of.
bool World::Leaks(const SimAnswer& answer) const {
  return answer.fork_held && !answer.taken && !answer.call->orphaned &&
         processes_[answer.fork_at]->alive;
}

std::string World::Judge() const {
  if (!broken_.empty()) return broken_;
  if (std::string verdict = JudgeMembers(); !verdict.empty()) return verdict;
  for (const auto& answer : given_) {
    if (Leaks(*answer))
      return absl::StrCat("call ", answer->call->uid, " to ", answer->call->peer,
                          ": nobody takes what an answer gives, and it is kept");
  }
  for (const auto& call : calls_) {
    std::string verdict = JudgeCall(*call);
    if (verdict.empty()) continue;
    return absl::StrCat("call ", call->uid, " from process ", call->caller, " to ", call->peer,
                        ": ", verdict, " (", call->status.ToString(), ")");
  }
  return "";
}

// Whoever joined is a member exactly as long as the session in which it joined lives.
std::string World::JudgeMembers() const {
  for (const auto& process : processes_) {
    if (!process->alive) continue;
    std::map<std::string, uint64_t> members;  // with the epochs of their sessions
    for (const server::Member& member : process->members.World()) {
      members[member.name] = member.epoch;
    }
    for (const auto& [name, epoch] : process->joined) {
      const bool lives = process->sessions->table().sessions().count(epoch) > 0;
      if (lives != (members.count(name) > 0)) {
        return absl::StrCat(name, lives ? " is no member of " : " is still a member of ",
                            process->name);
      }
    }
  }
  return "";
}

std::string World::JudgeCall(const SimCall& call) const {
  if (call.applied_at.size() > 1) return "applied twice";
  if (call.completed > 1) return "completed twice";
  if (call.only_incarnation != 0 && !call.applied_at.empty() &&
      call.applied_at[0] != call.only_incarnation) {
    return "applied at another incarnation than it was for";
  }
  if (call.orphaned) return "";
  if (call.completed == 0) return "waits for ever";
  bool mutation = call.kind == MethodKind::kMutation;
  if (call.ok) {
    if (mutation && call.applied_at.empty()) return "lost: answered OK, but not applied";
    if (mutation && call.applied_at[0] != call.answered_by)
      return "answered by another incarnation";
    return "";
  }
  auto detail = GetDetail(call.status);
  bool fate_unknown = detail.has_value() && detail->fate_unknown;
  if (!fate_unknown && !call.applied_at.empty()) return "failed as not applied, but was applied";
  return "";
}

}  // namespace psd::rpc::sim
