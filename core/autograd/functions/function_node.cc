#include "core/autograd/functions/function_node.h"

#include "absl/strings/str_cat.h"

namespace psd {

absl::Status FunctionNodeBase::CheckUsable() const {
  if (!released_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("a second backward through ", name_,
                   ", whose saved values the first one freed; set retain_graph in all but the "
                   "last"));
}

void FunctionNodeBase::Release(absl::Span<Tensor> saved) {
  released_ = !saved.empty();
  for (Tensor& tensor : saved) tensor = Tensor();
}

const Variable* FirstInvalid(absl::Span<const Variable* const> inputs) {
  for (const Variable* input : inputs)
    if (!input->ok()) return input;
  return nullptr;
}

bool WantsHistory(absl::Span<const Variable* const> inputs) {
  if (!GradEnabled()) return false;
  for (const Variable* input : inputs)
    if (input->requires_grad()) return true;
  return false;
}

Edges GradientEdges(absl::Span<const Variable* const> inputs) {
  Edges edges;
  edges.reserve(inputs.size());
  for (const Variable* input : inputs) edges.push_back(input->gradient_edge());
  return edges;
}

absl::StatusOr<Tensors> OneGradient(absl::StatusOr<Tensor> gradient) {
  if (!gradient.ok()) return gradient.status();
  Tensors gradients;
  gradients.push_back(*std::move(gradient));
  return gradients;
}

}  // namespace psd
