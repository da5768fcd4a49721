#pragma once

// Finds out how the gradients of a backward will reach parameters. Internal to client/ddp/.

#include <memory>
#include <vector>

#include "core/autograd/node.h"
#include "core/autograd/variable.h"
#include "core/base/ids.h"
#include "core/dist_autograd/context.h"

namespace psd {

// The way of a backward's gradients to one parameter.
struct GradientPath {
  // The node through which all of them come: they are complete when it has run. Null if the
  // parameter gets none, or if they come in several ways.
  std::shared_ptr<Node> leaf;
  // If true, they come in several ways, for example also as gradients of rows or from another
  // worker. They are complete when the backward has ended.
  bool several = false;
};

// Returns the paths of a backward from `roots` in `context` to the parameters whose ids are `keys`,
// in their order. Requires: no backward runs in the context.
std::vector<GradientPath> FindPaths(const std::vector<GlobalId>& keys,
                                    const dist_autograd::ContextState& context,
                                    const std::vector<Variable>& roots);

}  // namespace psd
