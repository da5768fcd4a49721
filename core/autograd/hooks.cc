#include "core/autograd/hooks.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/base/caught_exception.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd {

absl::Status NodeHooks::RunBefore(absl::Span<Tensor> gradients) const {
  for (const auto& [input, hook] : before_) {
    Tensor& gradient = gradients[static_cast<size_t>(input)];
    if (!gradient.defined()) continue;
    absl::StatusOr<Tensor> result = Catching(hook, gradient);
    if (!result.ok()) return Annotate(result.status(), "gradient hook");
    if (!result->defined() || result->shape() != gradient.shape() ||
        result->dtype() != gradient.dtype()) {
      return WithRemedy(
          absl::InvalidArgumentError(absl::StrCat("a gradient hook was given ", gradient.ToString(),
                                                  " and returned ", result->ToString())),
          "return the same shape and dtype");
    }
    gradient = *std::move(result);
  }
  return absl::OkStatus();
}

absl::Status NodeHooks::RunAfter(const Tensor& gradient) const {
  if (!gradient.defined()) return absl::OkStatus();
  for (const AccumulatedHook& hook : after_) {
    absl::Status status = Catching(hook, gradient);
    if (!status.ok()) return Annotate(status, "accumulated hook");
  }
  return absl::OkStatus();
}

}  // namespace psd
