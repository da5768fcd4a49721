// autograd_1000: one call that uses 1,000 parameters of the owner, backward, an SGD step. Floor:
// three empty calls and the math.
// program_20: twenty operators on the owner in one call. Floor: a call of the first operator, and
// the other nineteen run here.

#include <utility>

#include "bench/floors.h"
#include "bench/job.h"
#include "bench/stats.h"
#include "bench/wire_floors.h"
#include "bench/workloads/cases.h"

namespace psd::bench {
namespace {

constexpr int kParameters = 1000;
constexpr int64_t kElements = 256;  // of each parameter
constexpr size_t kFloats = size_t{kParameters} * size_t{kElements};
constexpr int kTrainSteps = 20;  // in a block

// Returns 0.5 * sum of p * p over all arguments p. The gradient of each argument is the argument.
absl::StatusOr<Program> HalfSquares(int arguments) {
  ProgramBuilder builder;
  std::vector<ProgramBuilder::Ref> parameters;
  for (int i = 0; i < arguments; ++i) parameters.push_back(builder.Input());
  ProgramBuilder::Ref total =
      builder.Call("sum", {builder.Call("mul", {parameters[0], parameters[0]})});
  for (int i = 1; i < arguments; ++i) {
    const ProgramBuilder::Ref p = parameters[static_cast<size_t>(i)];
    total = builder.Call("add", {total, builder.Call("sum", {builder.Call("mul", {p, p})})});
  }
  return builder.Build({builder.Call("mul_scalar", {total}, {{"value", 0.5}})});
}

class Autograd1000 : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(floor_, EchoFloor::Start(environment));
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    Worker& worker = job_->worker();
    PSD_ASSIGN_OR_RETURN(const std::vector<RRef> parameters,
                         CreateParameters(worker, "graph/p", kParameters, kElements));
    arguments_.assign(parameters.begin(), parameters.end());
    PSD_ASSIGN_OR_RETURN(Program program, HalfSquares(kParameters));
    loss_ = std::make_unique<Function>(std::move(program));
    Sgd sgd;
    sgd.lr = 1e-3;
    PSD_ASSIGN_OR_RETURN(optimizer_,
                         DistributedOptimizer::Create(worker, "graph/optimizer", sgd, parameters));
    for (int i = 0; i < 2; ++i) PSD_RETURN_IF_ERROR(Step());
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(kTrainSteps, [this] { return Step(); });
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                         TimeEach(kTrainSteps, [this] { return FloorStep(); }));
    return Median(seconds);
  }

 private:
  absl::Status Step() {
    PSD_ASSIGN_OR_RETURN(Context context, job_->worker().NewContext());
    CallOptions recorded;
    recorded.context = &context;
    PSD_ASSIGN_OR_RETURN(const Values results,
                         job_->worker().RpcSync(kOwner, *loss_, arguments_, recorded));
    const auto* loss = results[0].As<Variable>();
    if (loss == nullptr) return absl::InternalError("the loss is no tensor");
    PSD_RETURN_IF_ERROR(context.Backward({*loss}));
    return optimizer_->Step(context);
  }

  absl::Status FloorStep() {
    PSD_RETURN_IF_ERROR(floor_->Call());  // forward
    Consume(StepMath(p_.data(), p_.data(), g_.data(), kFloats));
    PSD_RETURN_IF_ERROR(floor_->Call());  // backward
    StreamR2W1(p_.data(), g_.data(), kFloats);
    return floor_->Call();  // step
  }

  std::unique_ptr<Job> job_;
  std::unique_ptr<EchoFloor> floor_;
  std::unique_ptr<DistributedOptimizer> optimizer_;  // ends before its job
  std::unique_ptr<Function> loss_;
  Values arguments_;
  MappedFloats p_{kFloats}, g_{kFloats};
};

constexpr int kOperators = 20;
constexpr int kProgramCalls = 300;  // in a block

// Returns a program of x <- x + b and x <- x * c in turns.
absl::StatusOr<Program> Chain(int operators) {
  ProgramBuilder builder;
  ProgramBuilder::Ref x = builder.Input();
  const ProgramBuilder::Ref b = builder.Input(), c = builder.Input();
  for (int i = 0; i < operators; ++i) {
    x = i % 2 == 0 ? builder.Call("add", {x, b}) : builder.Call("mul", {x, c});
  }
  return builder.Build({x});
}

class Program20 : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment));
    PSD_ASSIGN_OR_RETURN(Program one, Chain(1));
    PSD_ASSIGN_OR_RETURN(Program all, Chain(kOperators));
    one_ = std::make_unique<Function>(std::move(one));
    all_ = std::make_unique<Function>(std::move(all));
    for (float value : {1.0f, 0.5f, 0.9f}) {
      PSD_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Empty({32, 32}, DType::kF32));
      std::fill_n(tensor.mutable_data<float>(), tensor.NumElements(), value);
      inputs_.emplace_back(std::move(tensor));
    }
    arguments_.assign(inputs_.begin(), inputs_.end());
    for (int i = 0; i < 200; ++i) {
      PSD_RETURN_IF_ERROR(Call(*all_));
      PSD_RETURN_IF_ERROR(Call(*one_));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    return TimeEach(kProgramCalls, [this] { return Call(*all_); });
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(const std::vector<double> seconds, TimeEach(kProgramCalls, [this] {
                           PSD_RETURN_IF_ERROR(Call(*one_));
                           return RunTheRestHere();
                         }));
    return Median(seconds);
  }

 private:
  absl::Status Call(const Function& function) {
    return job_->worker().RpcSync(kOwner, function, arguments_).status();
  }

  absl::Status RunTheRestHere() {
    Variable x = inputs_[0];
    for (int i = 1; i < kOperators; ++i) x = i % 2 == 0 ? x + inputs_[1] : x * inputs_[2];
    Consume(x.tensor().data<float>()[0]);
    return x.status();
  }

  std::unique_ptr<Job> job_;
  std::unique_ptr<Function> one_, all_;
  std::vector<Variable> inputs_;
  Values arguments_;
};

}  // namespace

std::vector<Case> GraphCases() {
  Case autograd;
  autograd.name = "autograd_1000";
  autograd.unit = {"ms", 1e3};
  autograd.make = [] { return std::make_unique<Autograd1000>(); };
  Case program = autograd;
  program.name = "program_20";
  program.unit = {"us", 1e6};
  program.latency = true;
  program.make = [] { return std::make_unique<Program20>(); };
  return {autograd, program};
}

}  // namespace psd::bench
