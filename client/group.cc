// Collective operations of workers: barriers, all-gathers and shutdown.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/psd.h"
#include "client/worker_state.h"
#include "core/base/clock.h"
#include "core/base/remedy.h"
#include "core/base/timer.h"
#include "core/rpc/registrar/registrar_client.h"
#include "core/rref/fork_data.h"
#include "core/rref/rref_context.h"
#include "core/rref/value_codec.h"
#include "core/runtime/runtime.h"
#include "core/services/calls/call_service.h"

namespace psd {
namespace {

constexpr size_t kMostHeldListed = 16;
constexpr absl::Duration kFirstPause = absl::Milliseconds(1);
constexpr absl::Duration kMostPause = absl::Milliseconds(50);

absl::Status NoReferences() {
  return WithRemedy(absl::InvalidArgumentError("all-gather: references cannot be gathered"),
                    "pass them in calls");
}

rpc::CallOptions WaitsFor(absl::Duration timeout) {
  rpc::CallOptions options;
  options.timeout = timeout;
  return options;
}

absl::StatusOr<Value> DecodeOne(const rpc::Payload& payload) {
  PSD_ASSIGN_OR_RETURN(
      Values values,
      rref::DecodeValues(
          payload,
          [](std::vector<Tensor> tensors) -> absl::StatusOr<std::vector<Variable>> {
            return std::vector<Variable>(tensors.begin(), tensors.end());
          },
          [](const rref::ForkRun&) -> absl::StatusOr<Values> { return NoReferences(); }));
  if (values.size() != 1) return absl::InternalError("all-gather: not one value from each");
  return std::move(values[0]);
}

// The sums of what all trainers of the group reported in one all-gather.
struct Round {
  int64_t served = 0;
  int64_t under_way = 0;
};

absl::StatusOr<Round> Sum(const std::map<std::string, Value>& told) {
  Round round;
  for (const auto& [member, value] : told) {
    const Value::List* numbers = value.AsList();
    const bool two = numbers != nullptr && numbers->size() == 2 &&
                     (*numbers)[0].As<int64_t>() != nullptr &&
                     (*numbers)[1].As<int64_t>() != nullptr;
    if (!two) {
      return absl::InternalError(absl::StrCat("group shutdown: ", member, " told ",
                                              value.KindName(), ", not two numbers"));
    }
    round.served += *(*numbers)[0].As<int64_t>();
    round.under_way += *(*numbers)[1].As<int64_t>();
  }
  return round;
}

}  // namespace

absl::Status Worker::Barrier(const std::string& name, const std::vector<std::string>& members,
                             absl::Duration timeout) {
  PSD_RETURN_IF_ERROR(state_->CheckRunning());
  return state_->registrar_client->Barrier(name, members, WaitsFor(timeout)).Wait().status();
}

absl::StatusOr<std::map<std::string, Value>> Worker::AllGather(
    const std::string& name, const Value& value, const std::vector<std::string>& members,
    absl::Duration timeout) {
  PSD_RETURN_IF_ERROR(state_->CheckRunning());
  return state_->AllGather(name, value, members, timeout);
}

absl::StatusOr<std::map<std::string, Value>> Worker::State::AllGather(
    const std::string& name, const Value& value, const std::vector<std::string>& members,
    absl::Duration timeout) {
  PSD_ASSIGN_OR_RETURN(rpc::Payload mine,
                       rref::EncodeValues({value}, [](const store::RemoteReference&,
                                                      rref::ForkData&) { return NoReferences(); }));
  auto gathering = registrar_client->AllGather(name, mine, members, WaitsFor(timeout));
  PSD_ASSIGN_OR_RETURN(auto gathered, std::move(gathering).Wait());
  std::map<std::string, Value> values;
  for (const auto& [member, payload] : gathered) {
    PSD_ASSIGN_OR_RETURN(values[member], DecodeOne(payload));
  }
  return values;
}

// The group is quiet when two rounds in a row show no call under way and the same number of calls
// served. A call that was sent and has not begun counts as under way at its caller, and a call that
// began and ended between the two rounds has raised the number served.
absl::Status Worker::State::WaitForGroup(absl::Duration timeout) {
  const Clock& clock = *runtime->options().clock;
  const absl::Time end =
      timeout > absl::ZeroDuration() ? clock.Now() + timeout : absl::InfiniteFuture();
  int64_t quiet_at = -1;
  for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kMostPause)) {
    const services::CallService::Activity mine = runtime->calls().activity();
    const Value told =
        Value::OfList({static_cast<int64_t>(mine.served), static_cast<int64_t>(mine.under_way)});
    absl::Duration left = absl::ZeroDuration();
    if (end != absl::InfiniteFuture()) {
      left = std::max(end - clock.Now(), absl::Milliseconds(1));
    }
    PSD_ASSIGN_OR_RETURN(auto all, AllGather("psd.shutdown", told, {}, left));
    PSD_ASSIGN_OR_RETURN(const Round round, Sum(all));
    if (round.under_way == 0 && round.served == quiet_at) return absl::OkStatus();
    quiet_at = round.under_way == 0 ? round.served : -1;
    if (clock.Now() >= end) {
      return absl::DeadlineExceededError(absl::StrCat("group shutdown: ", round.under_way,
                                                      " calls of the group are still under "
                                                      "way after ",
                                                      absl::FormatDuration(timeout)));
    }
    Promise<Unit> paused;
    runtime->timers().RunAfter(pause, [paused] { paused.Set(Unit{}); });
    paused.future().Wait().status().IgnoreError();
  }
}

absl::Status Worker::Shutdown(absl::Duration drain) {
  ShutdownOptions options;
  options.drain = drain;
  return Shutdown(options);
}

absl::Status Worker::Shutdown(const ShutdownOptions& options) {
  if (state_->shut_down) return absl::OkStatus();
  if (options.group_timeout < absl::ZeroDuration()) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "group_timeout is ", absl::FormatDuration(options.group_timeout))),
                      "give a positive time, or zero to wait without a limit");
  }
  absl::Status status;
  if (options.with_group) status = state_->WaitForGroup(options.group_timeout);
  if (state_->shut_down.exchange(true)) return absl::OkStatus();
  worker::Runtime& runtime = *state_->runtime;
  const std::vector<std::string> held = runtime.rrefs().Held(kMostHeldListed);
  if (!held.empty()) {
    const std::string list = absl::StrJoin(held, ", ");
    runtime.logger().Log(options.refuse_held_references ? LogLevel::kWarning : LogLevel::kInfo,
                         "references_held", "references are still held at shutdown",
                         {{"references", list}});
    if (status.ok() && options.refuse_held_references) {
      status = WithRemedy(absl::FailedPreconditionError(
                              absl::StrCat(name(), " still holds references at shutdown: ", list)),
                          "release them before");
    }
  }
  state_->registrar_client->Stop();
  runtime.Shutdown(options.drain);
  return status;
}

}  // namespace psd
