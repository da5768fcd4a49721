#include "tests/core/dist_autograd/graph_text.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace psd::dist_autograd {
namespace {

class Generator {
 public:
  Generator(uint64_t seed, const GraphOptions& options)
      : random_(seed), all_used_(options.all_used) {
    graph_.dtype = options.dtype;
    graph_.workers = options.workers;
    graph_.extent = 1 + Below(3);
  }

  Graph Make() {
    for (int i = 0; i < graph_.workers; ++i) graph_.weights.push_back(Numbers());
    Input(Line::Kind::kLeaf);
    Input(Line::Kind::kLeaf);
    Input(Line::Kind::kConstant);
    const int lines = 2 + Below(8);
    for (int i = 0; i < lines; ++i) AddLine();
    AddRoots();
    return std::move(graph_);
  }

 private:
  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }

  std::vector<double> Numbers() {
    std::vector<double> numbers;
    for (int i = 0; i < graph_.extent * graph_.extent; ++i) {
      // The number is exact in f32 as well.
      numbers.push_back((Below(2001) - 1000) / 1024.0);
    }
    return numbers;
  }

  std::string Operator() {
    static constexpr const char* kOperators[] = {"mul",  "add",  "sub",  "matmul",
                                                 "tanh", "turn", "first"};
    return kOperators[Below(all_used_ ? 6 : 7)];
  }

  // Chooses a variable. It is mostly a late one, so that the graph gets long paths.
  int Any() {
    const int one = Below(variables_), other = Below(variables_);
    const int chosen = Below(3) == 0 ? one : std::max(one, other);
    unused_.erase(chosen);
    return chosen;
  }

  void Made(bool requires_grad) {
    requires_grad_.push_back(requires_grad);
    if (requires_grad) unused_.insert(variables_);
    ++variables_;
  }

  void Input(Line::Kind kind) {
    Line line;
    line.kind = kind;
    line.numbers = Numbers();
    graph_.lines.push_back(std::move(line));
    Made(kind == Line::Kind::kLeaf);
  }

  void AddLine() {
    const int choice = Below(10);
    if (choice == 0) return Fetch();
    Line line;
    line.kind = choice < 4 ? Line::Kind::kOp : Line::Kind::kCall;
    line.a = Any();
    line.b = Any();
    const bool requires_grad = requires_grad_[line.a] || requires_grad_[line.b];
    if (line.kind == Line::Kind::kOp) {
      line.steps.push_back({0, Operator(), false, false});
      Made(requires_grad);
    } else {
      line.steps = Steps();
      const bool weighted = std::any_of(line.steps.begin(), line.steps.end(),
                                        [](const Step& step) { return step.weight; });
      Made(requires_grad || weighted);
      Made(requires_grad_[line.a]);
    }
    graph_.lines.push_back(std::move(line));
  }

  void Fetch() {
    Line line;
    line.kind = Line::Kind::kFetch;
    line.steps.push_back({Below(graph_.workers), "", false, false});
    graph_.lines.push_back(std::move(line));
    Made(true);
  }

  // A worker may have several steps, and the trainer may have some, so there are calls to oneself
  // and calls back.
  std::vector<Step> Steps() {
    std::vector<Step> steps;
    const int count = 1 + Below(4);
    for (int i = 0; i < count; ++i) {
      const bool unused = !all_used_ && Below(6) == 0;
      steps.push_back({Below(graph_.workers), Operator(), Below(2) == 0, unused});
    }
    return steps;
  }

  void AddRoots() {
    if (all_used_) {
      graph_.roots.assign(unused_.begin(), unused_.end());
      return;
    }
    const int roots = 1 + Below(3);
    for (int i = 0; i < roots; ++i) {
      int root = Any();
      while (!requires_grad_[root]) root = Any();
      graph_.roots.push_back(root);
    }
  }

  std::mt19937_64 random_;
  const bool all_used_;
  Graph graph_;
  int variables_ = 0;
  std::vector<bool> requires_grad_;  // by variable; true if it may require a gradient
  std::set<int> unused_;
};

std::string Text(const std::vector<double>& numbers) {
  std::string text;
  for (double number : numbers) absl::StrAppendFormat(&text, " %.17g", number);
  return text;
}

std::string Text(const Line& line) {
  switch (line.kind) {
    case Line::Kind::kLeaf:
      return absl::StrCat("leaf", Text(line.numbers));
    case Line::Kind::kConstant:
      return absl::StrCat("constant", Text(line.numbers));
    case Line::Kind::kOp:
      return absl::StrCat("op ", line.steps[0].op, " ", line.a, " ", line.b);
    case Line::Kind::kFetch:
      return absl::StrCat("fetch ", line.steps[0].worker);
    case Line::Kind::kCall:
      return absl::StrCat("call ", line.a, " ", line.b, ToText(line.steps));
  }
  return "";
}

}  // namespace

Graph RandomGraph(uint64_t seed, const GraphOptions& options) {
  return Generator(seed, options).Make();
}

std::string ToText(const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) {
    absl::StrAppend(&text, " : ", step.worker, " ", step.op, " ", step.weight ? "w" : "",
                    step.unused ? "u" : "", step.weight || step.unused ? "" : "-");
  }
  return text;
}

std::string ToText(const Graph& graph) {
  std::string text =
      absl::StrCat("graph ", DTypeName(graph.dtype), " ", graph.workers, " ", graph.extent, "\n");
  for (const auto& weight : graph.weights) absl::StrAppend(&text, "weight", Text(weight), "\n");
  for (const Line& line : graph.lines) absl::StrAppend(&text, Text(line), "\n");
  for (int root : graph.roots) absl::StrAppend(&text, "root ", root, "\n");
  return text;
}

}  // namespace psd::dist_autograd
