#include "core/autograd/functions/function_node.h"

namespace psd {

absl::Status FunctionNodeBase::CheckUsable() const {
  return released_ ? SavedValuesFreed(name_) : absl::OkStatus();
}

absl::InlinedVector<bool, 4> FunctionNodeBase::Wanted() const {
  absl::InlinedVector<bool, 4> wanted(next_.size());
  for (size_t i = 0; i < next_.size(); ++i) wanted[i] = static_cast<bool>(next_[i]);
  return wanted;
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
