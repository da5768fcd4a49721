#include "core/autograd/engine.h"

#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/autograd/hooks.h"
#include "core/base/faults.h"
#include "core/base/status.h"

namespace psd {

GraphPass::GraphPass(std::vector<std::shared_ptr<Node>> starts, PassContext context)
    : context_(context), starts_(std::move(starts)) {
  std::vector<size_t> open;
  for (const std::shared_ptr<Node>& start : starts_) {
    NodeState& state = states_[Found(start.get(), open)];
    ++state.feeds;
    ++state.pending;
  }
  while (!open.empty()) {
    const size_t number = open.back();
    open.pop_back();
    states_[number].first_target = targets_.size();
    for (const Edge& edge : states_[number].node->next()) {
      targets_.push_back(edge ? Found(edge.node.get(), open) : 0);
      if (edge) ++states_[targets_.back()].pending;
    }
  }
  size_t sums = 0;
  for (NodeState& state : states_) {
    state.first_sum = sums;
    state.inputs = state.node->NumInputs();
    sums += static_cast<size_t>(state.inputs);
  }
  sums_.resize(sums);
  outstanding_ = static_cast<int64_t>(states_.size());
}

size_t GraphPass::Found(Node* node, std::vector<size_t>& open) {
  const auto [number, added] = numbers_.Insert(node);
  if (added) {
    open.push_back(number);
    states_.emplace_back();
    states_.back().node = node;
  }
  return number;
}

absl::Status GraphPass::Feed(const std::shared_ptr<Node>& start, Tensors gradients) {
  PSD_ASSIGN_OR_RETURN(auto* state, TakeFeed(start.get(), gradients.size()));
  absl::InlinedVector<size_t, 2> to_add;
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < gradients.size(); ++i)
      if (!TryDeposit(*state, static_cast<int>(i), gradients[i])) to_add.push_back(i);
  }
  absl::Status status;
  for (size_t i : to_add) {
    if (status.ok()) status = Add(*state, static_cast<int>(i), std::move(gradients[i]));
  }
  std::vector<NodeState*> ready;
  if (status.ok()) {
    {
      MutexLock lock(mutex_);
      Arrived(*state, ready);
    }
    status = RunReady(ready);
  }
  if (!status.ok()) Fail(status);
  return this->status();
}

absl::StatusOr<GraphPass::NodeState*> GraphPass::TakeFeed(Node* start, size_t gradients) {
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(status_);
  const std::optional<size_t> found = start == nullptr ? std::nullopt : numbers_.Find(start);
  if (!found.has_value() || states_[*found].feeds == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients for node ", start == nullptr ? "(none)" : start->Name(),
                     ", which is no start of this pass or was fed as often as it was announced"));
  }
  NodeState& state = states_[*found];
  if (gradients != 0 && gradients != static_cast<size_t>(state.inputs)) {
    return absl::InvalidArgumentError(absl::StrCat(gradients, " gradients for node ", start->Name(),
                                                   ", which takes ", state.inputs,
                                                   "; give one for each, or none at all"));
  }
  --state.feeds;
  return &state;
}

bool GraphPass::TryDeposit(NodeState& to, int input, Tensor& gradient) {
  if (!gradient.defined()) return true;
  GradientSum& slot = SumAt(to, input);
  if (slot.defined()) return false;
  slot = GradientSum(std::move(gradient));
  to.any = true;
  return true;
}

// The sum so far leaves the table while it is added to, so that no kernel runs under the lock;
// whoever comes meanwhile starts a sum of its own, and the two meet here.
absl::Status GraphPass::Add(NodeState& to, int input, Tensor gradient) {
  GradientSum mine(std::move(gradient));
  while (true) {
    GradientSum other;
    {
      MutexLock lock(mutex_);
      GradientSum& slot = SumAt(to, input);
      if (!slot.defined()) {
        slot = std::move(mine);
        return absl::OkStatus();
      }
      other = std::exchange(slot, GradientSum());
    }
    absl::Status added = mine.Add(std::move(other));
    if (!added.ok()) return Annotate(added, absl::StrCat("gradients of ", to.node->Name()));
  }
}

void GraphPass::Arrived(NodeState& state, std::vector<NodeState*>& ready) {
  if (--state.pending == 0 || FaultOn("dependencies_not_counted")) ready.push_back(&state);
}

absl::StatusOr<Tensors> GraphPass::Run(Node& node, Tensors& gradients) const {
  PassContext pass = context_;
  const NodeHooks* hooks = node.hooks();
  if (hooks == nullptr) return node.Apply(pass, gradients);
  PSD_RETURN_IF_ERROR(hooks->RunBefore(gradients));
  PSD_ASSIGN_OR_RETURN(Tensors results, node.Apply(pass, gradients));
  PSD_RETURN_IF_ERROR(hooks->RunAfter(gradients));
  return results;
}

absl::Status GraphPass::RunReady(std::vector<NodeState*>& ready) {
  while (!ready.empty()) {
    NodeState& state = *ready.back();
    ready.pop_back();
    Tensors gradients;
    PSD_ASSIGN_OR_RETURN(bool any, TakeGradients(state, gradients));
    const bool runs = any || state.node->RunsWithoutGradients();
    absl::StatusOr<Tensors> results = runs ? Run(*state.node, gradients) : Tensors();
    if (!results.ok()) return Annotate(results.status(), state.node->Name());
    PSD_RETURN_IF_ERROR(PassOn(state, *results, ready));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> GraphPass::TakeGradients(NodeState& state, Tensors& gradients) {
  gradients.reserve(static_cast<size_t>(state.inputs));
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(status_);
  for (int input = 0; input < state.inputs; ++input)
    gradients.push_back(SumAt(state, input).Take());
  return state.any;
}

absl::Status GraphPass::PassOn(const NodeState& state, Tensors& results,
                               std::vector<NodeState*>& ready) {
  const Edges& next = state.node->next();
  if (!results.empty() && results.size() != next.size()) {
    return absl::InternalError(absl::StrCat("node ", state.node->Name(), " gave ", results.size(),
                                            " gradients for ", next.size(), " arguments"));
  }
  results.resize(next.size());
  const auto target = [&](size_t i) -> NodeState& {
    return states_[targets_[state.first_target + i]];
  };
  absl::InlinedVector<size_t, 2> to_add;
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < next.size(); ++i) {
      if (!next[i]) continue;
      if (TryDeposit(target(i), next[i].input, results[i])) {
        Arrived(target(i), ready);
      } else {
        to_add.push_back(i);
      }
    }
    if (to_add.empty()) --outstanding_;
  }
  if (to_add.empty()) return absl::OkStatus();
  for (size_t i : to_add) PSD_RETURN_IF_ERROR(Add(target(i), next[i].input, std::move(results[i])));
  MutexLock lock(mutex_);
  for (size_t i : to_add) Arrived(target(i), ready);
  --outstanding_;
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

namespace {

absl::Status NoRoots() {
  return absl::InvalidArgumentError("backward was given no roots; give at least one loss");
}

absl::Status BadRoot(size_t number, const Variable& output, absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("root ", number, " of backward, ", output.tensor().ToString(), ", ", problem));
}

absl::Status CheckDifferentiable(size_t number, const Variable& output) {
  if (!output.ok()) return Annotate(output.status(), absl::StrCat("root ", number, " of backward"));
  if (output.requires_grad()) return absl::OkStatus();
  return BadRoot(number, output, "does not require grad; compute it from a variable that does");
}

}  // namespace

absl::StatusOr<std::vector<Root>> LossRoots(const std::vector<Variable>& losses) {
  if (losses.empty()) return NoRoots();
  std::vector<Root> roots;
  for (size_t i = 0; i < losses.size(); ++i) {
    const Variable& loss = losses[i];
    PSD_RETURN_IF_ERROR(CheckDifferentiable(i, loss));
    if (loss.is_leaf()) return BadRoot(i, loss, "is a leaf; give the result of an operation");
    if (loss.tensor().NumElements() != 1) {
      return BadRoot(i, loss, "does not have exactly one element; sum it or take its mean");
    }
    PSD_ASSIGN_OR_RETURN(Tensor one, Tensor::Full(loss.shape(), loss.dtype(), 1));
    roots.push_back({loss, std::move(one)});
  }
  return roots;
}

absl::StatusOr<std::vector<Root>> GivenRoots(const std::vector<Variable>& outputs,
                                             const std::vector<Tensor>& gradients) {
  if (outputs.empty()) return NoRoots();
  if (outputs.size() != gradients.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(gradients.size(), " gradients for ", outputs.size(), " roots of backward"));
  }
  std::vector<Root> roots;
  for (size_t i = 0; i < outputs.size(); ++i) {
    PSD_RETURN_IF_ERROR(CheckDifferentiable(i, outputs[i]));
    const Tensor& gradient = gradients[i];
    if (!gradient.defined() || gradient.shape() != outputs[i].shape() ||
        gradient.dtype() != outputs[i].dtype()) {
      return BadRoot(i, outputs[i],
                     absl::StrCat("was given a gradient ", gradient.ToString(),
                                  "; give it in the root's own shape and dtype"));
    }
    roots.push_back({outputs[i], gradient});
  }
  return roots;
}

Tensors SeedOf(const Root& root) {
  const Edge edge = root.output.gradient_edge();
  Tensors gradients(static_cast<size_t>(edge.node->NumInputs()));
  gradients[static_cast<size_t>(edge.input)] = root.gradient;
  return gradients;
}

absl::Status Backward(const std::vector<Variable>& losses, GradientSink& sink, bool retain_graph) {
  PSD_ASSIGN_OR_RETURN(std::vector<Root> roots, LossRoots(losses));
  std::vector<std::shared_ptr<Node>> starts;
  for (const Root& root : roots) starts.push_back(root.output.gradient_edge().node);
  GraphPass pass(starts, PassContext{&sink, retain_graph});
  for (size_t i = 0; i < roots.size(); ++i) {
    PSD_RETURN_IF_ERROR(pass.Feed(starts[i], SeedOf(roots[i])));
  }
  return absl::OkStatus();
}

}  // namespace psd
