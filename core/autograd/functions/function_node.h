#pragma once

// Records operators with one result, as a node of the graph or on a tape.

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/autograd/node.h"
#include "core/autograd/tape.h"
#include "core/autograd/variable.h"
#include "core/base/byte_lock.h"
#include "core/base/small_memory.h"
#include "core/tensor/tensor.h"

namespace psd {

// The arguments of a gradient function, and the place for its results.
struct GradientCall {
  const Tensor& g;                 // the gradient of the result
  absl::Span<const Tensor> saved;  // the tensors that were saved when it was recorded
  Wanted wanted;                   // the arguments whose gradients are wanted
  absl::Span<Tensor> results;      // one per argument, undefined before the call

  bool Wants(size_t i) const { return wanted.Has(i); }
  // Sets the gradient of argument `i`, or returns the error of its computation.
  absl::Status Give(size_t i, absl::StatusOr<Tensor>&& gradient) const {
    if (!gradient.ok()) return std::move(gradient).status();
    results[i] = *std::move(gradient);
    return absl::OkStatus();
  }
};

// A gradient function with the kSaved tensors that were saved for it, in one object so that
// recording takes a single allocation. Function is a callable absl::Status(const GradientCall&)
// that gives the gradients of all wanted arguments. Thread-safe.
template <size_t kSaved, typename Function>
class SavedFunction {
 public:
  SavedFunction(std::array<Tensor, kSaved>&& saved, Function&& gradient)
      : saved_(std::move(saved)), gradient_(std::move(gradient)) {}

  // See RecordedFunction.
  absl::Status Gradients(const SavedUse& use, const Tensor& g, Wanted wanted,
                         absl::Span<Tensor> results) {
    std::array<Tensor, kSaved> saved;
    if (!TakeSaved(use.retain, saved)) return SavedValuesFreed(use.name);
    return gradient_(GradientCall{g, saved, wanted, results});
  }

 private:
  // Gets the saved tensors, and frees them here unless `retain`. Returns false if they were freed
  // before.
  bool TakeSaved(bool retain, std::array<Tensor, kSaved>& saved) {
    if constexpr (kSaved > 0) {
      const ByteLockHolder lock(lock_);
      if (released_) return false;
      saved = retain ? saved_ : std::move(saved_);
      released_ = !retain;
    }
    return true;
  }

  std::array<Tensor, kSaved> saved_;  // lock_ guards this member and the next
  bool released_ = false;
  ByteLock lock_;  // leaf
  const Function gradient_;
};

// Returns the gradient edges of `inputs`.
template <size_t kInputs, size_t... kIndex>
std::array<Edge, kInputs> EdgesOf(const Variable* const (&inputs)[kInputs],
                                  std::index_sequence<kIndex...>) {
  return {inputs[kIndex]->gradient_edge()...};
}
template <size_t kInputs>
std::array<Edge, kInputs> EdgesOf(const Variable* const (&inputs)[kInputs]) {
  return EdgesOf(inputs, std::make_index_sequence<kInputs>());
}
Edges EdgesOf(absl::Span<const Variable* const> inputs);

// The node that is recorded for an operator. EdgeList is an array of edges, or Edges.
template <typename EdgeList, size_t kSaved, typename Function>
class FunctionNode final : public Node {
 public:
  // `name` is a literal: it must live as long as the node.
  template <typename Inputs>
  FunctionNode(absl::string_view name, const Inputs& inputs, std::array<Tensor, kSaved>&& saved,
               Function&& gradient)
      : name_(name), next_(EdgesOf(inputs)), function_(std::move(saved), std::move(gradient)) {}
  ~FunctionNode() override { Drop(absl::MakeSpan(next_)); }

  absl::string_view Name() const override { return name_; }
  absl::Span<const Edge> next() const override { return next_; }

  absl::Status Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                     absl::Span<Tensor> results) override {
    Wanted wanted;
    for (size_t i = 0; i < next_.size(); ++i)
      if (next_[i]) wanted.Add(i);
    return function_.Gradients({name_, pass.retain_graph}, gradients[0], wanted, results);
  }

 private:
  const absl::string_view name_;
  EdgeList next_;
  SavedFunction<kSaved, Function> function_;
};

template <size_t kSaved, typename Function>
class TapeFunction final : public RecordedFunction {
 public:
  TapeFunction(std::array<Tensor, kSaved>&& saved, Function&& gradient)
      : function_(std::move(saved), std::move(gradient)) {}

  absl::Status Gradients(const SavedUse& use, const Tensor& g, Wanted wanted,
                         absl::Span<Tensor> results) override {
    return function_.Gradients(use, g, wanted, results);
  }

 private:
  SavedFunction<kSaved, Function> function_;
};

// Returns the first of `inputs` that is not ok, or null if all are ok.
inline const Variable* FirstInvalid(absl::Span<const Variable* const> inputs) {
  for (const Variable* input : inputs)
    if (!input->ok()) return input;
  return nullptr;
}
inline const Variable* FirstInvalid(std::initializer_list<const Variable*> inputs) {
  return FirstInvalid(absl::MakeConstSpan(inputs.begin(), inputs.size()));
}

// Returns `tensor` if `condition`, otherwise an undefined tensor. For saving only the values that
// the wanted gradients need.
inline Tensor KeepIf(bool condition, const Tensor& tensor) {
  return condition ? tensor : Tensor();
}

// Lists the tensors that an operator saves for its gradients.
template <typename... Each>
std::array<Tensor, sizeof...(Each)> Save(Each&&... tensors) {
  return {std::forward<Each>(tensors)...};
}

// As Record, for inputs that are an array or a span.
template <typename Inputs, size_t kSaved, typename Function>
Variable RecordFor(absl::string_view name, const Inputs& inputs, absl::StatusOr<Tensor>&& result,
                   std::array<Tensor, kSaved>&& saved, Function&& gradient) {
  if (!result.ok()) return Variable::Invalid(std::move(result).status());
  const bool history =
      GradEnabled() && std::any_of(std::begin(inputs), std::end(inputs),
                                   [](const Variable* input) { return input->requires_grad(); });
  if (!history) return Variable(*std::move(result));
  if (TapeRecorder* tape = TapeRecorder::Current()) {
    return tape->Record(
        name, inputs, *std::move(result),
        std::make_unique<TapeFunction<kSaved, Function>>(std::move(saved), std::move(gradient)));
  }
  using Recorded = FunctionNode<decltype(EdgesOf(inputs)), kSaved, Function>;
  auto node = std::allocate_shared<Recorded>(SmallMemoryAllocator<Recorded>(), name, inputs,
                                             std::move(saved), std::move(gradient));
  return Variable::OfNode(*std::move(result), std::move(node), 0);
}

// Records the operator `name` (a literal) on `inputs`, which are all ok, and returns its result.
// The result is an invalid variable if `result` is an error, and a constant if no input requires
// grad or history is off. Otherwise it is a variable whose gradients `gradient` computes from the
// tensors in `saved`.
template <size_t kInputs, size_t kSaved, typename Function>
Variable Record(absl::string_view name, const Variable* const (&inputs)[kInputs],
                absl::StatusOr<Tensor>&& result, std::array<Tensor, kSaved>&& saved,
                Function gradient) {
  return RecordFor(name, inputs, std::move(result), std::move(saved), std::move(gradient));
}
// As above, for an operator on any number of inputs.
template <size_t kSaved, typename Function>
Variable RecordList(absl::string_view name, absl::Span<const Variable* const> inputs,
                    absl::StatusOr<Tensor>&& result, std::array<Tensor, kSaved>&& saved,
                    Function gradient) {
  return RecordFor(name, inputs, std::move(result), std::move(saved), std::move(gradient));
}

}  // namespace psd
