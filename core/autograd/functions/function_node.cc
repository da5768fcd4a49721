#include "core/autograd/functions/function_node.h"

namespace psd {

Edges EdgesOf(absl::Span<const Variable* const> inputs) {
  Edges edges;
  edges.reserve(inputs.size());
  for (const Variable* input : inputs) edges.push_back(input->gradient_edge());
  return edges;
}

}  // namespace psd
