#pragma once

// Waits, without a thread, until references may be used, passed on or answered.

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/base/future.h"
#include "core/base/timer.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref.h"
#include "core/rref/rref_context.h"
#include "core/store/value.h"

namespace psd::rref {

// Returns the references among `values`, including those in containers.
std::vector<RRef> CollectReferences(const store::Values& values);

// Returns whether the values of all `rrefs` have been made.
bool AllMade(const std::vector<RRef>& rrefs);

// Holds calls back until the creations of the references that they use have ended. Thread-safe.
class CreationGate {
 public:
  // `rrefs` and `timers` must outlive the gate and all futures that it has returned. `clock` is the
  // clock of `timers`.
  CreationGate(RRefContext& rrefs, const Clock& clock, TimerQueue& timers)
      : rrefs_(rrefs), clock_(clock), timers_(timers) {}
  CreationGate(const CreationGate&) = delete;
  CreationGate& operator=(const CreationGate&) = delete;

  // On the caller: waits until the creations of `rrefs` have ended. Returns `options` with the time
  // that is then left of its timeout. Errors: the reason why one of the references cannot be used;
  // DEADLINE_EXCEEDED.
  Future<rpc::CallOptions> WhenMade(const std::vector<RRef>& rrefs,
                                    const rpc::CallOptions& options) const;
  // As WhenMade, but waits only until `rrefs` may be arguments of a call, that is, until their
  // values are made or under creation.
  Future<rpc::CallOptions> WhenPassable(const std::vector<RRef>& rrefs,
                                        const rpc::CallOptions& options) const;
  // On the callee: as WhenMade, but waits only until `rrefs` may be in an answer to `caller`.
  // Values of the caller and of this worker must be made; those of other workers may be under
  // creation.
  Future<rpc::CallOptions> WhenAnswerable(const std::string& caller, const std::vector<RRef>& rrefs,
                                          const rpc::CallOptions& options) const;

  // When the creations of `rrefs` have ended, calls `use` with `options` and the time that is then
  // left, and returns its result.
  template <typename T, typename Use>
  Future<T> After(const std::vector<RRef>& rrefs, const rpc::CallOptions& options, Use use) const {
    if (AllMade(rrefs)) return use(options);
    Promise<T> promise;
    WhenMade(rrefs, options)
        .OnReady([use = std::move(use),
                  promise](const absl::StatusOr<rpc::CallOptions>& left) mutable {
          if (!left.ok()) return static_cast<void>(promise.Set(left.status()));
          use(*left).OnReady([promise](const absl::StatusOr<T>& result) { promise.Set(result); });
        });
    return promise.future();
  }

 private:
  // Waits until ready(rref) is ready for each of `rrefs` whose value is not made. Returns `options`
  // with the time that is then left.
  Future<rpc::CallOptions> WhenReady(const std::vector<RRef>& rrefs,
                                     const rpc::CallOptions& options,
                                     absl::FunctionRef<Future<Unit>(const RRef&)> ready) const;

  RRefContext& rrefs_;
  const Clock& clock_;
  TimerQueue& timers_;
};

}  // namespace psd::rref
