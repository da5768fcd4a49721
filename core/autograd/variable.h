#pragma once

// A tensor with its history: what operators take and give when gradients may be wanted.

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "core/autograd/hooks.h"
#include "core/autograd/node.h"
#include "core/base/ids.h"
#include "core/tensor/tensor.h"

namespace psd {

// A value: copies share tensor and history. Thread-compatible.
//
// Errors travel inside: an operator that is given bad arguments returns an invalid variable with
// the status, an operator that is given an invalid variable returns it as it is, and whoever needs
// the numbers (Backward, a call, ok()) reports it. So expressions compose without checks between.
class Variable {
 public:
  // Undefined: not ok, INVALID_ARGUMENT.
  Variable() = default;

  // A constant; with `requires_grad` a leaf of this process.
  // Requires for requires_grad: a floating dtype (else the variable is invalid).
  Variable(Tensor tensor, bool requires_grad = false);  // NOLINT: a tensor is a constant

  // A leaf known by `key` to whoever collects gradients: an owner's parameter at `version`.
  static Variable Leaf(Tensor tensor, GlobalId key, uint64_t version);
  // Result `output` of `node`.
  static Variable OfNode(Tensor tensor, std::shared_ptr<Node> node, int output) {
    return Variable(std::move(tensor), {std::move(node), output});
  }
  static Variable Invalid(absl::Status status);

  bool ok() const { return tensor_.defined(); }
  absl::Status status() const;

  // Requires: ok().
  const Tensor& tensor() const { return tensor_; }
  const Shape& shape() const { return tensor_.shape(); }
  DType dtype() const { return tensor_.dtype(); }

  // False for invalid variables.
  bool requires_grad() const { return edge_.node != nullptr; }
  // A leaf has no operation behind it: a constant, a parameter or a variable made by hand.
  bool is_leaf() const { return edge_.node == nullptr || edge_.node->leaf() != nullptr; }
  // The key under which gradients of this leaf are collected; none unless a leaf that requires
  // grad.
  GlobalId key() const;
  // Where gradients of this variable go. No node: they are not needed.
  const Edge& gradient_edge() const { return edge_; }

  // Hooks (hooks.h) on this variable, for all copies of it. Added while no backward runs.
  // Errors: FAILED_PRECONDITION unless it requires grad, and is a leaf for the second.
  absl::Status AddGradientHook(GradientHook hook) const;
  absl::Status AddAccumulatedHook(AccumulatedHook hook) const;

  // The same numbers without history.
  Variable Detach() const;

 private:
  Variable(Tensor tensor, Edge edge) : tensor_(std::move(tensor)), edge_(std::move(edge)) {}

  Tensor tensor_;       // undefined: not ok
  Edge edge_;           // its node is shared by all copies and by what was made of them
  absl::Status error_;  // of an invalid variable
};

// While one lives on this thread, operators record no history.
class NoGradGuard {
 public:
  NoGradGuard();
  ~NoGradGuard();
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  const bool previous_;
};

// Whether operators on this thread record history.
bool GradEnabled();

}  // namespace psd
