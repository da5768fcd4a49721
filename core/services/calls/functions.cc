#include "core/services/calls/functions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/caught_exception.h"
#include "core/base/nearest_name.h"
#include "core/rref/rref.h"
#include "core/store/value.h"

namespace psd::services {

AsyncFunction FunctionRegistry::Immediate(Function function) {
  return [function = std::move(function)](const FunctionCall& call, store::Values arguments) {
    return Future<store::Values>::Ready(function(call, std::move(arguments)));
  };
}

AsyncFunction FunctionRegistry::Guarded(AsyncFunction function) {
  auto shared = std::make_shared<const AsyncFunction>(std::move(function));
  return [shared](const FunctionCall& call, store::Values arguments) {
    Future<store::Values> results;
    try {
      results = (*shared)(call, std::move(arguments));
    } catch (...) {
      return Future<store::Values>::Ready(CaughtException());
    }
    if (results.valid()) return results;
    return Future<store::Values>::Ready(absl::InternalError("returned a future of nothing"));
  };
}

absl::Status FunctionRegistry::Register(const std::string& name, Function function) {
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
    const std::string& method, store::Values& arguments) {
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
