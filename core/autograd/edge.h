#pragma once

// An edge of the graph that backward walks.

#include <memory>

namespace psd {

class Node;  // core/autograd/node.h

// Says where a gradient goes: to input `input` of `node`. If there is no node, the gradient is not
// needed.
struct Edge {
  std::shared_ptr<Node> node;  // shared by all edges that point to it
  int input = 0;

  explicit operator bool() const { return node != nullptr; }
};

}  // namespace psd
