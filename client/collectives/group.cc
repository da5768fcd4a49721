#include "client/collectives/group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/collectives/group_state.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/services/collectives/call_data.h"
#include "core/services/collectives/device_calls.h"

namespace psd {

using services::CollectiveCall;
using services::Operation;
using services::TensorForm;

struct Group::Request {
  CollectiveCall call;
  std::vector<Tensor> inputs;
  Device* device = nullptr;  // for the results, if there are no inputs
};

namespace {

CollectiveCall CallOf(Operation operation, const Tensor& tensor, const CollectiveOptions& options) {
  CollectiveCall call;
  call.operation = operation;
  if (tensor.defined()) call.form = TensorForm{tensor.dtype(), tensor.shape()};
  call.label = options.label;
  return call;
}

CollectiveCall Reducing(Operation operation, const Tensor& tensor, Reduction reduction,
                        const CollectiveOptions& options) {
  CollectiveCall call = CallOf(operation, tensor, options);
  call.reduction = reduction;
  return call;
}

CollectiveCall WithRoot(CollectiveCall call, int root) {
  call.root = root;
  return call;
}

CollectiveCall Scattering(const std::vector<Tensor>& tensors, int root,
                          const CollectiveOptions& options) {
  const Tensor none;
  return WithRoot(CallOf(Operation::kScatter, tensors.empty() ? none : tensors.front(), options),
                  root);
}

absl::Status Alone() {
  return absl::InvalidArgumentError("a group of one has no other rank to send to or receive from");
}

// Returns the results of a call in a group of one, which are its inputs.
absl::StatusOr<std::vector<Tensor>> AloneResults(const CollectiveCall& call,
                                                 std::vector<Tensor> inputs) {
  PSD_RETURN_IF_ERROR(services::CheckCall(call, 1));
  PSD_RETURN_IF_ERROR(services::CallData::CheckInputs(call, inputs, 0, 1));
  for (Tensor& input : inputs) {
    PSD_ASSIGN_OR_RETURN(input, std::move(input).Contiguous());
  }
  return inputs;
}

absl::StatusOr<Tensor> First(const absl::StatusOr<std::vector<Tensor>>& results) {
  if (!results.ok()) return results.status();
  return results->front();
}

}  // namespace

Group::Group(std::unique_ptr<State> state) : state_(std::move(state)) {}

Group::~Group() {
  Leave();
}

void Group::Leave() {
  state_->Leave(kMostLeaving);
}

absl::Status Group::Fail(const absl::Status& why) {
  if (state_->part == nullptr) return why;
  state_->part->GiveUp(why);
  return status();
}

const std::string& Group::name() const {
  return state_->name;
}
int Group::rank() const {
  return state_->rank;
}
int Group::size() const {
  return static_cast<int>(state_->members.size());
}
const std::vector<std::string>& Group::members() const {
  return state_->members;
}
absl::Duration Group::timeout() const {
  return state_->timeout;
}
absl::Status Group::status() const {
  return state_->part == nullptr ? absl::OkStatus() : state_->part->failure();
}

absl::StatusOr<absl::Duration> Group::TimeoutOf(const CollectiveOptions& options) const {
  if (options.timeout < absl::ZeroDuration() || options.timeout == absl::InfiniteDuration()) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("group ", name(), ": the timeout of a call is ",
                                                absl::FormatDuration(options.timeout))),
        absl::StrCat("give a positive, finite one, or 0 for that of the group, ",
                     absl::FormatDuration(state_->timeout)));
  }
  return options.timeout > absl::ZeroDuration() ? options.timeout : state_->timeout;
}

absl::StatusOr<std::shared_ptr<Device>> Group::HandleOf(const Device* device) const {
  if (device == nullptr) return nullptr;
  for (const std::shared_ptr<Device>& each : state_->devices)
    if (each.get() == device) return each;
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat("group ", name(), ": a tensor on ", device->name(),
                                              ", which is no device of this worker")),
      "give the worker the device (WorkerOptions::devices)");
}

Future<std::vector<Tensor>> Group::Start(Request request, const CollectiveOptions& options) {
  using Results = Future<std::vector<Tensor>>;
  const absl::StatusOr<absl::Duration> timeout = TimeoutOf(options);
  if (!timeout.ok()) return Results::Ready(timeout.status());
  if (state_->part == nullptr)
    return Results::Ready(AloneResults(request.call, std::move(request.inputs)));
  if (!request.inputs.empty()) request.device = request.inputs[0].device();
  absl::StatusOr<std::shared_ptr<Device>> device = HandleOf(request.device);
  if (!device.ok()) return Results::Ready(device.status());
  if (state_->device_calls != nullptr)
    return state_->device_calls->Start(std::move(request.call), std::move(request.inputs), *timeout,
                                       *std::move(device));
  return services::StartOnHost(*state_->part, std::move(request.call), std::move(request.inputs),
                               *timeout, *std::move(device));
}

// The result is taken out on the thread that sets it, so a thread that waits for it does not wait
// for a thread of the user's callbacks.
Future<Tensor> Group::StartForOne(Request request, const CollectiveOptions& options) {
  return Start(std::move(request), options).Then(First).On(state_->continuations);
}

Group::Request Group::ToBroadcast(const Tensor& tensor, int root,
                                  const CollectiveOptions& options) const {
  Request request{WithRoot(CallOf(Operation::kBroadcast, tensor, options), root), {}};
  request.device = tensor.device();
  if (root == rank()) request.inputs.push_back(tensor);
  return request;
}

Future<Unit> Group::StartSend(const Tensor& tensor, int to, const CollectiveOptions& options) {
  const absl::StatusOr<absl::Duration> timeout = TimeoutOf(options);
  if (!timeout.ok()) return Future<Unit>::Ready(timeout.status());
  if (state_->part == nullptr) return Future<Unit>::Ready(Alone());
  return state_->part->Send(tensor, to, options.label, *timeout);
}

Future<Tensor> Group::StartReceive(int from, const CollectiveOptions& options) {
  const absl::StatusOr<absl::Duration> timeout = TimeoutOf(options);
  if (!timeout.ok()) return Future<Tensor>::Ready(timeout.status());
  if (state_->part == nullptr) return Future<Tensor>::Ready(Alone());
  return state_->part->Receive(from, options.label, *timeout);
}

absl::StatusOr<Tensor> Group::AllReduce(const Tensor& tensor, Reduction reduction,
                                        const CollectiveOptions& options) {
  return First(
      Start({Reducing(Operation::kAllReduce, tensor, reduction, options), {tensor}}, options)
          .Wait());
}
Future<Tensor> Group::AllReduceAsync(const Tensor& tensor, Reduction reduction,
                                     const CollectiveOptions& options) {
  return StartForOne({Reducing(Operation::kAllReduce, tensor, reduction, options), {tensor}},
                     options);
}

absl::StatusOr<Tensor> Group::ReduceScatter(const Tensor& tensor, Reduction reduction,
                                            const CollectiveOptions& options) {
  return First(
      Start({Reducing(Operation::kReduceScatter, tensor, reduction, options), {tensor}}, options)
          .Wait());
}
Future<Tensor> Group::ReduceScatterAsync(const Tensor& tensor, Reduction reduction,
                                         const CollectiveOptions& options) {
  return StartForOne({Reducing(Operation::kReduceScatter, tensor, reduction, options), {tensor}},
                     options);
}

absl::StatusOr<std::vector<Tensor>> Group::AllGather(const Tensor& tensor,
                                                     const CollectiveOptions& options) {
  return Start({CallOf(Operation::kAllGather, tensor, options), {tensor}}, options).Wait();
}
Future<std::vector<Tensor>> Group::AllGatherAsync(const Tensor& tensor,
                                                  const CollectiveOptions& options) {
  return Start({CallOf(Operation::kAllGather, tensor, options), {tensor}}, options)
      .On(state_->continuations);
}

absl::StatusOr<Tensor> Group::Broadcast(const Tensor& tensor, int root,
                                        const CollectiveOptions& options) {
  return First(Start(ToBroadcast(tensor, root, options), options).Wait());
}
Future<Tensor> Group::BroadcastAsync(const Tensor& tensor, int root,
                                     const CollectiveOptions& options) {
  return StartForOne(ToBroadcast(tensor, root, options), options);
}

absl::StatusOr<std::vector<Tensor>> Group::Gather(const Tensor& tensor, int root,
                                                  const CollectiveOptions& options) {
  return Start({WithRoot(CallOf(Operation::kGather, tensor, options), root), {tensor}}, options)
      .Wait();
}
Future<std::vector<Tensor>> Group::GatherAsync(const Tensor& tensor, int root,
                                               const CollectiveOptions& options) {
  return Start({WithRoot(CallOf(Operation::kGather, tensor, options), root), {tensor}}, options)
      .On(state_->continuations);
}

absl::StatusOr<Tensor> Group::Scatter(const std::vector<Tensor>& tensors, int root,
                                      const CollectiveOptions& options) {
  return First(Start({Scattering(tensors, root, options), tensors}, options).Wait());
}
Future<Tensor> Group::ScatterAsync(const std::vector<Tensor>& tensors, int root,
                                   const CollectiveOptions& options) {
  return StartForOne({Scattering(tensors, root, options), tensors}, options);
}

absl::Status Group::Barrier(const CollectiveOptions& options) {
  return Start({CallOf(Operation::kBarrier, Tensor(), options), {}}, options).Wait().status();
}
Future<Unit> Group::BarrierAsync(const CollectiveOptions& options) {
  return Start({CallOf(Operation::kBarrier, Tensor(), options), {}}, options)
      .Then([](const absl::StatusOr<std::vector<Tensor>>& met) { return met.status(); })
      .On(state_->continuations);
}

absl::Status Group::Send(const Tensor& tensor, int to, const CollectiveOptions& options) {
  return StartSend(tensor, to, options).Wait().status();
}
Future<Unit> Group::SendAsync(const Tensor& tensor, int to, const CollectiveOptions& options) {
  return StartSend(tensor, to, options).On(state_->continuations);
}

absl::StatusOr<Tensor> Group::Receive(int from, const CollectiveOptions& options) {
  return StartReceive(from, options).Wait();
}
Future<Tensor> Group::ReceiveAsync(int from, const CollectiveOptions& options) {
  return StartReceive(from, options).On(state_->continuations);
}

}  // namespace psd
