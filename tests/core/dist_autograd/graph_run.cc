#include "tests/core/dist_autograd/graph_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/autograd/functions/functions.h"
#include "core/base/status.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/tensor.h"
#include "tests/core/dist_autograd/test_worker.h"
#include "tests/core/fake_rpc.h"

namespace psd::dist_autograd {
namespace {

constexpr uint64_t kWeightKey = 1'000'000;

Tensor Matrix(const Graph& graph, const std::vector<double>& numbers) {
  auto tensor = Tensor::Zeros({graph.extent, graph.extent}, DType::kF64);
  std::copy(numbers.begin(), numbers.end(), tensor->mutable_data<double>());
  return *ops::Cast(*tensor, graph.dtype);
}

std::vector<double> ToNumbers(const Tensor& tensor) {
  Tensor dense = *ops::Cast(*tensor.Contiguous(), DType::kF64);
  return {dense.data<double>(), dense.data<double>() + dense.NumElements()};
}

Variable RunOperator(const Graph& graph, const std::string& op, const Variable& a,
                     const Variable& b) {
  if (op == "mul") return Mul(a, b);
  if (op == "add") return Div(Add(a, b), 2);
  if (op == "sub") return Div(Sub(a, b), 2);
  if (op == "matmul") return Div(Matmul(a, b), graph.extent);
  if (op == "tanh") return Tanh(Add(a, b));
  if (op == "turn") return Div(Add(Transpose(a, 0, 1), b), 2);
  if (op == "first") return a;
  return Variable::Invalid(absl::InvalidArgumentError(absl::StrCat("no operator ", op)));
}

// Calls the worker of the first step, which runs all of the steps.
using Caller = std::function<Variables(const std::vector<Step>&, const Variable&, const Variable&)>;

// Runs the first step on its worker. `call` runs the other steps.
Variables Visit(const Graph& graph, const std::vector<Step>& steps, const Variable& weight,
                const Variable& a, const Variable& b, const Caller& call) {
  const Step& step = steps[0];
  Variable r = RunOperator(graph, step.op, a, b);
  if (step.weight) r = Mul(r, weight);
  if (steps.size() > 1) {
    Variables inner = call({steps.begin() + 1, steps.end()}, r, a);
    if (!step.unused) r = Div(Add(Div(Add(inner[0], r), 2), inner[1]), 2);
  }
  return {r, Div(a, 2)};
}

// The result of the forward on the trainer.
struct Forward {
  Variables variables;
  Variables roots;
  std::map<std::string, GlobalId> leaves;
};

Forward RunForward(const Graph& graph, const Caller& call,
                   const std::function<Variable(int worker)>& fetch) {
  Forward forward;
  Variables& v = forward.variables;
  for (const Line& line : graph.lines) {
    switch (line.kind) {
      case Line::Kind::kLeaf:
        v.push_back(Variable(Matrix(graph, line.numbers), true));
        forward.leaves[absl::StrCat("leaf ", v.size() - 1)] = v.back().key();
        break;
      case Line::Kind::kConstant:
        v.push_back(Variable(Matrix(graph, line.numbers)));
        break;
      case Line::Kind::kOp:
        v.push_back(RunOperator(graph, line.steps[0].op, v[line.a], v[line.b]));
        break;
      case Line::Kind::kFetch:
        v.push_back(fetch(line.steps[0].worker));
        break;
      case Line::Kind::kCall: {
        Variables results = call(line.steps, v[line.a], v[line.b]);
        v.push_back(results[0]);
        v.push_back(results[1]);
        break;
      }
    }
  }
  for (int root : graph.roots) {
    Variable loss = Sum(v[root]);
    if (!loss.ok() || loss.requires_grad()) forward.roots.push_back(std::move(loss));
  }
  return forward;
}

// Adds the gradients of each leaf up, because a weight is a leaf many times.
class Sums : public GradientSink {
 public:
  absl::Status Accumulate(const LeafInfo& leaf, Tensor gradient) override {
    return sums.Accumulate(leaf, std::move(gradient));
  }
  IdSource ids{1};
  ContextState sums{{1, 1}, ids};
};

void Note(const ContextState& context, GlobalId key, const std::string& name,
          GradientTable& table) {
  auto gradient = context.Gradient(key);
  if (gradient.ok()) table[name] = ToNumbers(gradient->gradient);
}

// The workers of a graph, each with the functions that the graph calls. Worker 0 is the trainer.
class World {
 public:
  World(const Graph& graph, const RunOptions& options) : graph_(graph), network_(options.seed) {
    network_.SetLoss(options.loss);
    for (int i = 0; i < graph.workers; ++i) {
      workers_.push_back(std::make_unique<TestWorker>(network_, NameOf(i), IncarnationOf(i)));
      AddFetch(i);
    }
    for (const Line& line : graph.lines) {
      if (line.kind == Line::Kind::kCall) AddVisits(line.steps);
    }
  }

  absl::StatusOr<GradientTable> Run(const RunOptions& options) {
    TestWorker& trainer = *workers_[0];
    ContextPtr context = trainer.autograd->NewContext();
    Forward forward = RunForward(graph_, CallerOf(trainer, context), [&](int worker) {
      return trainer.Call(context, NameOf(worker), "fetch", {})[0];
    });
    if (forward.roots.empty()) return GradientTable();
    BackwardOptions backward;
    backward.mode = options.mode;
    for (int pass = 1; pass <= options.passes; ++pass) {
      backward.retain_graph = pass < options.passes;
      PSD_RETURN_IF_ERROR(trainer.Backward(context, forward.roots, backward));
    }
    GradientTable table = Gradients(context, forward);
    trainer.autograd->Release(context->id());
    network_.RunAll();
    PSD_RETURN_IF_ERROR(CheckAtRest());
    return table;
  }

 private:
  static std::string NameOf(int worker) { return absl::StrCat("worker", worker); }
  static Incarnation IncarnationOf(int worker) { return static_cast<Incarnation>(worker) + 1; }
  static GlobalId KeyOf(int worker) { return {IncarnationOf(worker), kWeightKey}; }

  Variable WeightOf(int worker) {
    return Variable::Leaf(Matrix(graph_, graph_.weights[worker]), KeyOf(worker), 1);
  }

  static Caller CallerOf(TestWorker& self, const ContextPtr& context) {
    return [&self, context](const std::vector<Step>& steps, const Variable& a, const Variable& b) {
      return self.Call(context, NameOf(steps[0].worker), ToText(steps), {a, b});
    };
  }

  void AddFetch(int worker) {
    workers_[worker]->functions["fetch"] = [this, worker](TestWorker&, const ContextPtr&,
                                                          const Variables&) {
      return Variables{WeightOf(worker)};
    };
  }

  void AddVisits(std::vector<Step> steps) {
    for (; !steps.empty(); steps.erase(steps.begin())) {
      workers_[steps[0].worker]->functions[ToText(steps)] = [this, steps](TestWorker& self,
                                                                          const ContextPtr& context,
                                                                          const Variables& v) {
        return Visit(graph_, steps, WeightOf(steps[0].worker), v[0], v[1], CallerOf(self, context));
      };
    }
  }

  GradientTable Gradients(const ContextPtr& context, const Forward& forward) {
    GradientTable table;
    for (const auto& [name, key] : forward.leaves) Note(*context, key, name, table);
    for (int i = 0; i < graph_.workers; ++i) {
      auto part = workers_[i]->autograd->Find(context->id());
      if (part.ok()) Note(**part, KeyOf(i), absl::StrCat("weight ", i), table);
    }
    return table;
  }

  absl::Status CheckAtRest() const {
    for (const auto& worker : workers_) {
      const DistAutograd::Stats stats = worker->autograd->stats();
      if (stats.contexts + stats.running_passes == 0) continue;
      return absl::InternalError(absl::StrCat(worker->name(), " has ", stats.contexts,
                                              " contexts and ", stats.running_passes,
                                              " passes left"));
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  testing::FakeNetwork network_;
  std::vector<std::unique_ptr<TestWorker>> workers_;
};

}  // namespace

absl::StatusOr<GradientTable> RunLocally(const Graph& graph) {
  const auto weight = [&](int worker) {
    return Variable::Leaf(Matrix(graph, graph.weights[worker]),
                          {static_cast<Incarnation>(worker) + 1, kWeightKey}, 1);
  };
  Caller call = [&](const std::vector<Step>& steps, const Variable& a, const Variable& b) {
    return Visit(graph, steps, weight(steps[0].worker), a, b, call);
  };
  Forward forward = RunForward(graph, call, weight);
  GradientTable table;
  if (forward.roots.empty()) return table;
  Sums sink;
  PSD_RETURN_IF_ERROR(Backward(forward.roots, sink));
  for (const auto& [name, key] : forward.leaves) Note(sink.sums, key, name, table);
  for (int i = 0; i < graph.workers; ++i) {
    Note(sink.sums, weight(i).key(), absl::StrCat("weight ", i), table);
  }
  return table;
}

absl::StatusOr<GradientTable> RunDistributed(const Graph& graph, const RunOptions& options) {
  return World(graph, options).Run(options);
}

std::string Difference(const GradientTable& is, const GradientTable& expected, double tolerance) {
  for (const auto& [name, numbers] : is) {
    if (!expected.count(name)) return absl::StrCat(name, " has a gradient, and should have none");
  }
  for (const auto& [name, numbers] : expected) {
    auto found = is.find(name);
    if (found == is.end()) return absl::StrCat(name, " has no gradient");
    if (found->second.size() != numbers.size()) return absl::StrCat(name, ": sizes differ");
    double largest = 1;
    for (double number : numbers) largest = std::max(largest, std::abs(number));
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (std::abs(found->second[i] - numbers[i]) <= tolerance * largest) continue;
      return absl::StrCat(name, "[", i, "] is ", found->second[i], ", should be ", numbers[i]);
    }
  }
  return "";
}

}  // namespace psd::dist_autograd
