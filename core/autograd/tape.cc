#include "core/autograd/tape.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/gradient_sum.h"
#include "core/base/status.h"

namespace psd {
namespace {

thread_local TapeRecorder* current = nullptr;

constexpr int32_t kNone = -1;

}  // namespace

// The tape is a list of steps, each with one result. The gradients of a result are added up under
// the number of its step. While the tape is recorded, the input of an edge to it is the number of a
// step; afterwards it is the number of a result of Leave.
class TapeRecorder::Tape : public ListNode {
 public:
  explicit Tape(size_t operators) {
    steps_.reserve(operators);
    arguments_.reserve(2 * operators);
  }

  absl::string_view Name() const override { return "Tape"; }
  int NumInputs() const override { return static_cast<int>(results_.size()); }

  bool IsEntry(int32_t step) const { return At(step).function == nullptr; }
  const Edge& EdgeOf(int32_t entry) const { return next_[static_cast<size_t>(At(entry).edge)]; }

  int32_t AddEntry(Edge edge) {
    Step step;
    step.edge = static_cast<int32_t>(next_.size());
    next_.push_back(std::move(edge));
    return Append(std::move(step));
  }

  // Adds an argument for the next AddFunction: the number of a step, or kNone.
  void AddArgument(int32_t argument) { arguments_.push_back(argument); }
  int32_t AddFunction(absl::string_view name, size_t arguments,
                      std::unique_ptr<RecordedFunction> function) {
    Step step;
    step.name = name;
    step.function = std::move(function);
    step.first_argument = arguments_.size() - arguments;
    step.arguments = arguments;
    return Append(std::move(step));
  }

  // Ends the recording. Gradients of result i of the tape go to the step results[i]. Steps on which
  // no result depends are forgotten.
  void Close(std::vector<int32_t> results) {
    results_ = std::move(results);
    for (int32_t result : results_) steps_[static_cast<size_t>(result)].needed = true;
    for (size_t i = steps_.size(); i-- > 0;) {
      if (!steps_[i].needed) {
        Forget(steps_[i]);
        continue;
      }
      for (int32_t argument : ArgumentsOf(steps_[i]))
        if (argument != kNone) steps_[static_cast<size_t>(argument)].needed = true;
    }
  }

  absl::Status Apply(const PassContext& pass, absl::Span<Tensor> gradients,
                     absl::Span<Tensor> results) override {
    GradientSums sums(steps_.size());
    for (size_t i = 0; i < results_.size(); ++i)
      PSD_RETURN_IF_ERROR(sums.Add(static_cast<size_t>(results_[i]), std::move(gradients[i])));
    Tensors of_arguments;
    for (size_t i = steps_.size(); i-- > 0;) {
      if (!sums.Defined(i)) continue;
      const Step& step = steps_[i];
      PSD_ASSIGN_OR_RETURN(Tensor sum, sums.Take(i));
      if (step.function == nullptr) {
        results[static_cast<size_t>(step.edge)] = std::move(sum);
        continue;
      }
      absl::Status passed_on = PassOn(step, pass.retain_graph, sum, of_arguments, sums);
      if (!passed_on.ok()) return Annotate(passed_on, step.name);
    }
    return absl::OkStatus();
  }

 private:
  // An operator that ran. A step without a function is an entry: a variable from outside.
  struct Step {
    std::unique_ptr<RecordedFunction> function;
    absl::string_view name;
    size_t first_argument = 0;  // in arguments_
    size_t arguments = 0;
    int32_t edge = kNone;  // for an entry: the number of its edge in next()
    bool needed = false;   // set by Close: a result depends on it
  };

  const Step& At(int32_t step) const { return steps_[static_cast<size_t>(step)]; }
  absl::Span<const int32_t> ArgumentsOf(const Step& step) const {
    return absl::MakeConstSpan(arguments_).subspan(step.first_argument, step.arguments);
  }
  int32_t Append(Step step) {
    steps_.push_back(std::move(step));
    return static_cast<int32_t>(steps_.size()) - 1;
  }
  void Forget(Step& step) {
    if (step.edge != kNone) next_[static_cast<size_t>(step.edge)] = Edge();
    step.function.reset();
  }

  // Runs the function of `step` with the gradient `g` and adds the results to `sums`. `gradients`
  // is a buffer that is reused from step to step; its tensors are undefined between two steps.
  absl::Status PassOn(const Step& step, bool retain, const Tensor& g, Tensors& gradients,
                      GradientSums& sums) {
    const absl::Span<const int32_t> arguments = ArgumentsOf(step);
    Wanted wanted;
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i] != kNone) wanted.Add(i);
    if (gradients.size() < arguments.size()) gradients.resize(arguments.size());
    const auto results = absl::MakeSpan(gradients).first(arguments.size());
    PSD_RETURN_IF_ERROR(step.function->Gradients({step.name, retain}, g, wanted, results));
    for (size_t i = 0; i < arguments.size(); ++i) {
      Tensor gradient = std::move(results[i]);
      if (arguments[i] == kNone) continue;
      PSD_RETURN_IF_ERROR(sums.Add(static_cast<size_t>(arguments[i]), std::move(gradient)));
    }
    return absl::OkStatus();
  }

  std::vector<Step> steps_;
  std::vector<int32_t> arguments_;  // numbers of steps, or kNone where no gradient is needed
  std::vector<int32_t> results_;    // numbers of steps
};

TapeRecorder::TapeRecorder(size_t operators)
    : tape_(std::make_shared<Tape>(operators)), previous_(current) {
  current = this;
}

TapeRecorder::~TapeRecorder() {
  if (current == this) current = previous_;
}

TapeRecorder* TapeRecorder::Current() {
  return current;
}

Variable TapeRecorder::Enter(const Variable& outside) {
  if (!outside.requires_grad()) return outside;
  return Variable::OfNode(outside.tensor(), tape_, tape_->AddEntry(outside.gradient_edge()));
}

Variable TapeRecorder::Record(absl::string_view name, absl::Span<const Variable* const> inputs,
                              Tensor result, std::unique_ptr<RecordedFunction> function) {
  for (const Variable* input : inputs) {
    const Edge& edge = input->gradient_edge();
    if (!edge) {
      tape_->AddArgument(kNone);
    } else if (edge.node == tape_) {
      tape_->AddArgument(edge.input);
    } else {  // a variable from outside that was not passed to Enter
      tape_->AddArgument(Enter(*input).gradient_edge().input);
    }
  }
  const int32_t step = tape_->AddFunction(name, inputs.size(), std::move(function));
  return Variable::OfNode(std::move(result), tape_, step);
}

std::vector<Variable> TapeRecorder::Leave(const std::vector<Variable>& results) {
  std::vector<Variable> outside;
  outside.reserve(results.size());
  std::vector<int32_t> steps;
  for (const Variable& result : results) {
    const Edge& edge = result.gradient_edge();
    if (edge.node != tape_) {
      outside.push_back(result);
    } else if (tape_->IsEntry(edge.input)) {
      const Edge& entered = tape_->EdgeOf(edge.input);
      outside.push_back(Variable::OfNode(result.tensor(), entered.node, entered.input));
    } else {
      const int number = static_cast<int>(steps.size());
      outside.push_back(Variable::OfNode(result.tensor(), tape_, number));
      steps.push_back(edge.input);
    }
  }
  tape_->Close(std::move(steps));
  tape_.reset();
  current = previous_;
  return outside;
}

}  // namespace psd
