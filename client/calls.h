#pragma once

// More ways to call: several calls at once, and methods of objects through references to them.
//
//   psd::CallScope scope(*worker);
//   for (const std::string& owner : worker->owners())
//     scope.RpcAsync(owner, psd::Function::Registered("flush"), {});
//   PSD_RETURN_IF_ERROR(scope.Wait());
//
//   psd::ObjectProxy buffer(*worker, rref);
//   PSD_RETURN_IF_ERROR(buffer.RpcSync("append", {sample}));
//
// psd::WaitAll and psd::CollectAll of core/base/collect.h wait for a list of futures.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/psd.h"
#include "core/base/collect.h"
#include "core/base/mutex.h"

namespace psd {

// Collects the calls that are made through it, so that they can be waited for together.
// Thread-safe. Requires: the worker outlives it.
class CallScope {
 public:
  explicit CallScope(Worker& worker) : worker_(worker) {}
  // Waits for the calls that Wait has not waited for yet, and ignores their errors.
  ~CallScope() { Wait().IgnoreError(); }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  Future<Values> RpcAsync(const Callee& callee, const Function& function, const Values& arguments,
                          const CallOptions& options = {}) PSD_EXCLUDES(mutex_);
  // Waits for all calls made so far, then forgets them. Returns the error of the first call, in the
  // order in which they were made, that failed.
  absl::Status Wait() PSD_EXCLUDES(mutex_);
  size_t size() const PSD_EXCLUDES(mutex_);

 private:
  Worker& worker_;
  mutable Mutex mutex_;  // leaf
  std::vector<Future<Values>> calls_ PSD_GUARDED_BY(mutex_);
};

// Calls the methods of an object on the worker that owns it; that worker has registered them with
// FunctionRegistry::RegisterMethod. A value. Requires: the worker outlives it. The timeout of a
// call includes the time until the object has been created. Errors: as Worker::RpcSync.
class ObjectProxy {
 public:
  ObjectProxy(Worker& worker, RRef object) : worker_(&worker), object_(std::move(object)) {}

  absl::StatusOr<Values> RpcSync(const std::string& method, const Values& arguments,
                                 const CallOptions& options = {}) const;
  Future<Values> RpcAsync(const std::string& method, const Values& arguments,
                          const CallOptions& options = {}) const;
  absl::StatusOr<RRef> Remote(const std::string& method, const Values& arguments,
                              const CallOptions& options = {}) const;

 private:
  Values WithObject(const Values& arguments) const;
  Worker* worker_;
  RRef object_;
};

}  // namespace psd
