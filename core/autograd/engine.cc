#include "core/autograd/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"

namespace psd {

GraphPass::GraphPass(std::vector<std::shared_ptr<Node>> starts, PassContext context)
    : context_(context), starts_(std::move(starts)) {
  MutexLock lock(mutex_);
  std::vector<Node*> open;
  auto found = [&](Node* node) PSD_REQUIRES(mutex_) -> NodeState& {
    auto [at, added] = states_.try_emplace(node);
    if (added) {
      at->second.sums.resize(static_cast<size_t>(node->NumInputs()));
      open.push_back(node);
    }
    return at->second;
  };
  for (const std::shared_ptr<Node>& start : starts_) {
    NodeState& state = found(start.get());
    ++state.feeds;
    ++state.pending;
  }
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    for (const Edge& edge : node->next())
      if (edge) ++found(edge.node.get()).pending;
  }
  outstanding_ = static_cast<int64_t>(states_.size());
}

absl::Status GraphPass::Feed(const std::shared_ptr<Node>& start, std::vector<Tensor> gradients) {
  PSD_RETURN_IF_ERROR(TakeFeed(start.get(), gradients.size()));
  std::vector<Node*> ready;
  absl::Status status;
  for (size_t input = 0; input < gradients.size() && status.ok(); ++input)
    status = Deposit(start.get(), static_cast<int>(input), std::move(gradients[input]));
  if (status.ok()) {
    Arrived(start.get(), ready);
    status = RunReady(ready);
  }
  if (!status.ok()) Fail(status);
  return this->status();
}

absl::Status GraphPass::TakeFeed(Node* start, size_t gradients) {
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(status_);
  auto found = states_.find(start);
  if (found == states_.end() || found->second.feeds == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients for node ", start == nullptr ? "(none)" : start->Name(),
                     ", which is no start of this pass or was fed as often as it was announced"));
  }
  if (gradients != 0 && gradients != found->second.sums.size()) {
    return absl::InvalidArgumentError(absl::StrCat(gradients, " gradients for node ", start->Name(),
                                                   ", which takes ", found->second.sums.size(),
                                                   "; give one for each, or none at all"));
  }
  --found->second.feeds;
  return absl::OkStatus();
}

// The sum so far leaves the table while it is added to, so that no kernel runs under the lock;
// whoever comes meanwhile starts a sum of its own, and the two meet here.
absl::Status GraphPass::Deposit(Node* node, int input, Tensor gradient) {
  if (!gradient.defined()) return absl::OkStatus();
  PartialSum mine{std::move(gradient), false};
  while (true) {
    PartialSum other;
    {
      MutexLock lock(mutex_);
      NodeState& state = states_.find(node)->second;
      PartialSum& slot = state.sums[static_cast<size_t>(input)];
      if (!slot.sum.defined()) {
        slot = std::move(mine);
        state.any = true;
        return absl::OkStatus();
      }
      other = std::move(slot);
      slot = PartialSum();
    }
    if (!mine.own) std::swap(mine, other);
    if (mine.own) {
      absl::Status status = ops::AddInPlace(mine.sum, other.sum);
      if (!status.ok()) return Annotate(status, absl::StrCat("gradients of ", node->Name()));
      continue;
    }
    absl::StatusOr<Tensor> sum = SumOf(mine.sum, other.sum);
    if (!sum.ok()) return Annotate(sum.status(), absl::StrCat("gradients of ", node->Name()));
    mine = {*std::move(sum), true};
  }
}

absl::StatusOr<Tensor> GraphPass::SumOf(const Tensor& a, const Tensor& b) {
  if (a.shape() == b.shape()) return ops::Add(a, b);
  return absl::InvalidArgumentError(absl::StrCat("gradients ", a.ToString(), " and ", b.ToString(),
                                                 " for one argument differ in shape"));
}

void GraphPass::Arrived(Node* node, std::vector<Node*>& ready) {
  MutexLock lock(mutex_);
  if (--states_.find(node)->second.pending == 0) ready.push_back(node);
}

absl::Status GraphPass::RunReady(std::vector<Node*>& ready) {
  while (!ready.empty()) {
    Node* node = ready.back();
    ready.pop_back();
    std::vector<Tensor> gradients;
    PSD_ASSIGN_OR_RETURN(bool any, TakeGradients(node, gradients));
    std::vector<Tensor> results;
    if (any || node->RunsWithoutGradients()) {
      PassContext pass = context_;
      absl::StatusOr<std::vector<Tensor>> applied = node->Apply(pass, std::move(gradients));
      if (!applied.ok()) return Annotate(applied.status(), node->Name());
      results = *std::move(applied);
    }
    PSD_RETURN_IF_ERROR(PassOn(node, std::move(results), ready));
    MutexLock lock(mutex_);
    --outstanding_;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> GraphPass::TakeGradients(Node* node, std::vector<Tensor>& gradients) {
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(status_);
  NodeState& state = states_.find(node)->second;
  for (PartialSum& slot : state.sums) gradients.push_back(std::move(slot.sum));
  state.sums.clear();
  return state.any;
}

absl::Status GraphPass::PassOn(Node* node, std::vector<Tensor> results, std::vector<Node*>& ready) {
  const std::vector<Edge>& next = node->next();
  if (!results.empty() && results.size() != next.size()) {
    return absl::InternalError(absl::StrCat("node ", node->Name(), " gave ", results.size(),
                                            " gradients for ", next.size(), " arguments"));
  }
  for (size_t i = 0; i < next.size(); ++i) {
    if (!next[i]) continue;
    if (!results.empty())
      PSD_RETURN_IF_ERROR(Deposit(next[i].node.get(), next[i].input, std::move(results[i])));
    Arrived(next[i].node.get(), ready);
  }
  return absl::OkStatus();
}

void GraphPass::Fail(absl::Status status) {
  MutexLock lock(mutex_);
  if (status_.ok() && outstanding_ > 0) status_ = std::move(status);
}

bool GraphPass::Finished() const {
  MutexLock lock(mutex_);
  return status_.ok() && outstanding_ == 0;
}

absl::Status GraphPass::status() const {
  MutexLock lock(mutex_);
  return status_;
}

absl::Status CheckRoots(const std::vector<Variable>& roots) {
  if (roots.empty())
    return absl::InvalidArgumentError("backward was given no roots; give at least one loss");
  for (size_t i = 0; i < roots.size(); ++i) {
    const Variable& root = roots[i];
    if (!root.ok()) return Annotate(root.status(), absl::StrCat("root ", i, " of backward"));
    const char* problem = nullptr;
    if (!root.requires_grad()) {
      problem = "does not require grad; compute it from a variable that does";
    } else if (root.is_leaf()) {
      problem = "is a leaf; give the result of an operation";
    } else if (root.tensor().NumElements() != 1) {
      problem = "does not have exactly one element; sum it or take its mean";
    }
    if (problem != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("root ", i, " of backward, ", root.tensor().ToString(), ", ", problem));
    }
  }
  return absl::OkStatus();
}

absl::Status Backward(const std::vector<Variable>& roots, GradientSink& sink, bool retain_graph) {
  PSD_RETURN_IF_ERROR(CheckRoots(roots));
  std::vector<std::shared_ptr<Node>> starts;
  for (const Variable& root : roots) starts.push_back(root.gradient_edge().node);
  GraphPass pass(starts, PassContext{&sink, retain_graph});
  for (size_t i = 0; i < roots.size(); ++i) {
    std::vector<Tensor> gradients(static_cast<size_t>(starts[i]->NumInputs()));
    PSD_ASSIGN_OR_RETURN(Tensor one, Tensor::Full(roots[i].shape(), roots[i].dtype(), 1));
    gradients[static_cast<size_t>(roots[i].gradient_edge().input)] = std::move(one);
    PSD_RETURN_IF_ERROR(pass.Feed(starts[i], std::move(gradients)));
  }
  return absl::OkStatus();
}

}  // namespace psd
