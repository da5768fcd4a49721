#include "client/calls.h"

#include <utility>

namespace psd {

Future<Values> CallScope::RpcAsync(const Callee& callee, const Function& function,
                                   const Values& arguments, const CallOptions& options) {
  Future<Values> call = worker_.RpcAsync(callee, function, arguments, options);
  MutexLock lock(mutex_);
  calls_.push_back(call);
  return call;
}

absl::Status CallScope::Wait() {
  std::vector<Future<Values>> calls;
  {
    MutexLock lock(mutex_);
    calls.swap(calls_);
  }
  absl::Status first;
  for (const Future<Values>& call : calls) {
    absl::Status status = call.Wait().status();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

size_t CallScope::size() const {
  MutexLock lock(mutex_);
  return calls_.size();
}

Values ObjectProxy::WithObject(const Values& arguments) const {
  Values all{object_};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

absl::StatusOr<Values> ObjectProxy::RpcSync(const std::string& method, const Values& arguments,
                                            const CallOptions& options) const {
  return RpcAsync(method, arguments, options).Wait();
}

Future<Values> ObjectProxy::RpcAsync(const std::string& method, const Values& arguments,
                                     const CallOptions& options) const {
  return worker_->RpcAsync(object_.owner(), Function::Registered(method), WithObject(arguments),
                           options);
}

absl::StatusOr<RRef> ObjectProxy::Remote(const std::string& method, const Values& arguments,
                                         const CallOptions& options) const {
  return worker_->Remote(object_.owner(), Function::Registered(method), WithObject(arguments),
                         options);
}

}  // namespace psd
