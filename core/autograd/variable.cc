#include "core/autograd/variable.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/autograd/node.h"
#include "core/base/remedy.h"
#include "core/base/small_memory.h"
#include "core/base/status.h"
#include "core/base/thread_modes.h"

namespace psd {
namespace {

// Returns a new key for a leaf of this process.
GlobalId NextLocalKey() {
  static std::atomic<uint64_t> next{1};
  return {0, next.fetch_add(1, std::memory_order_relaxed)};
}

// The node of a leaf, where every path ends. It passes the sum of the leaf's gradients to the
// pass's sink.
class AccumulateGrad : public Node {
 public:
  explicit AccumulateGrad(LeafInfo leaf) : leaf_(std::move(leaf)) {}

  absl::string_view Name() const override { return "AccumulateGrad"; }

  const LeafInfo* leaf() const override { return &leaf_; }

  absl::Status Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                     absl::Span<Tensor>) override {
    if (gradients.empty() || !gradients[0].defined()) return absl::OkStatus();
    Tensor& gradient = gradients[0];
    if (gradient.shape() != leaf_.shape || gradient.dtype() != leaf_.dtype) {
      return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                            "a gradient ", gradient.ToString(), " for leaf ", leaf_.key.ToString(),
                            ", which is ", DTypeName(leaf_.dtype), leaf_.shape.ToString())),
                        "send it in the leaf's own shape and dtype");
    }
    if (pass.sink == nullptr) {
      return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                            "nobody collects the gradient of leaf ", leaf_.key.ToString())),
                        "give the pass a sink");
    }
    PSD_ASSIGN_OR_RETURN(Tensor dense, std::move(gradient).Contiguous());
    return pass.sink->Accumulate(leaf_, std::move(dense));
  }

 private:
  const LeafInfo leaf_;
};

absl::Status CheckMayRequireGrad(const Tensor& tensor) {
  if (!tensor.defined())
    return WithRemedy(absl::InvalidArgumentError("a variable was made of an undefined tensor"),
                      "give it elements");
  if (tensor.dtype() == DType::kF32 || tensor.dtype() == DType::kF64) return absl::OkStatus();
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(
          "a leaf ", tensor.ToString(), " cannot require grad: only f32 and f64 have gradients")),
      "cast it first");
}

Edge LeafEdge(const Tensor& tensor, GlobalId key, uint64_t version) {
  return {
      std::allocate_shared<AccumulateGrad>(SmallMemoryAllocator<AccumulateGrad>(),
                                           LeafInfo{key, tensor.shape(), tensor.dtype(), version}),
      0};
}

}  // namespace

Variable::Variable(Tensor tensor, bool requires_grad) {
  if (requires_grad) {
    absl::Status status = CheckMayRequireGrad(tensor);
    *this = status.ok() ? Leaf(std::move(tensor), NextLocalKey(), 0) : Invalid(std::move(status));
    return;
  }
  if (!tensor.defined()) {
    *this =
        Invalid(WithRemedy(absl::InvalidArgumentError("a variable was made of an undefined tensor"),
                           "give it elements"));
    return;
  }
  tensor_ = std::move(tensor);
}

Variable Variable::Leaf(Tensor tensor, GlobalId key, uint64_t version) {
  absl::Status status = CheckMayRequireGrad(tensor);
  if (!status.ok()) return Invalid(std::move(status));
  Edge edge = LeafEdge(tensor, key, version);
  return Variable(std::move(tensor), std::move(edge));
}

Variable Variable::Invalid(absl::Status status) {
  PSD_CHECK(!status.ok(), "an invalid variable needs an error");
  Variable invalid;
  invalid.error_ = std::move(status);
  return invalid;
}

absl::Status Variable::status() const {
  if (ok() || !error_.ok()) return error_;
  return WithRemedy(absl::InvalidArgumentError("an undefined variable was used"),
                    "assign it first");
}

bool Variable::is_leaf() const {
  return edge_.node == nullptr || edge_.node->leaf() != nullptr;
}

GlobalId Variable::key() const {
  const LeafInfo* leaf = requires_grad() ? edge_.node->leaf() : nullptr;
  return leaf == nullptr ? GlobalId{} : leaf->key;
}

absl::Status Variable::AddGradientHook(GradientHook hook) const {
  PSD_RETURN_IF_ERROR(status());
  if (!requires_grad()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a gradient hook on a variable ", tensor().ToString(), " that does not require grad"));
  }
  edge_.node->MutableHooks().Add(edge_.input, std::move(hook));
  return absl::OkStatus();
}

absl::Status Variable::AddAccumulatedHook(AccumulatedHook hook) const {
  PSD_RETURN_IF_ERROR(status());
  if (!requires_grad() || !is_leaf()) {
    return absl::FailedPreconditionError(
        absl::StrCat("an accumulated hook on ", tensor().ToString(),
                     ", which is no leaf that requires grad; nothing is collected for it"));
  }
  edge_.node->MutableHooks().Add(std::move(hook));
  return absl::OkStatus();
}

Variable Variable::Detach() const {
  return ok() ? Variable(tensor_) : *this;
}

NoGradGuard::NoGradGuard() : previous_(std::exchange(thread_modes.grad_enabled, false)) {}
NoGradGuard::~NoGradGuard() {
  thread_modes.grad_enabled = previous_;
}

bool GradEnabled() {
  return thread_modes.grad_enabled;
}

}  // namespace psd
