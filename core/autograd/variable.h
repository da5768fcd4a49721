#pragma once

// A tensor with its history: the type of the arguments and results of operators whose gradients may
// be wanted.

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "core/autograd/edge.h"
#include "core/autograd/hooks.h"
#include "core/base/ids.h"
#include "core/tensor/tensor.h"

namespace psd {

// A value: copies share tensor and history. Thread-compatible.
//
// Errors travel inside a variable. An operator with bad arguments returns an invalid variable that
// holds the error, and an operator with an invalid argument returns that argument. The error is
// reported where the numbers are needed (Backward, a call, ok()), so expressions need no checks in
// between.
class Variable {
 public:
  // An undefined variable: not ok, with INVALID_ARGUMENT.
  Variable() = default;

  // A constant or, with `requires_grad`, a leaf of this process. A leaf must be f32 or f64;
  // otherwise the variable is invalid.
  Variable(Tensor tensor, bool requires_grad = false);  // NOLINT: a tensor is a constant

  // A leaf for an owner's parameter at `version`. A GradientSink gets its gradients under `key`.
  // The tensor must be f32 or f64; otherwise the variable is invalid.
  static Variable Leaf(Tensor tensor, GlobalId key, uint64_t version);
  // A variable that is result number `output` of `node`.
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

  // Whether gradients can be computed for this variable. False for invalid variables.
  bool requires_grad() const { return edge_.node != nullptr; }
  // Whether no operation made this variable: it is a constant, a parameter, or a leaf of this
  // process.
  bool is_leaf() const;
  // The key under which a GradientSink gets the gradients of this leaf. No id (GlobalId::IsNone) if
  // this is not a leaf that requires grad.
  GlobalId key() const;
  // The place that gradients of this variable go to. Its node is null if they are not needed.
  const Edge& gradient_edge() const { return edge_; }

  // Add a hook (hooks.h) to this variable and all its copies. Requires: no backward runs.
  // Errors: those of an invalid variable; FAILED_PRECONDITION unless the variable requires grad
  // and, for AddAccumulatedHook, is a leaf.
  absl::Status AddGradientHook(GradientHook hook) const;
  absl::Status AddAccumulatedHook(AccumulatedHook hook) const;

  // Returns a constant with the same elements, without history.
  Variable Detach() const;

 private:
  Variable(Tensor tensor, Edge edge) : tensor_(std::move(tensor)), edge_(std::move(edge)) {}

  Tensor tensor_;       // undefined if not ok
  Edge edge_;           // its node is shared by all copies and by the nodes of their results
  absl::Status error_;  // why the variable is invalid
};

// While one exists, operators on its thread record no history.
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
