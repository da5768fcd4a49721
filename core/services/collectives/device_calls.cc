#include "core/services/collectives/device_calls.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/quoted.h"
#include "core/base/status.h"
#include "core/services/collectives/call_data.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd::services {
namespace {

// How often a call under way is looked after.
constexpr absl::Duration kLookEvery = absl::Seconds(1);
// A rank whose device is in time lets one whose device is late speak first.
constexpr absl::Duration kGrace = absl::Seconds(1);

bool IsOrdering(const CollectiveCall& call) {
  return call.reduction == Reduction::kMin || call.reduction == Reduction::kMax;
}

DeviceElement ElementOf(DType dtype) {
  switch (dtype) {
    case DType::kI32:
      return DeviceElement::kI32;
    case DType::kI64:
      return DeviceElement::kI64;
    case DType::kF16:
      return DeviceElement::kF16;
    case DType::kBF16:
      return DeviceElement::kBF16;
    case DType::kF32:
      return DeviceElement::kF32;
    case DType::kF64:
      return DeviceElement::kF64;
    default:
      PSD_CHECK(false, "CheckCall lets no such dtype be reduced");
  }
}

DeviceReduction ReductionOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return DeviceReduction::kSum;
    case Reduction::kMean:
      return DeviceReduction::kMean;
    case Reduction::kMin:
      return DeviceReduction::kMin;
    case Reduction::kMax:
      return DeviceReduction::kMax;
  }
  PSD_CHECK(false, "CheckCall lets no such reduction pass");
}

// Declares that work of the stream uses the tensor's memory.
absl::Status Uses(Stream& stream, const Tensor& tensor) {
  const Block* const block = tensor.block();
  return block == nullptr ? absl::OkStatus() : stream.AlsoUses(*block);
}

// Returns the memory for the results of this rank, in one tensor.
absl::StatusOr<Tensor> RoomFor(const CollectiveCall& call, int ranks, Device& device) {
  std::vector<int64_t> extents(call.form->shape.extents().begin(),
                               call.form->shape.extents().end());
  if (call.operation == Operation::kReduceScatter) extents[0] /= ranks;
  if (call.operation == Operation::kAllGather || call.operation == Operation::kGather)
    extents = {call.form->shape.NumElements() * ranks};
  PSD_ASSIGN_OR_RETURN(const Shape shape, Shape::Checked(extents));
  return Tensor::Empty(shape, call.form->dtype, &device.memory());
}

}  // namespace

bool DevicesMayPerform(const CollectiveCall& call) {
  switch (call.operation) {
    case Operation::kBroadcast:
      return true;
    case Operation::kAllReduce:
    case Operation::kReduceScatter:
      if (IsOrdering(call) && IsFloating(call.form->dtype)) return false;
      break;
    case Operation::kAllGather:
    case Operation::kGather:
      break;
    case Operation::kBarrier:
    case Operation::kScatter:
      return false;
  }
  return call.form->NumBytes() >= kLeastDeviceBytes;
}

Future<CollectiveGroup::Tensors> StartOnHost(CollectiveGroup& group, CollectiveCall call,
                                             CollectiveGroup::Tensors inputs,
                                             absl::Duration timeout,
                                             std::shared_ptr<Device> device) {
  using Results = Future<CollectiveGroup::Tensors>;
  const bool gives = call.operation == Operation::kBroadcast && !inputs.empty();
  if (device == nullptr || !gives)
    return group.Start(std::move(call), std::move(inputs), timeout, std::move(device));
  // The root has the result on its device already.
  const absl::StatusOr<Tensor> own = inputs[0].Contiguous();
  if (!own.ok()) return Results::Ready(own.status());
  return group.Start(std::move(call), {*own}, timeout)
      .Then([own = *own](const absl::StatusOr<CollectiveGroup::Tensors>& given)
                -> absl::StatusOr<CollectiveGroup::Tensors> {
        PSD_RETURN_IF_ERROR(given.status());
        return CollectiveGroup::Tensors{own};
      });
}

// A call that the devices perform.
struct DeviceCalls::Flight {
  std::string call;
  std::shared_ptr<Device> device;  // shared with the worker
  Communicator communicator;
  Tensors inputs;  // kept until the devices have read them
  Tensors results;
  std::vector<std::shared_ptr<Event>> before;  // this rank's own work before the call
  std::shared_ptr<Event> done;                 // behind the call
  absl::Time until;
  std::atomic<bool> was_late{false};
  Promise<Tensors> result;
};

std::shared_ptr<DeviceCalls> DeviceCalls::Create(std::shared_ptr<CollectiveGroup> group,
                                                 Logger& logger) {
  std::shared_ptr<DeviceCalls> calls(new DeviceCalls(std::move(group), logger));
  calls->group_->OnEnd([weak = std::weak_ptr<DeviceCalls>(calls)] {
    if (const auto self = weak.lock()) self->group_->RunSoon([self] { self->End(); });
  });
  return calls;
}

Future<DeviceCalls::Tensors> DeviceCalls::Start(CollectiveCall call, Tensors inputs,
                                                absl::Duration timeout,
                                                std::shared_ptr<Device> device) {
  using Results = Future<Tensors>;
  const int ranks = static_cast<int>(group_->members().workers.size());
  absl::Status checked = CheckCall(call, ranks);
  if (checked.ok()) checked = CallData::CheckInputs(call, inputs, group_->members().rank, ranks);
  if (checked.ok() && device != nullptr) checked = device->health();
  if (checked.ok()) checked = group_->failure();
  if (!checked.ok()) return Results::Ready(std::move(checked));

  bool waits = DevicesMayPerform(call);
  {
    MutexLock lock(mutex_);
    waits |= draining_;
  }
  if (!waits)
    return StartOnHost(*group_, std::move(call), std::move(inputs), timeout, std::move(device));

  Pending pending;
  pending.until = group_->Now() + timeout;
  if (device != nullptr) {
    // The work that computes the inputs is work of this thread's stream.
    for (Tensor& input : inputs) {
      absl::StatusOr<Tensor> dense = std::move(input).Contiguous();
      if (!dense.ok()) return Results::Ready(dense.status());
      input = *std::move(dense);
    }
    absl::StatusOr<std::shared_ptr<Event>> ready = CurrentStream(device.get())->Record();
    if (!ready.ok()) return Results::Ready(ready.status());
    pending.ready = *std::move(ready);
  }
  pending.call = std::move(call);
  pending.inputs = std::move(inputs);
  pending.device = std::move(device);
  const Future<Tensors> result = pending.result.future();
  group_->RunAt(pending.until, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Expire();
  });
  bool was_draining = false;
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(pending));
    was_draining = std::exchange(draining_, true);
  }
  if (!was_draining) group_->RunSoon([self = shared_from_this()] { self->Drain(); });
  return result;
}

void DeviceCalls::Drain() {
  for (;;) {
    Pending pending;
    {
      MutexLock lock(mutex_);
      draining_ = !queue_.empty();
      if (!draining_) {
        over_.NotifyAll();
        return;
      }
      pending = std::move(queue_.front());
      queue_.pop_front();
    }
    Make(std::move(pending));
  }
}

void DeviceCalls::Expire() {
  std::vector<Pending> late;
  {
    MutexLock lock(mutex_);
    const absl::Time now = group_->Now();
    for (auto each = queue_.begin(); each != queue_.end();) {
      if (each->until > now) {
        ++each;
        continue;
      }
      late.push_back(std::move(*each));
      each = queue_.erase(each);
    }
  }
  for (const Pending& each : late)
    FailWith(absl::DeadlineExceededError(absl::StrCat(
                 "the ", each.call.ToString(),
                 " did not begin in its time: the calls before it, or other work of the worker's "
                 "threads, took all of it")),
             each.result);
}

void DeviceCalls::Make(Pending pending) {
  if (const absl::Status failure = group_->failure(); !failure.ok()) {
    pending.result.Set(failure);
    return;
  }
  if (!DevicesMayPerform(pending.call)) return MakeOnHost(std::move(pending), /*agreed=*/false);
  const absl::StatusOr<Communicator> communicator =
      connections_.Agree({pending.call, pending.device.get(), pending.until});
  // The other ranks wait for this one, whatever the reason is.
  if (!communicator.ok()) return FailWith(communicator.status(), pending.result);
  if (*communicator == nullptr) return MakeOnHost(std::move(pending), /*agreed=*/true);
  const Promise<Tensors> result = pending.result;
  const absl::Status launched = Launch(pending, *communicator);
  if (!launched.ok()) FailWith(launched, result);
}

void DeviceCalls::MakeOnHost(Pending pending, bool agreed) {
  const auto set = [self = shared_from_this(), agreed,
                    result = pending.result](const absl::StatusOr<Tensors>& results) {
    if (!results.ok() && agreed) return self->FailWith(results.status(), result);
    result.Set(results);
  };
  if (pending.device != nullptr && !pending.inputs.empty()) {
    // This thread may have another stream than the one that made the call.
    Stream& stream = *CurrentStream(pending.device.get());
    absl::Status ordered = stream.WaitFor(pending.ready);
    for (const Tensor& input : pending.inputs)
      if (ordered.ok()) ordered = Uses(stream, input);
    if (!ordered.ok()) return set(ordered);
  }
  StartOnHost(*group_, std::move(pending.call), std::move(pending.inputs),
              connections_.TimeLeft(pending.until), std::move(pending.device))
      .OnReady(set);
}

// ---- the devices perform a call

absl::Status DeviceCalls::Launch(Pending& pending, const Communicator& communicator) {
  const GroupMembers& members = group_->members();
  const int ranks = static_cast<int>(members.workers.size());
  const CollectiveCall& call = pending.call;
  Device& device = *pending.device;
  Stream& stream = communicator->stream();
  const bool is_root = members.rank == call.root;

  Tensor out;
  if (call.operation == Operation::kBroadcast && is_root) {
    out = pending.inputs[0];
  } else if (call.operation != Operation::kGather || is_root) {
    PSD_ASSIGN_OR_RETURN(out, RoomFor(call, ranks, device));
  }
  // The results are allocated by this thread's stream, and belong to it afterwards.
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Event> allocated, CurrentStream(&device)->Record());
  PSD_RETURN_IF_ERROR(stream.WaitFor(pending.ready));
  PSD_RETURN_IF_ERROR(stream.WaitFor(allocated));
  for (const Tensor& input : pending.inputs) PSD_RETURN_IF_ERROR(Uses(stream, input));
  if (out.defined()) PSD_RETURN_IF_ERROR(Uses(stream, out));

  const auto flight = std::make_shared<Flight>();
  flight->before = {pending.ready, allocated};
  const std::byte* const in = pending.inputs.empty() ? nullptr : pending.inputs[0].address();
  std::byte* const to = out.defined() ? out.mutable_address() : nullptr;
  const size_t bytes = call.form->NumBytes();
  const auto elements = static_cast<size_t>(call.form->shape.NumElements());
  absl::Status added;
  switch (call.operation) {
    case Operation::kAllReduce:
      added = communicator->AllReduce(in, to, elements, ElementOf(call.form->dtype),
                                      ReductionOf(*call.reduction));
      break;
    case Operation::kReduceScatter:
      added =
          communicator->ReduceScatter(in, to, elements / static_cast<size_t>(ranks),
                                      ElementOf(call.form->dtype), ReductionOf(*call.reduction));
      break;
    case Operation::kAllGather:
      added = communicator->AllGather(in, to, bytes);
      break;
    case Operation::kGather:
      added = communicator->Gather(in, to, bytes, call.root);
      break;
    case Operation::kBroadcast:
      added = communicator->Broadcast(in, to, bytes, call.root);
      break;
    case Operation::kBarrier:
    case Operation::kScatter:
      PSD_CHECK(false, "devices do not perform this call");
  }
  PSD_RETURN_IF_ERROR(added);
  PSD_RETURN_IF_ERROR(connections_.Await(*communicator, pending.until));
  PSD_ASSIGN_OR_RETURN(flight->done, stream.Record());

  if (call.operation == Operation::kAllGather || call.operation == Operation::kGather) {
    const Strides strides = ContiguousStrides(call.form->shape);
    for (int rank = 0; out.defined() && rank < ranks; ++rank)
      flight->results.push_back(
          out.View(call.form->shape, strides, rank * call.form->shape.NumElements()));
  } else {
    flight->results.push_back(out);
  }
  flight->call = call.ToString();
  flight->device = pending.device;
  flight->communicator = communicator;
  flight->inputs = std::move(pending.inputs);
  flight->until = pending.until;
  flight->result = pending.result;
  {
    MutexLock lock(mutex_);
    ++flights_;
  }
  Look(flight);
  flight->done->OnPassed([self = shared_from_this(), flight](const absl::Status& status) {
    self->Landed(*flight, status);
  });
  return absl::OkStatus();
}

// A timer holds no tensors of a call that is over.
void DeviceCalls::Look(const std::weak_ptr<Flight>& weak) {
  const std::shared_ptr<Flight> flight = weak.lock();
  if (flight == nullptr || flight->done->passed()) return;
  const absl::Time now = group_->Now();
  if (const auto ready = flight->communicator->IsReady(); !ready.ok())
    return FailWith(ready.status(), flight->result);
  absl::Time next = std::min(now + kLookEvery, flight->until);
  if (now >= flight->until) {
    const auto passed = [](const auto& event) { return event->passed(); };
    if (!std::all_of(flight->before.begin(), flight->before.end(), passed))
      return FailWith(
          absl::DeadlineExceededError(absl::StrCat(
              flight->device->name(), " has other work to do before the ", flight->call)),
          flight->result);
    if (flight->was_late.exchange(true))
      return FailWith(absl::DeadlineExceededError(absl::StrCat(
                          "the ", flight->call, " has not ended on ", flight->device->name())),
                      flight->result);
    next = now + kGrace;
  }
  group_->RunAt(next, [self = shared_from_this(), weak] { self->Look(weak); });
}

void DeviceCalls::Landed(const Flight& flight, const absl::Status& status) {
  // Work of a communicator that was aborted ends too.
  const absl::Status done = status.ok() ? flight.communicator->IsReady().status() : status;
  if (done.ok()) {
    flight.result.Set(flight.results);
  } else {
    FailWith(done, flight.result);
  }
  MutexLock lock(mutex_);
  if (--flights_ == 0) over_.NotifyAll();
}

void DeviceCalls::FailWith(const absl::Status& why, const Promise<Tensors>& result) {
  if (group_->failure().ok()) group_->GiveUp(why);
  result.Set(group_->failure());
}

// ---- the end

void DeviceCalls::Leave(absl::Duration limit) {
  const absl::Time until = Clock::Steady().Now() + limit;
  bool over = false;
  {
    MutexLock lock(mutex_);
    const auto is_over = [this]() PSD_REQUIRES(mutex_) {
      return ended_ || (!draining_ && flights_ == 0);
    };
    while (!is_over() && Clock::Steady().Now() < until)
      over_.WaitFor(mutex_, until - Clock::Steady().Now());
    over = is_over();
  }
  if (!over)
    group_->GiveUp(absl::DeadlineExceededError(absl::StrCat(
        "it leaves group ", Quoted(group_->members().name), " while calls of GPUs are under way")));
  group_->Leave(std::max(until - Clock::Steady().Now(), absl::ZeroDuration()));
}

void DeviceCalls::End() {
  {
    MutexLock lock(mutex_);
    ended_ = true;
    over_.NotifyAll();
  }
  connections_.End();
}

}  // namespace psd::services
