#include "core/autograd/engine.h"

#include <optional>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/autograd/hooks.h"
#include "core/base/faults.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"

namespace psd {

// Called for every edge, so it is inlined.
inline uint32_t GraphPass::Found(Node* node) {
  const auto [number, added] = numbers_.Insert(node);
  if (added) {
    states_.emplace_back();
    states_.back().node = node;
  }
  return static_cast<uint32_t>(number);
}

GraphPass::GraphPass(std::vector<std::shared_ptr<Node>> starts, PassContext context)
    : context_(context), starts_(std::move(starts)) {
  for (const std::shared_ptr<Node>& start : starts_) {
    NodeState& state = states_[Found(start.get())];
    ++state.feeds;
    ++state.pending;
  }
  uint32_t sums = 0;
  for (size_t number = 0; number < states_.size(); ++number) {  // more states are added meanwhile
    const Node& node = *states_[number].node;
    states_[number].first_target = static_cast<uint32_t>(targets_.size());
    states_[number].first_sum = sums;
    states_[number].inputs = static_cast<uint32_t>(node.NumInputs());
    // A hook sees the gradient on the node's device.
    states_[number].last = node.next().empty() && node.hooks() == nullptr;
    sums += states_[number].inputs;
    for (const Edge& edge : node.next()) {
      targets_.push_back(edge ? Found(edge.node.get()) : 0);
      if (edge) ++states_[targets_.back()].pending;
    }
  }
  sums_.Resize(sums);
  left_ = static_cast<int64_t>(states_.size());
  all_run_ = left_ == 0;
}

absl::Status GraphPass::Feed(const std::shared_ptr<Node>& start, Tensors gradients) {
  {
    MutexLock lock(mutex_);
    PSD_ASSIGN_OR_RETURN(NodeState * state, TakeFeed(start.get(), gradients.size()));
    fed_.push_back({state, std::move(gradients)});
    if (running_) return absl::OkStatus();
    running_ = true;
  }
  return RunFed();
}

absl::StatusOr<GraphPass::NodeState*> GraphPass::TakeFeed(Node* start, size_t gradients) {
  PSD_RETURN_IF_ERROR(status_);
  const std::optional<size_t> found = start == nullptr ? std::nullopt : numbers_.Find(start);
  if (!found.has_value() || states_[*found].feeds == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients for node ", start == nullptr ? "(none)" : start->Name(),
                     ", which is no start of this pass or was fed as often as it was announced"));
  }
  NodeState& state = states_[*found];
  if (gradients != 0 && gradients != state.inputs) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(gradients, " gradients for node ", start->Name(),
                                                ", which takes ", state.inputs)),
        "give one for each, or none at all");
  }
  --state.feeds;
  return &state;
}

absl::Status GraphPass::RunFed() {
  absl::Status run;
  while (true) {
    std::vector<Fed> fed;
    {
      MutexLock lock(mutex_);
      if (status_.ok()) status_ = run;
      ended_.store(!status_.ok(), std::memory_order_relaxed);
      all_run_ = left_ == 0;
      if (!status_.ok() || fed_.empty()) {
        running_ = false;
        return status_;
      }
      fed.swap(fed_);
    }
    run = RunAll(std::move(fed));
  }
}

absl::Status GraphPass::RunAll(std::vector<Fed> fed) {
  for (Fed& each : fed) {
    for (size_t i = 0; i < each.gradients.size(); ++i)
      PSD_RETURN_IF_ERROR(Deposit(*each.start, i, std::move(each.gradients[i])));
    Arrived(*each.start);
  }
  while (!ready_.empty()) {
    if (ended_.load(std::memory_order_relaxed)) return absl::OkStatus();
    NodeState& state = *ready_.back();
    ready_.pop_back();
    PSD_RETURN_IF_ERROR(Run(state));
    --left_;
  }
  return absl::OkStatus();
}

// Arrived, Deposit and PassOn are run for every node, so all of them are inlined into Run.

inline void GraphPass::Arrived(NodeState& state) {
  if (--state.pending == 0 || FaultOn("dependencies_not_counted")) ready_.push_back(&state);
}

inline absl::Status GraphPass::Deposit(NodeState& to, size_t input, Tensor&& gradient) {
  if (!gradient.defined()) return absl::OkStatus();
  to.any = true;
  absl::Status added = sums_.Add(to.first_sum + input, std::move(gradient), to.last);
  if (ABSL_PREDICT_TRUE(added.ok())) return added;
  return Annotate(added, absl::StrCat("gradients of ", to.node->Name()));
}

inline absl::Status GraphPass::PassOn(const NodeState& state, absl::Span<const Edge> next,
                                      absl::Span<Tensor> results) {
  for (size_t i = 0; i < next.size(); ++i) {
    const Edge& edge = next[i];
    if (edge) {
      NodeState& to = states_[targets_[state.first_target + i]];
      PSD_RETURN_IF_ERROR(Deposit(to, static_cast<size_t>(edge.input), std::move(results[i])));
      Arrived(to);
    }
    results[i] = Tensor();
  }
  return absl::OkStatus();
}

absl::Status GraphPass::Run(const NodeState& state) {
  Node& node = *state.node;
  const absl::Span<const Edge> next = node.next();
  if (results_.size() < next.size()) results_.resize(next.size());
  const absl::Span<Tensor> results = absl::MakeSpan(results_).first(next.size());
  if (state.any || node.RunsWithoutGradients()) {
    PSD_ASSIGN_OR_RETURN(const absl::Span<Tensor> gradients,
                         sums_.Take(state.first_sum, state.inputs));
    absl::Status status = ABSL_PREDICT_TRUE(node.hooks() == nullptr)
                              ? node.Apply(context_, gradients, results)
                              : ApplyWithHooks(node, gradients, results);
    for (Tensor& gradient : gradients) gradient = Tensor();
    if (!status.ok()) return Annotate(status, node.Name());
  }
  return PassOn(state, next, results);
}

absl::Status GraphPass::ApplyWithHooks(Node& node, absl::Span<Tensor> gradients,
                                       absl::Span<Tensor> results) const {
  const NodeHooks& hooks = *node.hooks();
  PSD_RETURN_IF_ERROR(hooks.RunBefore(gradients));
  const Tensor first = gradients.empty() ? Tensor() : gradients[0];
  PSD_RETURN_IF_ERROR(node.Apply(context_, gradients, results));
  return hooks.RunAfter(first);
}

void GraphPass::Fail(absl::Status status) {
  MutexLock lock(mutex_);
  if (!status_.ok() || all_run_) return;
  status_ = std::move(status);
  ended_.store(true, std::memory_order_relaxed);
}

void GraphPass::Forget() {
  MutexLock lock(mutex_);
  if (!all_run_) return;
  numbers_.Clear();
  states_ = {};
  targets_ = {};
  sums_.Resize(0);
}

bool GraphPass::Finished() const {
  MutexLock lock(mutex_);
  return status_.ok() && all_run_;
}

absl::Status GraphPass::status() const {
  MutexLock lock(mutex_);
  return status_;
}

namespace {

absl::Status NoRoots() {
  return WithRemedy(absl::InvalidArgumentError("backward was given no roots"),
                    "give at least one loss");
}

absl::Status BadRoot(size_t number, const Variable& output, absl::string_view problem,
                     absl::string_view remedy) {
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat("root ", number, " of backward, ",
                                              output.tensor().ToString(), ", ", problem)),
      remedy);
}

absl::Status CheckDifferentiable(size_t number, const Variable& output) {
  if (!output.ok()) return Annotate(output.status(), absl::StrCat("root ", number, " of backward"));
  if (output.requires_grad()) return absl::OkStatus();
  return BadRoot(number, output, "does not require grad", "compute it from a variable that does");
}

}  // namespace

absl::StatusOr<std::vector<Root>> LossRoots(const std::vector<Variable>& losses) {
  if (losses.empty()) return NoRoots();
  std::vector<Root> roots;
  for (size_t i = 0; i < losses.size(); ++i) {
    const Variable& loss = losses[i];
    PSD_RETURN_IF_ERROR(CheckDifferentiable(i, loss));
    if (loss.is_leaf()) return BadRoot(i, loss, "is a leaf", "give the result of an operation");
    if (loss.tensor().NumElements() != 1) {
      return BadRoot(i, loss, "does not have exactly one element", "sum it or take its mean");
    }
    PSD_ASSIGN_OR_RETURN(
        Tensor one, Tensor::Full(loss.shape(), loss.dtype(), 1, MemoryOf(loss.tensor().device())));
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
      return BadRoot(i, outputs[i], absl::StrCat("was given a gradient ", gradient.ToString()),
                     "give it in the root's own shape and dtype");
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
