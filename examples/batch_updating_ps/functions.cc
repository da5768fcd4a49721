#include "examples/batch_updating_ps/functions.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/status.h"

namespace psd::examples {
namespace {

absl::StatusOr<std::vector<Tensor>> ReadTensors(const Values& values) {
  std::vector<Tensor> tensors;
  for (const Value& value : values) {
    PSD_ASSIGN_OR_RETURN(Tensor tensor, ReadValue<Tensor>(value));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

FunctionRegistry MakeFunctions(std::shared_ptr<BatchUpdater> updater) {
  FunctionRegistry functions;
  absl::Status all;
  all.Update(functions.Register(
      "model.fetch", [updater](const FunctionCall&, const Values&) -> absl::StatusOr<Values> {
        return updater->Fetch();
      }));
  // This function is asynchronous: it returns a future at once, so any number of trainers can wait
  // here while the daemon's threads serve other calls.
  all.Update(functions.RegisterAsync(
      "model.update_and_fetch", [updater](const FunctionCall& call, const Values& arguments) {
        absl::StatusOr<std::vector<Tensor>> gradients = ReadTensors(arguments);
        if (!gradients.ok()) return Future<Values>::Ready(gradients.status());
        return updater->UpdateAndFetch(call.caller().name, *std::move(gradients),
                                       [call] { return call.cancelled(); });
      }));
  PSD_CHECK(all.ok(), "two functions have one name");
  return functions;
}

}  // namespace psd::examples
