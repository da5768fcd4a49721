#include "examples/model_parallel_mlp/model.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::examples {
namespace {

// Programs are data: they are built once here, sent once to each owner, and run and differentiated
// there.
using Ref = ProgramBuilder::Ref;

absl::StatusOr<Program> HiddenProgram() {
  ProgramBuilder builder;
  const Ref x = builder.Input(), weight = builder.Input(), bias = builder.Input();
  return builder.Build({builder.Call("relu", {builder.Call("linear", {x, weight, bias})})});
}

absl::StatusOr<Program> LogitsProgram() {
  ProgramBuilder builder;
  const Ref x = builder.Input(), weight = builder.Input(), bias = builder.Input();
  return builder.Build({builder.Call("linear", {x, weight, bias})});
}

absl::StatusOr<Program> LossProgram() {
  ProgramBuilder builder;
  const Ref x = builder.Input(), weight = builder.Input(), bias = builder.Input();
  const Ref labels = builder.Input();
  const Ref logits = builder.Call("linear", {x, weight, bias});
  return builder.Build({builder.Call("cross_entropy", {logits, labels})});
}

}  // namespace

ModelParallelMlp::ModelParallelMlp(Worker& worker, Layer first, Layer second, Function hidden,
                                   Function logits, Function loss)
    : worker_(&worker),
      first_(std::move(first)),
      second_(std::move(second)),
      hidden_(std::move(hidden)),
      logits_(std::move(logits)),
      loss_(std::move(loss)) {}

absl::StatusOr<ModelParallelMlp> ModelParallelMlp::Create(Worker& worker,
                                                          const std::string& first_owner,
                                                          const std::string& second_owner,
                                                          const MlpShape& shape, uint64_t seed) {
  PSD_ASSIGN_OR_RETURN(Layer first,
                       CreateLayer(worker, first_owner, "mlp/1", shape.inputs, shape.hidden, seed));
  PSD_ASSIGN_OR_RETURN(Layer second, CreateLayer(worker, second_owner, "mlp/2", shape.hidden,
                                                 shape.classes, seed + 1));
  PSD_ASSIGN_OR_RETURN(Program hidden, HiddenProgram());
  PSD_ASSIGN_OR_RETURN(Program logits, LogitsProgram());
  PSD_ASSIGN_OR_RETURN(Program loss, LossProgram());
  return ModelParallelMlp(worker, std::move(first), std::move(second), std::move(hidden),
                          std::move(logits), std::move(loss));
}

absl::StatusOr<ModelParallelMlp::Layer> ModelParallelMlp::CreateLayer(
    Worker& worker, const std::string& owner, const std::string& name, int64_t inputs,
    int64_t outputs, uint64_t seed) {
  CreateOptions parameter;
  parameter.requires_grad = true;
  const double bound = std::sqrt(6.0 / static_cast<double>(inputs));  // He's bound for ReLU
  Layer layer;
  layer.owner = owner;
  PSD_ASSIGN_OR_RETURN(
      layer.weight, worker.GetOrCreate(owner, absl::StrCat(name, "/weight"),
                                       Uniform({outputs, inputs}, -bound, bound, seed), parameter));
  PSD_ASSIGN_OR_RETURN(layer.bias, worker.GetOrCreate(owner, absl::StrCat(name, "/bias"),
                                                      Zeros({outputs}), parameter));
  return layer;
}

absl::StatusOr<Variable> ModelParallelMlp::Call(const Layer& layer, const Function& function,
                                                const Variable& x, const Values& further,
                                                const CallOptions& options) const {
  Values arguments{x, layer.weight, layer.bias};
  arguments.insert(arguments.end(), further.begin(), further.end());
  PSD_ASSIGN_OR_RETURN(const Values results,
                       worker_->RpcSync(layer.owner, function, arguments, options));
  return ReadValue<Variable>(results[0]);
}

absl::StatusOr<Variable> ModelParallelMlp::Loss(const Tensor& x, const Tensor& labels,
                                                const Context& context) const {
  CallOptions recorded;
  recorded.context = &context;
  PSD_ASSIGN_OR_RETURN(const Variable hidden, Call(first_, hidden_, x, {}, recorded));
  return Call(second_, loss_, hidden, {labels}, recorded);
}

absl::StatusOr<Tensor> ModelParallelMlp::Logits(const Tensor& x) const {
  PSD_ASSIGN_OR_RETURN(const Variable hidden, Call(first_, hidden_, x, {}, {}));
  PSD_ASSIGN_OR_RETURN(const Variable logits, Call(second_, logits_, hidden, {}, {}));
  return logits.tensor();
}

std::vector<RRef> ModelParallelMlp::parameters() const {
  return {first_.weight, first_.bias, second_.weight, second_.bias};
}

absl::StatusOr<double> TrainStep(Worker& worker, const ModelParallelMlp& model,
                                 DistributedOptimizer& optimizer, const Tensor& x,
                                 const Tensor& labels) {
  PSD_ASSIGN_OR_RETURN(Context context, worker.NewContext());
  PSD_ASSIGN_OR_RETURN(const Variable loss, model.Loss(x, labels, context));
  PSD_RETURN_IF_ERROR(context.Backward({loss}));  // each gradient stays with its parameter
  PSD_RETURN_IF_ERROR(optimizer.Step(context));   // on both owners at once
  return loss.tensor().data<float>()[0];
}

}  // namespace psd::examples
