#include "core/autograd/functions/function_node.h"

namespace psd {

FunctionNodeBase::FunctionNodeBase(absl::string_view name, absl::Span<const Variable* const> inputs)
    : name_(name) {
  next_.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]->requires_grad()) wanted_.Add(i);
    next_.push_back(inputs[i]->gradient_edge());
  }
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

}  // namespace psd
