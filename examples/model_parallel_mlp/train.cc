// Model parallelism: trains a perceptron whose first layer lives on one owner and whose second
// layer lives on another. Each forward pass calls both owners, the backward pass goes back through
// them, and the optimizer steps each layer on its owner.
//
//   bazel build -c opt //server/daemon:psd //examples/model_parallel_mlp:train
//   bazel-bin/server/daemon/psd --name=owner0 --listen=127.0.0.1:7071 &
//   R=owner0=127.0.0.1:7071
//   bazel-bin/server/daemon/psd --name=owner1 --listen=127.0.0.1:7072 --registrar=$R &
//   bazel-bin/examples/model_parallel_mlp/train

#include <cstdio>
#include <memory>

#include "client/psd.h"
#include "examples/model_parallel_mlp/model.h"
#include "examples/model_parallel_mlp/spirals.h"

namespace psd::examples {
namespace {

constexpr int kSteps = 400;

absl::Status Train() {
  WorkerOptions options;
  options.name = "trainer0";
  options.owners = {{"owner0", "127.0.0.1:7071"}, {"owner1", "127.0.0.1:7072"}};
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Start(options));

  const MlpShape shape = {2, 64, kSpiralArms};
  PSD_ASSIGN_OR_RETURN(const ModelParallelMlp model,
                       ModelParallelMlp::Create(*worker, "owner0", "owner1", shape, /*seed=*/1));
  Adam adam;
  adam.lr = 0.02;
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<DistributedOptimizer> optimizer,
                       DistributedOptimizer::Create(*worker, "mlp", adam, model.parameters()));

  PSD_ASSIGN_OR_RETURN(const LabelledPoints points,
                       MakeSpirals(/*points_per_arm=*/100, /*seed=*/1));
  for (int step = 0; step <= kSteps; ++step) {
    PSD_ASSIGN_OR_RETURN(const double loss,
                         TrainStep(*worker, model, *optimizer, points.x, points.labels));
    if (step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, loss);
  }
  PSD_ASSIGN_OR_RETURN(const Tensor logits, model.Logits(points.x));
  std::printf("accuracy %.3f\n", Accuracy(logits, points.labels));
  return worker->Shutdown();
}

}  // namespace
}  // namespace psd::examples

int main() {
  const absl::Status status = psd::examples::Train();
  if (!status.ok()) std::fprintf(stderr, "train: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
