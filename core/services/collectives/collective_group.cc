#include "core/services/collectives/collective_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/services/collectives/collective_codec.h"
#include "core/tensor/copy_to.h"

namespace psd::services {
namespace {

// A call has at most this many pieces on their way to one rank.
constexpr size_t kMostInFlight = 8;
// How much longer than its call a message may take. So the ledger names the late ranks at the
// deadline before the messages to them fail.
constexpr absl::Duration kMessageGrace = absl::Seconds(10);
// A rank is blamed only after everything that has arrived was read. This process may have been
// stopped, and the other ranks may have been in time and have found this one late.
constexpr absl::Duration kReading = absl::Milliseconds(100);
// If a timer is late by more than this, the process was stopped and has more to read.
constexpr absl::Duration kStall = absl::Milliseconds(500);
constexpr absl::Duration kReadingAfterStall = absl::Seconds(1);
// How long a task waits for room in the executor before it asks again.
constexpr absl::Duration kRoomInExecutor = absl::Milliseconds(1);
// The most bytes, of all ranks together, that a thread reduces at once although it receives
// messages for others too, and the most that it copies into a result. Receiving them takes longer
// than that, and another thread would begin later.
constexpr size_t kMostReducedHere = size_t{2} << 20;
constexpr size_t kMostStoredHere = size_t{512} << 10;

size_t TotalBytes(const std::vector<Buffer>& buffers) {
  size_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.size();
  return bytes;
}

absl::StatusOr<std::vector<Tensor>> CopyAllTo(Device* device, const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) {
    PSD_ASSIGN_OR_RETURN(copies.emplace_back(), CopyTo(device, tensor));
  }
  return copies;
}

absl::Status CopyIsLate(const Device& device) {
  return WithRemedy(
      absl::DeadlineExceededError(absl::StrCat("the result of a call has come, but not to ",
                                               device.name(), " before the deadline")),
      "look at what else the device does, or raise the timeout");
}

absl::Status WrongBytes(const rpc::PeerInfo& from, uint64_t number, size_t got, size_t expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "call ", number, " of a group: ", got, " bytes from ", from.name, ", expected ", expected));
}

}  // namespace

std::vector<std::string> GroupMembers::Names() const {
  std::vector<std::string> names;
  for (const rpc::PeerInfo& worker : workers) names.push_back(worker.name);
  return names;
}

CollectiveGroup::CollectiveGroup(Uses uses, GroupMembers members, const PlanLimits& limits,
                                 std::weak_ptr<EndedGroups> ended)
    : uses_(std::move(uses)),
      members_(std::move(members)),
      limits_(limits),
      ended_(std::move(ended)),
      ledger_(members_.name, members_.Names(), members_.rank, limits),
      transfers_(members_.name, members_.Names(), members_.rank),
      watched_in_(members_.workers.size()),
      ended_in_(members_.workers.size()),
      watches_(members_.workers.size()) {}

absl::Status CollectiveGroup::failure() const {
  MutexLock lock(mutex_);
  return ledger_.failure();
}

CollectiveGroup::RunningPtr CollectiveGroup::FindOrAdd(uint64_t number) {
  RunningPtr& running = running_[number];
  if (running == nullptr) running = std::make_shared<Running>(size(), members_.rank);
  return running;
}

void CollectiveGroup::Settle(Running& running) {
  if (!running.entered || running.data.plan() != nullptr) return;
  CollectiveCall call = running.data.call();
  if (!call.form.has_value()) call.form = running.given_form;
  if (!call.form.has_value() && call.operation != Operation::kBarrier) return;
  running.data.SetPlan(call.form.has_value() ? &*call.form : nullptr,
                       CallPlan(call, size(), limits_));
}

// The steps hold their calls, which may be over when a step is performed.
CollectiveGroup::Steps CollectiveGroup::Resolve(const GroupEffects& effects) {
  Steps steps;
  for (const GroupEffect& effect : effects) {
    if (effect.kind == GroupEffect::kFail) {
      steps.push_back({effect, nullptr});
      continue;
    }
    const auto found = running_.find(effect.number);
    if (found == running_.end()) continue;  // the group has failed
    const RunningPtr running = found->second;
    steps.push_back({effect, running});
    if (effect.kind == GroupEffect::kOpen) ++running->open_lines;
    if (effect.kind == GroupEffect::kComplete) running->complete = true;
    // The lines of a call may be opened after its result is there.
    if (running->complete &&
        (!running->data.plan()->sends_pieces() || running->open_lines == size() - 1)) {
      running_.erase(found);
    }
  }
  if (!steps.empty()) ++performing_;
  return steps;
}

// ---- this rank's calls

Future<CollectiveGroup::Tensors> CollectiveGroup::Start(CollectiveCall call, Tensors inputs,
                                                        absl::Duration timeout,
                                                        std::shared_ptr<Device> device) {
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return Future<Tensors>::Ready(failure());
  absl::Status checked = CheckCall(call, size());
  if (!checked.ok()) return Future<Tensors>::Ready(std::move(checked));
  call.shares_memory = shares_memory_.load(std::memory_order_relaxed);
  absl::StatusOr<CallData::Own> own =
      CallData::Prepare(call, std::move(inputs), members_.rank, size(), uses_.memory.get());
  if (!own.ok()) return Future<Tensors>::Ready(own.status());
  const absl::Time now = uses_.clock.Now();
  RunningPtr running;
  Future<rpc::Reply> watch;
  Steps steps;
  {
    MutexLock lock(mutex_);
    GroupEffects effects;
    const absl::StatusOr<uint64_t> number = ledger_.Enter(call, now, timeout, effects);
    if (!number.ok()) return Future<Tensors>::Ready(number.status());
    running = FindOrAdd(*number);
    running->entered = true;
    running->deadline = now + timeout;
    running->device = std::move(device);
    running->data.Bring(*std::move(own));
    Settle(*running);
    const int absent = ledger_.FirstAbsent(*number);
    if (absent >= 0) watch = watches_[absent].reply();
    steps = Resolve(effects);
  }
  // A thread that waits for the result also receives messages from that rank.
  if (watch.valid()) running->result.HelpLike(watch);
  Perform(steps, /*own_thread=*/true);
  Arm();
  return running->result.future();
}

void CollectiveGroup::Perform(const Steps& steps, bool own_thread) {
  std::vector<Step> reductions;
  for (const Step& step : steps) {
    const auto& [effect, running] = step;
    switch (effect.kind) {
      case GroupEffect::kTell:
        Tell(effect.number, effect.index, running);
        break;
      case GroupEffect::kOpen:
        Open(effect.number, running, effect.rank);
        break;
      case GroupEffect::kReduce:
        reductions.push_back(step);
        break;
      case GroupEffect::kSendReduced:
        SendReduced(effect.number, running, effect.index);
        break;
      case GroupEffect::kComplete:
        Complete(running);
        break;
      case GroupEffect::kFail:
        FailAll();
        break;
    }
  }
  // They take long, and no other step waits for them.
  size_t most_here = kMostReducedHere;
  for (const auto& [effect, running] : reductions)
    ReduceOrLater(effect.number, running, effect.index, own_thread, most_here);
  if (steps.empty()) return;
  MutexLock lock(mutex_);
  --performing_;
  sent_.NotifyAll();
}

rpc::Call CollectiveGroup::StartMessage(const rpc::MethodInfo& method, int to, rpc::Payload payload,
                                        absl::Duration timeout) {
  const rpc::PeerInfo& worker = members_.workers[to];
  rpc::Request request;
  request.method = method.name;
  request.kind = method.kind;
  request.payload = std::move(payload);
  request.only_incarnation = worker.incarnation;
  rpc::CallOptions options;
  options.timeout = timeout;
  return uses_.agent.StartCall(worker.name, std::move(request), options);
}

void CollectiveGroup::SendMessage(const rpc::MethodInfo& method, int to, rpc::Payload payload,
                                  absl::Time deadline, absl::AnyInvocable<void()> done) {
  const absl::Time now = uses_.clock.Now();
  const absl::Time limit = std::max(deadline, now) + kMessageGrace;
  const rpc::Call message = StartMessage(method, to, std::move(payload), limit - now);
  uint64_t id = 0;
  bool over = false;
  {
    MutexLock lock(mutex_);
    id = ++last_message_;
    over = !ledger_.failure().ok();
    if (!over) messages_.emplace(id, message);
  }
  if (over) message.Cancel();
  message.reply().OnReady([self = shared_from_this(), to, id, limit, done = std::move(done)](
                              const absl::StatusOr<rpc::Reply>& taken) mutable {
    if (taken.ok()) {
      done();
    } else {
      self->NotTaken(to, taken.status(), limit);
    }
    rpc::Call ended;  // destroyed without the lock
    MutexLock lock(self->mutex_);
    if (const auto found = self->messages_.find(id); found != self->messages_.end()) {
      ended = std::move(found->second);
      self->messages_.erase(found);
    }
    --self->unanswered_;
    self->sent_.NotifyAll();
  });
}

void CollectiveGroup::NotTaken(int to, const absl::Status& why, absl::Time limit) {
  const absl::Time now = uses_.clock.Now();
  if (!absl::IsDeadlineExceeded(why) || now <= limit + kStall) return Lost(to, why);
  RunAt(now + kReadingAfterStall, [weak = weak_from_this(), to, why] {
    if (const auto self = weak.lock()) self->Lost(to, why);
  });
}

void CollectiveGroup::Tell(uint64_t number, uint64_t completed, const RunningPtr& running) {
  CollectiveCall call;
  const CallPlan* plan = nullptr;
  {
    MutexLock lock(mutex_);
    call = running->data.call();
    plan = running->data.plan();  // null if this rank has nothing to give
    unanswered_ += members_.workers.size() - 1;
  }
  v1::CollectiveEnter message;
  message.set_generation(members_.generation);
  message.set_number(number);
  message.set_completed(completed);
  EncodeCall(call, *message.mutable_call());
  const std::string header = message.SerializeAsString();
  for (int to = 0; to < size(); ++to) {
    if (to == members_.rank) continue;
    rpc::Payload payload{header, {}};
    if (plan != nullptr && plan->tells_bytes() && plan->Pieces(0, members_.rank, to) > 0)
      payload.buffers.push_back(running->data.Outgoing(0, to, 0));
    SendMessage(kEnterCall.info, to, std::move(payload), running->deadline, [this, number, to] {
      Steps steps;
      {
        MutexLock lock(mutex_);
        GroupEffects effects;
        ledger_.Told(to, number, effects);
        steps = Resolve(effects);
      }
      Perform(steps);
    });
  }
}

void CollectiveGroup::Open(uint64_t number, const RunningPtr& running, int to) {
  {
    MutexLock lock(mutex_);
    Line& line = running->lines[to];
    line.open = true;
    // Pieces that are reduced already come behind those of phase 0.
    std::deque<OutgoingPiece> pieces;
    const CallPlan& plan = *running->data.plan();
    const size_t untold = plan.tells_bytes() ? 0 : plan.Pieces(0, members_.rank, to);
    for (size_t i = 0; i < untold; ++i) pieces.push_back({0, i});
    unanswered_ += pieces.size();
    pieces.insert(pieces.end(), line.waiting.begin(), line.waiting.end());
    line.waiting = std::move(pieces);
  }
  Pump(number, running, to);
}

void CollectiveGroup::SendReduced(uint64_t number, const RunningPtr& running, size_t index) {
  for (int to = 0; to < size(); ++to) {
    if (to == members_.rank) continue;
    {
      MutexLock lock(mutex_);
      running->lines[to].waiting.push_back({1, index});
      ++unanswered_;
    }
    Pump(number, running, to);
  }
}

void CollectiveGroup::Pump(uint64_t number, const RunningPtr& running, int to) {
  for (;;) {
    OutgoingPiece piece;
    {
      MutexLock lock(mutex_);
      Line& line = running->lines[to];
      if (!ledger_.failure().ok() || !line.open || line.waiting.empty() ||
          line.in_flight >= kMostInFlight) {
        return;
      }
      piece = line.waiting.front();
      line.waiting.pop_front();
      ++line.in_flight;
    }
    v1::CollectivePiece message;
    message.set_generation(members_.generation);
    message.set_number(number);
    message.set_phase(static_cast<uint32_t>(piece.phase));
    message.set_index(static_cast<uint32_t>(piece.index));
    rpc::Payload payload = rpc::PlainPayload(message);
    payload.buffers.push_back(running->data.Outgoing(piece.phase, to, piece.index));
    SendMessage(kSendPiece.info, to, std::move(payload), running->deadline,
                [this, number, running, to] {
                  {
                    MutexLock lock(mutex_);
                    --running->lines[to].in_flight;
                  }
                  Pump(number, running, to);
                });
  }
}

void CollectiveGroup::RunTask(Task task) {
  auto shared = std::make_shared<Task>(std::move(task));
  const absl::Status submitted =
      uses_.executor.SubmitAs({WorkLabel::Kind::kOwn, {}}, [shared] { (*shared)(); });
  if (!submitted.ok()) (*shared)();
}

bool CollectiveGroup::SubmitOrRetry(Task task, Task retry) {
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return false;
  const absl::Status submitted =
      uses_.executor.SubmitAs({WorkLabel::Kind::kOwn, {}}, std::move(task));
  if (!submitted.ok()) uses_.timers.RunAt(uses_.clock.Now() + kRoomInExecutor, std::move(retry));
  return true;
}

void CollectiveGroup::RunSoon(Task task) {
  const auto shared = std::make_shared<Task>(std::move(task));
  const bool open =
      SubmitOrRetry([shared] { (*shared)(); },
                    [self = shared_from_this(), shared] { self->RunSoon(std::move(*shared)); });
  if (!open) (*shared)();
}

void CollectiveGroup::RunAt(absl::Time when, Task task) {
  const rref::Gate::Entry entry(*gate_);
  if (entry.open()) uses_.timers.RunAt(when, std::move(task));
}

void CollectiveGroup::ReduceOrLater(uint64_t number, const RunningPtr& running, size_t index,
                                    bool own_thread, size_t& most_here) {
  Task reduce = [self = shared_from_this(), running, number, index] {
    running->data.Reduce(index);
    Steps steps;
    {
      MutexLock lock(self->mutex_);
      GroupEffects effects;
      self->ledger_.Reduced(number, index, effects);
      steps = self->Resolve(effects);
    }
    self->Perform(steps);
  };
  // A long reduction must not keep a thread that receives messages, unless the thread waits for
  // nothing but its result: that of what the notices bring is all that this rank reduces.
  const CallPlan& plan = *running->data.plan();
  const size_t bytes = plan.Piece(0, members_.rank, members_.rank, index).size * size();
  const bool here = own_thread || bytes <= most_here || running->result.IsAwaitedHere();
  if (!here || !plan.tells_bytes()) return RunTask(std::move(reduce));
  most_here -= std::min(bytes, most_here);
  reduce();
}

void CollectiveGroup::Complete(const RunningPtr& running) {
  int from = members_.rank;
  absl::StatusOr<Tensors> results = running->data.Results(from);
  if (running->device == nullptr || !results.ok())
    return SetResult(*running, std::move(results), from);
  // A result may come after the deadline, and is copied then, too.
  const absl::Time until = std::max(running->deadline, uses_.clock.Now()) + kReading;
  CopyResults(running, *std::move(results), LimitCopy(running, until));
}

// A thread that receives messages must not wait for a device, so the copy waits for room in the
// executor.
void CollectiveGroup::CopyResults(const RunningPtr& running, const Tensors& here,
                                  TimerQueue::Id limit) {
  if (running->result.future().IsReady()) return;  // it was late
  const auto self = shared_from_this();
  const bool open = SubmitOrRetry(
      [self, running, here, limit] {
        self->SetResult(*running, CopyAllTo(running->device.get(), here), self->members_.rank);
        const rref::Gate::Entry entry(*self->gate_);
        if (entry.open()) self->uses_.timers.Cancel(limit);
      },
      [self, running, here, limit] { self->CopyResults(running, here, limit); });
  if (!open) SetResult(*running, failure(), members_.rank);
}

// The timer does not keep the call, which lives as long as its copy.
TimerQueue::Id CollectiveGroup::LimitCopy(const RunningPtr& running, absl::Time when) {
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return 0;
  return uses_.timers.RunAt(
      when, [weak = weak_from_this(), call = std::weak_ptr<Running>(running), when] {
        const auto self = weak.lock();
        const RunningPtr copied = call.lock();
        if (self == nullptr || copied == nullptr || copied->result.future().IsReady()) return;
        const absl::Time now = self->uses_.clock.Now();
        if (now > when + kStall) {  // the process was stopped, and with it the copy
          self->LimitCopy(copied, now + kReadingAfterStall);
          return;
        }
        self->SetResult(*copied, CopyIsLate(*copied->device), self->members_.rank);
      });
}

void CollectiveGroup::SetResult(const Running& running, absl::StatusOr<Tensors> results, int from) {
  if (!results.ok()) {
    CannotTake(from, results.status());
    results = failure();
  }
  running.result.Set(std::move(results));
}

// ---- deadlines

void CollectiveGroup::Arm() {
  absl::Time next;
  {
    MutexLock lock(mutex_);
    // The sends and receives of a group that has failed are still in the record.
    if (!ledger_.failure().ok()) return;
    next = std::min(ledger_.NextDeadline(uses_.clock.Now()), transfers_.NextDeadline());
    if (next >= armed_) return;
    armed_ = next;
  }
  uses_.timers.RunAt(next, [weak = weak_from_this(), next] {
    if (const auto self = weak.lock()) self->Expire(next);
  });
}

void CollectiveGroup::Expire(absl::Time armed) {
  Steps steps;
  {
    MutexLock lock(mutex_);
    GroupEffects effects;
    if (armed_ == armed) armed_ = absl::InfiniteFuture();
    const absl::Time now = uses_.clock.Now();
    const absl::Time read = now + (now > armed + kStall ? kReadingAfterStall : kReading);
    ledger_.Extend(now, read);
    transfers_.Extend(now, read);
    ledger_.Expire(now, effects);
    if (const absl::Status late = transfers_.Expire(now); !late.ok()) ledger_.Fail(late, effects);
    steps = Resolve(effects);
  }
  Perform(steps);
  Arm();
}

// ---- other ranks

absl::Status CollectiveGroup::ServeEnter(int from, const v1::CollectiveEnter& request,
                                         std::vector<Buffer> data) {
  PSD_ASSIGN_OR_RETURN(const CollectiveCall call, DecodeCall(request.call()));
  PSD_RETURN_IF_ERROR(CheckCall(call, size()));
  size_t expected = 0;
  if (call.form.has_value()) {
    const CallPlan plan(call, size(), limits_);
    if (plan.tells_bytes()) expected = plan.Block(0, from, members_.rank).size;
  }
  if (TotalBytes(data) != expected || data.size() != (expected > 0 ? 1 : 0))
    return WrongBytes(members_.workers[from], request.number(), TotalBytes(data), expected);
  Steps steps;
  {
    MutexLock lock(mutex_);
    GroupEffects effects;
    PSD_ASSIGN_OR_RETURN(const bool keep,
                         ledger_.Heard(from, request.number(), request.completed(), call, effects));
    if (keep) {
      const RunningPtr running = FindOrAdd(request.number());
      if (!data.empty()) running->data.Keep(from, 0, std::move(data[0]));
      if (call.form.has_value()) running->given_form = call.form;
      Settle(*running);
    }
    steps = Resolve(effects);
  }
  Perform(steps);
  return absl::OkStatus();
}

absl::Status CollectiveGroup::ServePiece(int from, const v1::CollectivePiece& request,
                                         std::vector<Buffer> data) {
  const uint64_t number = request.number();
  const int phase = static_cast<int>(std::min<uint32_t>(request.phase(), 2));
  const size_t index = request.index();
  Steps steps;
  RunningPtr running;
  {
    MutexLock lock(mutex_);
    if (!ledger_.failure().ok()) return absl::OkStatus();
    const auto found = running_.find(number);
    const CallPlan* plan = found == running_.end() ? nullptr : found->second->data.plan();
    if (plan == nullptr || phase > 1 || index >= plan->Pieces(phase, from, members_.rank)) {
      return absl::InvalidArgumentError(
          absl::StrCat("call ", number, " of a group has no piece ", index, " now"));
    }
    const size_t expected = plan->Piece(phase, from, members_.rank, index).size;
    if (data.size() != 1 || data[0].size() != expected)
      return WrongBytes(members_.workers[from], number, TotalBytes(data), expected);
    GroupEffects effects;
    PSD_RETURN_IF_ERROR(ledger_.Arrived(from, number, phase, index, effects));
    running = found->second;
    if (phase == 0) running->data.Keep(from, index, std::move(data[0]));
    steps = Resolve(effects);
  }
  Perform(steps);
  if (phase == 0) return absl::OkStatus();
  const bool here = data[0].size() <= kMostStoredHere;
  Task store = [self = shared_from_this(), running, number, from, index,
                piece = std::move(data[0])] {
    running->data.Store(from, index, piece);
    Steps stored;
    {
      MutexLock lock(self->mutex_);
      GroupEffects effects;
      self->ledger_.Stored(number, effects);
      stored = self->Resolve(effects);
    }
    self->Perform(stored);
  };
  if (here) {
    store();
  } else {
    RunTask(std::move(store));
  }
  return absl::OkStatus();
}

}  // namespace psd::services
