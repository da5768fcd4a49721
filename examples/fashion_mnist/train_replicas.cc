// One rank of a training without owners: every rank has the whole model, gradients are averaged
// over the ranks, and the optimizer's state is spread over them (ZeRO). A launcher starts the
// ranks:
//
//   psctl run -n 4 -- bazel-bin/examples/fashion_mnist/train_replicas --epochs=3
//
// At the end rank 0 prints the accuracy on the test images.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/synchronization/mutex.h"
#include "client/collectives/group.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/ddp/replica.h"
#include "client/psd.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "examples/fashion_mnist/dataset.h"
#include "examples/fashion_mnist/model.h"
#include "examples/replicas/rank.h"

ABSL_FLAG(std::string, data, "/usr/share/datasets/fashion-mnist", "Folder of the data set.");
ABSL_FLAG(int, epochs, 10, "Passes over the data.");
ABSL_FLAG(int, batch, 32, "Images per rank and step.");
ABSL_FLAG(double, lr, 5e-4, "Adam's learning rate.");
ABSL_FLAG(uint64_t, seed, 1, "Seed of the initial parameters and of the order of the data.");

namespace psd::examples {
namespace {

// The same elements on all ranks.
absl::StatusOr<std::vector<ReplicaParameter>> InitialModel(uint64_t seed) {
  std::vector<ReplicaParameter> parameters;
  for (const ParameterPlan& plan : PlanModel({"this rank"})) {
    PSD_ASSIGN_OR_RETURN(ReplicaParameter parameter,
                         UniformParameter(plan.name, plan.shape, plan.bound, ++seed));
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

// Takes one step. Returns this rank's loss.
absl::StatusOr<float> TrainStep(const Replica& model, BufferedDataParallel& ddp,
                                ZeroRedundancyOptimizer& zero, const Batch& batch) {
  PSD_ASSIGN_OR_RETURN(Context context, model.worker().NewContext());
  PSD_ASSIGN_OR_RETURN(const std::vector<Variable> parameters, model.Variables(context));
  const Variable loss = CrossEntropy(Forward(batch.images, parameters), batch.labels);
  PSD_RETURN_IF_ERROR(context.Backward({loss}));
  PSD_RETURN_IF_ERROR(ddp.AllReduceGradients(context));
  PSD_RETURN_IF_ERROR(zero.Step(context));
  return loss.tensor().data<float>()[0];
}

// Every rank takes the same number of steps, on images of its own.
absl::Status TrainLoop(const Dataset& dataset, const Group& group, const Replica& model,
                       BufferedDataParallel& ddp, ZeroRedundancyOptimizer& zero) {
  const std::vector<int32_t> mine = PartIndices(dataset.size(), group.rank(), group.size());
  const auto batch_size = static_cast<size_t>(absl::GetFlag(FLAGS_batch));
  const size_t steps = static_cast<size_t>(dataset.size() / group.size()) / batch_size;
  if (steps == 0) return absl::InvalidArgumentError("a rank has fewer images than --batch");
  for (int epoch = 0; epoch < absl::GetFlag(FLAGS_epochs); ++epoch) {
    const std::vector<int32_t> order = Shuffled(mine, absl::GetFlag(FLAGS_seed), epoch);
    double losses = 0;
    for (size_t step = 0; step < steps; ++step) {
      PSD_ASSIGN_OR_RETURN(const Batch batch, dataset.MakeBatch(absl::MakeConstSpan(order).subspan(
                                                  step * batch_size, batch_size)));
      PSD_ASSIGN_OR_RETURN(const float loss, TrainStep(model, ddp, zero, batch));
      losses += loss;
    }
    std::printf("epoch %d: loss %.4f\n", epoch + 1, losses / static_cast<double>(steps));
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Accuracy(const Replica& model, const Dataset& test) {
  constexpr int64_t kBatch = 1000;
  PSD_ASSIGN_OR_RETURN(const std::vector<Tensor> elements, model.Elements());
  const std::vector<Variable> parameters(elements.begin(), elements.end());
  int64_t right = 0;
  for (int64_t first = 0; first < test.size(); first += kBatch) {
    std::vector<int32_t> indices;
    for (int64_t i = first; i < std::min(first + kBatch, test.size()); ++i)
      indices.push_back(static_cast<int32_t>(i));
    PSD_ASSIGN_OR_RETURN(const Batch batch, test.MakeBatch(indices));
    const Variable logits = Forward(batch.images, parameters);
    PSD_RETURN_IF_ERROR(logits.status());
    const auto* scores = logits.tensor().data<float>();
    for (const int32_t index : indices) {
      right += std::max_element(scores, scores + kClasses) - scores == test.label(index);
      scores += kClasses;
    }
  }
  return static_cast<double>(right) / static_cast<double>(test.size());
}

// Trains a replica on every rank; rank 0 says how good it is.
absl::Status TrainRank(Worker& worker, const std::shared_ptr<Group>& group, const Dataset& dataset,
                       const Dataset& test) {
  PSD_ASSIGN_OR_RETURN(std::vector<ReplicaParameter> parameters,
                       InitialModel(absl::GetFlag(FLAGS_seed)));
  PSD_ASSIGN_OR_RETURN(const Replica model, Replica::Create(worker, std::move(parameters)));
  PSD_ASSIGN_OR_RETURN(const auto ddp, BufferedDataParallel::Create(group, model));
  Adam adam;
  adam.lr = absl::GetFlag(FLAGS_lr);
  PSD_ASSIGN_OR_RETURN(const auto zero, ZeroRedundancyOptimizer::Create(group, model, adam));
  std::printf("rank %d of %d: %zu bytes of optimizer state\n", group->rank(), group->size(),
              zero->StateBytes());
  PSD_RETURN_IF_ERROR(TrainLoop(dataset, *group, model, *ddp, *zero));
  if (group->rank() != 0) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(const double accuracy, Accuracy(model, test));
  std::printf("test accuracy: %.4f\n", accuracy);
  return absl::OkStatus();
}

absl::Status Train() {
  if (absl::GetFlag(FLAGS_epochs) < 1 || absl::GetFlag(FLAGS_batch) < 1)
    return absl::InvalidArgumentError("--epochs and --batch start at 1");
  PSD_ASSIGN_OR_RETURN(const Dataset dataset, Dataset::LoadTraining(absl::GetFlag(FLAGS_data)));
  PSD_ASSIGN_OR_RETURN(const Dataset test, Dataset::LoadTest(absl::GetFlag(FLAGS_data)));
  return RunRank([&](Worker& worker, const std::shared_ptr<Group>& group) {
    return TrainRank(worker, group, dataset, test);
  });
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::SetProgramUsageMessage(
      "trains on Fashion-MNIST without owners; psctl run starts the ranks");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = psd::examples::Train();
  if (!status.ok()) std::fprintf(stderr, "train_replicas: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
