#pragma once

// Functions of the user that are attached to variables. Every backward pass that reaches the
// variable calls them.

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace psd {

// Gets the sum of a variable's gradients over all its uses, and returns the gradient to use
// instead: another tensor of the same shape and dtype, or `gradient` itself. The elements of
// `gradient` are shared, so a hook must not write to them. An error fails the pass. So does an
// exception, which becomes INTERNAL with its text.
using GradientHook = std::function<absl::StatusOr<Tensor>(const Tensor& gradient)>;

// Gets the gradient of a leaf after it was handed to the pass's sink. Errors and exceptions are
// handled as above.
using AccumulatedHook = std::function<absl::Status(const Tensor& gradient)>;

// The hooks of one node. In each pass every hook is called once, in the order in which they were
// added, unless there is no gradient for it. Hooks may be called on any thread, and by several
// passes at the same time. Add requires that no pass runs.
class NodeHooks {
 public:
  void Add(int input, GradientHook hook) { before_.push_back({input, std::move(hook)}); }
  void Add(AccumulatedHook hook) { after_.push_back(std::move(hook)); }

  // Replaces gradients by the results of the hooks.
  // Errors: those of the hooks; INVALID_ARGUMENT if a result has another shape or dtype.
  absl::Status RunBefore(absl::Span<Tensor> gradients) const;
  // Calls the hooks for a leaf that was run with `gradient`. Errors: those of the hooks.
  absl::Status RunAfter(const Tensor& gradient) const;

 private:
  struct BeforeInput {
    int input;
    GradientHook hook;
  };
  std::vector<BeforeInput> before_;
  std::vector<AccumulatedHook> after_;
};

}  // namespace psd
