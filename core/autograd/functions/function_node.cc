#include "core/autograd/functions/function_node.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/small_memory.h"
#include "core/base/status.h"

namespace psd {
namespace {

class FunctionNode : public Node {
 public:
  FunctionNode(absl::string_view name, std::vector<Edge> next, std::vector<Tensor> saved,
               GradientFunction gradient)
      : Node(std::move(next)),
        name_(name),
        saved_(std::move(saved)),
        gradient_(std::move(gradient)) {}

  std::string Name() const override { return name_; }

  absl::StatusOr<std::vector<Tensor>> Apply(PassContext& pass,
                                            std::vector<Tensor> gradients) override {
    if (released_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "a second backward through ", name_,
          ", whose saved values the first one freed; set retain_graph in all but the last"));
    }
    absl::StatusOr<std::vector<Tensor>> results =
        gradient_(GradientCall{gradients[0], saved_, next_});
    if (!pass.retain_graph) Release();
    return results;
  }

 private:
  // What saved nothing can run again.
  void Release() {
    released_ = !saved_.empty();
    saved_.clear();
  }

  const std::string name_;
  std::vector<Tensor> saved_;
  const GradientFunction gradient_;
  bool released_ = false;
};

}  // namespace

const Variable* FirstInvalid(absl::Span<const Variable* const> inputs) {
  for (const Variable* input : inputs)
    if (!input->ok()) return input;
  return nullptr;
}

Variable Record(absl::string_view name, absl::Span<const Variable* const> inputs,
                absl::StatusOr<Tensor> result, std::vector<Tensor> saved,
                GradientFunction gradient) {
  if (!result.ok()) return Variable::Invalid(result.status());
  bool wanted = false;
  for (const Variable* input : inputs) wanted = wanted || input->requires_grad();
  if (!wanted || !GradEnabled()) return Variable(*std::move(result));
  std::vector<Edge> next;
  next.reserve(inputs.size());
  for (const Variable* input : inputs) next.push_back(input->gradient_edge());
  auto node =
      std::allocate_shared<FunctionNode>(SmallMemoryAllocator<FunctionNode>(), name,
                                         std::move(next), std::move(saved), std::move(gradient));
  return Variable::OfNode(*std::move(result), std::move(node), 0);
}

absl::StatusOr<std::vector<Tensor>> OneGradient(absl::StatusOr<Tensor> gradient) {
  if (!gradient.ok()) return gradient.status();
  std::vector<Tensor> gradients;
  gradients.push_back(*std::move(gradient));
  return gradients;
}

}  // namespace psd
