#include "tests/sim/session_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"

namespace psd::rpc::sim {

namespace {

struct SimWork : Opaque {
  bool cancelled = false;
};

}  // namespace

std::string NameOf(int worker) {
  return absl::StrCat("w", worker);
}

void AddProbes(const SessionProbes& from, SessionProbes& to) {
  const auto* source = reinterpret_cast<const uint64_t*>(&from);
  auto* target = reinterpret_cast<uint64_t*>(&to);
  for (size_t i = 0; i < sizeof(SessionProbes) / sizeof(uint64_t); ++i) target[i] += source[i];
}

World::World(uint64_t seed, const Rules& rules) : random_(seed), rules_(rules) {
  options_.lease = absl::Milliseconds(900);
  options_.retry_window = absl::Milliseconds(2500);
  options_.reconnect_min = absl::Milliseconds(20);
  options_.reconnect_max = absl::Milliseconds(200);
  options_.silence = absl::Milliseconds(400);
  // Small bounds, so that windows fill up.
  options_.max_unacknowledged_answers = static_cast<size_t>(Pick(4, 12));
  if (Chance(0.3)) options_.max_unacknowledged_bytes = static_cast<size_t>(Pick(100, 1000));
  if (Chance(0.2)) options_.max_running_reads = static_cast<size_t>(Pick(1, 3));
  names_ = static_cast<int>(std::min(Pick(2, 6), Pick(2, 6)));
  owners_ = static_cast<int>(Pick(1, Chance(0.5) ? names_ : (names_ + 1) / 2));
  // A constant delay keeps two workers in step that do the same thing at the same moment.
  one_way_ = Chance(0.5) ? absl::ZeroDuration() : Within(1, 30);
  if (Chance(0.15)) max_sessions_ = static_cast<size_t>(Pick(1, names_));
  if (Chance(0.15)) {
    // The calls that each session may always have do not fill such a window, and neither do the
    // steps that remain when all have sessions.
    options_.max_unacknowledged_answers = static_cast<size_t>(Pick(20, 50));
    options_.max_unacknowledged_bytes = size_t{16} << 20;
    memory_bytes_ =
        static_cast<size_t>(Pick(std::max(1, names_ - 2), names_)) * CalleeSession::kSessionBytes +
        static_cast<size_t>(Pick(0, 2)) * (size_t{16} << 10);
  }
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
    // Popped before other code compares it.
    Event event = std::move(const_cast<Event&>(events_.top()));
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
  options.max_sessions = max_sessions_;
  options.jitter_seed = random_();
  if (memory_bytes_ != 0)
    options.session.memory = MemoryAccount::Create(memory_bytes_, NewHeapAllocator());
  process->memory = options.session.memory;
  process->sessions = std::make_unique<WorkerSessions>(std::move(options));
  processes_.push_back(std::move(process));
  Process& spawned = *processes_.back();
  // A worker that does not listen becomes known when it connects, and is forgotten when it has
  // left.
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
  // A thread that was about to perform them is delayed, and other threads overtake it.
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
      if (wire.control.kind == MessageKind::kReply) {  // a session refuses the call
        wire.answer =
            NewAnswer(process, {wire.control.call_id, 0, wire.control.epoch}, wire.control.status);
      }
      Send(process, (*control)->link, std::move(wire));
    } else if (auto* request = std::get_if<SendRequestAction>(&action)) {
      SendRequest(process, *request);
    } else if (auto* answer = std::get_if<SendAnswerAction>(&action)) {
      auto kept = std::static_pointer_cast<SimAnswer>(answer->answer);
      SendAnswer(process, answer->link, kept, kept);
    } else if (auto* complete = std::get_if<CompleteAction>(&action)) {
      auto call = std::static_pointer_cast<SimCall>(complete->body);
      ++call->completed;
      call->status = complete->status;
    } else if (auto* cancel = std::get_if<CancelWorkAction>(&action)) {
      static_cast<SimWork&>(*cancel->work).cancelled = true;
    } else if (auto* dropped = std::get_if<AnswerDroppedAction>(&action)) {
      TakeBack(static_cast<const SimAnswer&>(*dropped->answer));
    } else if (auto* ended = std::get_if<SessionEndedAction>(&action)) {
      // A worker that is told may be busy, and react to the end when the next session is alive.
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
  if (faulty_ && Chance(trouble_)) {  // lost: the link will notice at some time
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

// A copy arrives on whatever link the two workers have now.
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
  Step(self, [&](Actions& actions) {
    if (wire->control.kind == MessageKind::kRequest) {
      ReceiveRequest(self, link, *wire, actions);
    } else if (wire->control.kind == MessageKind::kReply) {
      ReceiveAnswer(self, link, *wire, actions);
    } else {
      self.sessions->OnControl(now_, link, wire->control, actions);
    }
  });
}

void World::ReceiveRequest(Process& self, LinkId link, const Wire& wire, Actions& actions) {
  SimCall& call = *wire.call;
  // A link brings each attempt of a read once, and a read that was refused is not remembered.
  if (wire.meta.sequence == 0 && wire.meta.attempt == call.refused_attempt &&
      call.refused_by == self.incarnation) {
    return;
  }
  if (self.sessions->OnRequest(now_, link, wire.meta, std::make_shared<SimWork>(), actions)) {
    return self.leaving ? Answer(self, wire.call, wire.meta, /*ok=*/false)
                        : Serve(self, wire.call, wire.meta);
  }
  for (const Action& action : actions) {
    auto* control = std::get_if<std::unique_ptr<SendControlAction>>(&action);
    if (control == nullptr || (*control)->header.kind != MessageKind::kReply) continue;
    call.refused_attempt = wire.meta.attempt;
    call.refused_by = self.incarnation;
    ++counts_.calls_refused;
  }
}

void World::ReceiveAnswer(Process& self, LinkId link, const Wire& wire, Actions& actions) {
  auto& answer = static_cast<SimAnswer&>(*wire.answer);
  const ReplyMeta meta{answer.call.id, answer.call.epoch, answer.attempt};
  const auto peer = self.sessions->callers().find(wire.from);
  const uint64_t epoch = peer == self.sessions->callers().end() ? 0 : peer->second->epoch();
  // An error needs no room. Few answers of an ended session come to a call that still waits.
  const bool is_late = answer.call.epoch != epoch;
  if (faulty_ && answer.status.ok() && Chance(is_late ? 0.5 : 4 * trouble_)) {
    self.sessions->OnAnswerWithoutRoom(now_, link, meta, absl::ResourceExhaustedError("no room"),
                                       actions);
    for (const Action& action : actions) {
      if (!std::holds_alternative<CompleteAction>(action)) continue;
      ++counts_.answers_without_room;
      if (is_late) broken_ = "an answer of an ended session ends a call";
    }
    return;
  }
  auto body = self.sessions->OnAnswer(now_, link, meta, Pick(1, 100), actions);
  if (body == nullptr) return;
  if (is_late) broken_ = "a caller takes an answer of an ended session";
  if (answer.status.ok() && answer.gives != nullptr) Take(*answer.gives);
  const bool is_mutation = answer.call.sequence != 0;
  if (is_mutation && answer.attempt != 0) ++counts_.answers_not_kept;
  auto& call = static_cast<SimCall&>(*body);
  ++call.completed;
  call.status = answer.status;
  call.answered_by = answer.from;
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

}  // namespace psd::rpc::sim
