#include "core/rref/creation_gate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/collect.h"

namespace psd::rref {
namespace {

void CollectReferencesOf(const store::Value& value, std::vector<RRef>& found) {
  if (value.As<std::shared_ptr<const store::RemoteReference>>() != nullptr) {
    RRef rref = RRef::FromValue(value);
    if (rref.valid()) found.push_back(std::move(rref));
  } else if (const store::Value::List* items = value.AsList()) {
    for (const store::Value& item : *items) CollectReferencesOf(item, found);
  } else if (const store::Value::Map* items = value.AsMap()) {
    for (const auto& [key, item] : *items) CollectReferencesOf(item, found);
  }
}

}  // namespace

std::vector<RRef> CollectReferences(const store::Values& values) {
  std::vector<RRef> found;
  found.reserve(values.size());
  for (const store::Value& value : values) CollectReferencesOf(value, found);
  return found;
}

bool AllMade(const std::vector<RRef>& rrefs) {
  return std::all_of(rrefs.begin(), rrefs.end(),
                     [](const RRef& rref) { return rref.valid() && rref.is_made(); });
}

Future<rpc::CallOptions> CreationGate::WhenReady(
    const std::vector<RRef>& rrefs, const rpc::CallOptions& options,
    absl::FunctionRef<Future<Unit>(const RRef&)> ready) const {
  using Result = Future<rpc::CallOptions>;
  absl::Status usable = rrefs_.CheckUsable(rrefs);
  if (!usable.ok()) return Result::Ready(usable);
  std::vector<Future<Unit>> pending;
  for (const RRef& rref : rrefs) {
    if (rref.is_made()) continue;
    Future<Unit> future = ready(rref);
    if (!future.IsReady()) {
      pending.push_back(std::move(future));
    } else if (!future.Wait().ok()) {
      return Result::Ready(future.Wait().status());
    }
  }
  if (pending.empty()) return Result::Ready(options);
  const absl::Time begun = clock_.Now();
  const bool bounded = options.timeout > absl::ZeroDuration();
  Promise<rpc::CallOptions> promise;
  TimerQueue::Id timer = 0;
  if (bounded) {
    timer = timers_.RunAfter(options.timeout, [promise, timeout = options.timeout] {
      promise.Set(absl::DeadlineExceededError(
          absl::StrCat("the creation of a reference that the call uses did not end within ",
                       absl::FormatDuration(timeout))));
    });
  }
  CollectAll(pending).OnReady([&clock = clock_, &timers = timers_, promise, options, begun, bounded,
                               timer](const absl::StatusOr<std::vector<Unit>>& created) {
    if (bounded) timers.Cancel(timer);
    if (!created.ok()) return static_cast<void>(promise.Set(created.status()));
    rpc::CallOptions left = options;
    if (bounded) {
      left.timeout = std::max(options.timeout - (clock.Now() - begun), absl::Microseconds(1));
    }
    promise.Set(left);
  });
  return promise.future();
}

Future<rpc::CallOptions> CreationGate::WhenMade(const std::vector<RRef>& rrefs,
                                                const rpc::CallOptions& options) const {
  return WhenReady(rrefs, options, [](const RRef& rref) { return rref.body()->made(); });
}

Future<rpc::CallOptions> CreationGate::WhenPassable(const std::vector<RRef>& rrefs,
                                                    const rpc::CallOptions& options) const {
  return WhenReady(rrefs, options, [&](const RRef& rref) { return rrefs_.Passable(rref); });
}

Future<rpc::CallOptions> CreationGate::WhenAnswerable(const std::string& caller,
                                                      const std::vector<RRef>& rrefs,
                                                      const rpc::CallOptions& options) const {
  return WhenReady(rrefs, options, [&](const RRef& rref) {
    const bool needs_value = rref.is_owner() || rref.owner() == caller;
    return needs_value ? rref.body()->made() : rrefs_.Passable(rref);
  });
}

}  // namespace psd::rref
