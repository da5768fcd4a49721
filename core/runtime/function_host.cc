#include "core/runtime/function_host.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/dist_autograd/exchange.h"
#include "core/runtime/runtime.h"
#include "core/services/calls/call_service.h"
#include "core/services/values/value_service.h"

namespace psd::worker {

using services::CallTarget;
using store::Values;

namespace {

absl::Status NotFoundInTime(const std::string& callee) {
  return absl::DeadlineExceededError(
      absl::StrCat(callee, " was not found before the deadline of the function's own call"));
}

}  // namespace

absl::Status RuntimeFunctionHost::Destroyed() const {
  return absl::FailedPreconditionError(
      absl::StrCat("the worker ", self_.name, ", which ran the function, no longer exists"));
}

absl::StatusOr<rpc::CallOptions> RuntimeFunctionHost::OptionsUntil(absl::Time deadline) const {
  rpc::CallOptions options;
  options.timeout = absl::ZeroDuration();
  if (deadline == absl::InfiniteFuture()) return options;
  options.timeout = deadline - runtime_.options().clock->Now();
  if (options.timeout > absl::ZeroDuration()) return options;
  return absl::DeadlineExceededError(absl::StrCat("the time of the function's own call on ",
                                                  self_.name, " is over by ",
                                                  absl::FormatDuration(-options.timeout)));
}

Future<Values> RuntimeFunctionHost::Run(const std::string& callee, const CallTarget& target,
                                        Values arguments, const ContextPtr& context,
                                        absl::Time deadline) {
  rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return Future<Values>::Ready(Destroyed());
  const ContextPtr recording = dist_autograd::RecordingContext(context);
  const Future<Unit> known = runtime_.peers().MakeKnown(callee);
  if (known.IsReady())
    return RunKnown(known.Wait().status(), callee, target, std::move(arguments), recording,
                    deadline);
  Promise<Values> answered;
  if (deadline != absl::InfiniteFuture()) {
    runtime_.timers().RunAt(deadline, [answered, callee] { answered.Set(NotFoundInTime(callee)); });
  }
  known.OnReady([self = shared_from_this(), callee, target, arguments = std::move(arguments),
                 recording, deadline, answered](const absl::StatusOr<Unit>& found) mutable {
    self->RunKnown(found.status(), callee, target, std::move(arguments), recording, deadline)
        .On(nullptr)
        .OnReady([answered](const absl::StatusOr<Values>& results) { answered.Set(results); });
  });
  return answered.future().On(runtime_.continuations());
}

Future<Values> RuntimeFunctionHost::RunKnown(const absl::Status& known, const std::string& callee,
                                             const CallTarget& target, Values arguments,
                                             const ContextPtr& recording, absl::Time deadline) {
  if (!known.ok()) return Future<Values>::Ready(known);
  rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return Future<Values>::Ready(Destroyed());
  const auto options = OptionsUntil(deadline);
  if (!options.ok()) return Future<Values>::Ready(options.status());
  return runtime_.calls().Run(callee, target, std::move(arguments), recording, *options);
}

absl::StatusOr<rref::RRef> RuntimeFunctionHost::Remote(const std::string& callee,
                                                       const CallTarget& target, Values arguments,
                                                       const ContextPtr& context,
                                                       absl::Time deadline) {
  rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return Destroyed();
  const Future<Unit> known = runtime_.peers().MakeKnown(callee);
  PSD_ASSIGN_OR_RETURN(const rpc::CallOptions search, OptionsUntil(deadline));
  if (search.timeout > absl::ZeroDuration() && !known.WaitFor(search.timeout))
    return NotFoundInTime(callee);
  PSD_RETURN_IF_ERROR(known.Wait());
  PSD_ASSIGN_OR_RETURN(const rpc::CallOptions options, OptionsUntil(deadline));
  return runtime_.calls().Remote(callee, target, std::move(arguments), context, options);
}

Future<Values> RuntimeFunctionHost::Fetch(const std::vector<rref::RRef>& rrefs,
                                          const ContextPtr& context, absl::Time deadline) {
  rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return Future<Values>::Ready(Destroyed());
  const auto options = OptionsUntil(deadline);
  if (!options.ok()) return Future<Values>::Ready(options.status());
  return runtime_.values().Fetch(rrefs, context, *options);
}

absl::StatusOr<rref::RRef> RuntimeFunctionHost::Keep(store::Value value, bool requires_grad) {
  rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return Destroyed();
  PSD_ASSIGN_OR_RETURN(const store::EntryPtr kept,
                       runtime_.store().Put(std::move(value), requires_grad));
  return runtime_.rrefs().LocalRRef(kept);
}

}  // namespace psd::worker
