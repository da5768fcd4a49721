#include "core/services/calls/functions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/caught_exception.h"
#include "core/base/nearest_name.h"
#include "core/rref/rref.h"
#include "core/store/store.h"
#include "core/store/value.h"

namespace psd::services {

FunctionCall::FunctionCall(std::shared_ptr<FunctionHost> host, rpc::PeerInfo caller,
                           absl::Time deadline, FunctionHost::ContextPtr context,
                           std::function<bool()> cancelled)
    : host_(std::move(host)),
      caller_(std::move(caller)),
      deadline_(deadline),
      context_(std::move(context)),
      cancelled_(std::move(cancelled)) {}

Future<Values> FunctionCall::RpcAsync(const std::string& callee, const CallTarget& target,
                                      Values arguments) const {
  return host_->Run(callee, target, std::move(arguments), context_, deadline_);
}

absl::StatusOr<Values> FunctionCall::RpcSync(const std::string& callee, const CallTarget& target,
                                             Values arguments) const {
  return RpcAsync(callee, target, std::move(arguments)).Wait();
}

absl::StatusOr<rref::RRef> FunctionCall::Remote(const std::string& callee, const CallTarget& target,
                                                Values arguments) const {
  return host_->Remote(callee, target, std::move(arguments), context_, deadline_);
}

Future<Values> FunctionCall::ToHereAsync(const std::vector<rref::RRef>& rrefs) const {
  return host_->Fetch(rrefs, context_, deadline_);
}

absl::StatusOr<Values> FunctionCall::ToHere(const std::vector<rref::RRef>& rrefs) const {
  return ToHereAsync(rrefs).Wait();
}

absl::StatusOr<rref::RRef> FunctionCall::Keep(store::Value value, bool requires_grad) const {
  return host_->Keep(std::move(value), requires_grad);
}

AsyncFunction FunctionRegistry::Immediate(SyncFunction function) {
  return [function = std::move(function)](const FunctionCall& call, Values arguments) {
    return Future<Values>::Ready(function(call, std::move(arguments)));
  };
}

AsyncFunction FunctionRegistry::Guarded(AsyncFunction function) {
  auto shared = std::make_shared<const AsyncFunction>(std::move(function));
  return [shared](const FunctionCall& call, Values arguments) {
    Future<Values> results;
    try {
      results = (*shared)(call, std::move(arguments));
    } catch (...) {
      return Future<Values>::Ready(CaughtException());
    }
    if (results.valid()) return results;
    return Future<Values>::Ready(absl::InternalError("returned a future of nothing"));
  };
}

absl::Status FunctionRegistry::Register(const std::string& name, SyncFunction function) {
  return RegisterAsync(name, Immediate(std::move(function)));
}

absl::Status FunctionRegistry::RegisterAsync(const std::string& name, AsyncFunction function) {
  return Add(name, std::move(function), /*on_object=*/false);
}

absl::Status FunctionRegistry::Add(const std::string& name, AsyncFunction function,
                                   bool on_object) {
  if (name.empty()) return absl::InvalidArgumentError("a registered function needs a name");
  if (!functions_.emplace(name, Offered{Guarded(std::move(function)), on_object}).second) {
    return absl::AlreadyExistsError(absl::StrCat("a function '", name, "' is registered already"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<store::Object>> FunctionRegistry::TakeAnyObject(
    const std::string& method, Values& arguments) {
  const rref::RRef rref =
      arguments.empty() ? rref::RRef() : rref::RRef::FromValue(arguments.front());
  if (!rref.valid() || !rref.is_owner()) {
    return absl::InvalidArgumentError(
        absl::StrCat("method '", method, "': the first argument must be a reference to an object ",
                     "of the worker that is called"));
  }
  PSD_ASSIGN_OR_RETURN(const store::EntryPtr entry, rref.local_entry());
  PSD_ASSIGN_OR_RETURN(store::Value value, entry->Read());
  const auto* object = value.As<std::shared_ptr<store::Object>>();
  if (object == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("method '", method, "': ", rref.ToString(),
                                                   " is ", value.KindName(), ", not an object"));
  }
  arguments.erase(arguments.begin());
  return *object;
}

absl::Status FunctionRegistry::NoSuchMethod(const std::string& method,
                                            const store::Object& object) {
  return absl::InvalidArgumentError(
      absl::StrCat("method '", method, "' is not one of ", object.TypeName()));
}

absl::StatusOr<FunctionRegistry::Offered> FunctionRegistry::Find(const std::string& name) const {
  auto found = functions_.find(name);
  if (found != functions_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [registered, function] : functions_) known.push_back(registered);
  return absl::NotFoundError(absl::StrCat("no function '", name, "' is registered here",
                                          DidYouMean(NearestName(name, known))));
}

}  // namespace psd::services
