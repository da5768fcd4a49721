#include "core/autograd/functions/function_node.h"

namespace psd {

const Variable* FirstInvalid(absl::Span<const Variable* const> inputs) {
  for (const Variable* input : inputs)
    if (!input->ok()) return input;
  return nullptr;
}

Edges EdgesOf(absl::Span<const Variable* const> inputs) {
  Edges edges;
  edges.reserve(inputs.size());
  for (const Variable* input : inputs) edges.push_back(input->gradient_edge());
  return edges;
}

}  // namespace psd
