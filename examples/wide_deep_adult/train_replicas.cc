// One rank of a training with replicas and owners: every rank has the layers of the model, whose
// gradients are averaged over the ranks and whose optimizer state is spread over them. The
// embeddings live on the owners, which apply the rows' gradients of all ranks as one step. Owners
// must run; a launcher starts the ranks:
//
//   psd --name owner0 --listen 127.0.0.1:7071
//   psctl run -n 4 --owner owner0=127.0.0.1:7071 --
//       bazel-bin/examples/wide_deep_adult/train_replicas --data=adult.data
//
// In every step the ranks take parts of one batch, and the gradients of dense parameters and of
// rows are means over the ranks. So n ranks learn what one rank learns with a batch n times as
// large. At the end rank 0 prints the accuracy for the people who were not used for training.

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
#include "examples/replicas/rank.h"
#include "examples/wide_deep_adult/adult_reader.h"
#include "examples/wide_deep_adult/dataset.h"
#include "examples/wide_deep_adult/model.h"

ABSL_FLAG(std::string, data, "adult.data", "UCI's file adult.data.");
ABSL_FLAG(int, epochs, 10, "Passes over the data.");
ABSL_FLAG(int, batch, 128, "People per rank and step.");
ABSL_FLAG(double, lr, 1e-3, "Adam's learning rate, of the layers.");
ABSL_FLAG(double, table_lr, 0.02, "Row-wise Adagrad's learning rate, of the embeddings.");
ABSL_FLAG(uint64_t, seed, 1, "Of the initial model and of the order of the data.");

namespace psd::examples {
namespace {

// A rank's model and what steps it.
struct Trainer {
  std::shared_ptr<Group> group;
  Replica layers;
  std::vector<RRef> tables;
  std::unique_ptr<BufferedDataParallel> averaging;
  std::unique_ptr<ZeroRedundancyOptimizer> layers_optimizer;
  std::unique_ptr<DistributedOptimizer> tables_optimizer;
};

// The same elements on all ranks.
absl::StatusOr<Replica> CreateLayers(Worker& worker, uint64_t seed) {
  std::vector<ReplicaParameter> parameters;
  for (const LayerParameter& layer : LayerParameters()) {
    PSD_ASSIGN_OR_RETURN(ReplicaParameter parameter,
                         UniformParameter(layer.name, layer.shape, layer.bound, ++seed));
    parameters.push_back(std::move(parameter));
  }
  return Replica::Create(worker, std::move(parameters));
}

absl::StatusOr<Trainer> CreateTrainer(Worker& worker, std::shared_ptr<Group> group,
                                      const AdultDataset& dataset) {
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  PSD_ASSIGN_OR_RETURN(std::vector<RRef> tables,
                       AttachTables(worker, worker.owners(), dataset, seed));
  PSD_ASSIGN_OR_RETURN(const Replica layers, CreateLayers(worker, seed + tables.size()));
  PSD_ASSIGN_OR_RETURN(auto averaging, BufferedDataParallel::Create(group, layers));
  Adam adam;
  adam.lr = absl::GetFlag(FLAGS_lr);
  PSD_ASSIGN_OR_RETURN(auto layers_optimizer, ZeroRedundancyOptimizer::Create(group, layers, adam));
  RowwiseAdagrad adagrad;
  adagrad.lr = absl::GetFlag(FLAGS_table_lr);
  // A step of the tables returns when the gradients of all ranks have been applied.
  OptimizerSettings rounds;
  rounds.mode = UpdateMode::Synchronous(static_cast<uint32_t>(group->size()));
  PSD_ASSIGN_OR_RETURN(auto tables_optimizer, DistributedOptimizer::Create(
                                                  worker, "adult/tables", adagrad, tables, rounds));
  return Trainer{std::move(group),
                 layers,
                 std::move(tables),
                 std::move(averaging),
                 std::move(layers_optimizer),
                 std::move(tables_optimizer)};
}

// Takes one step, of which one context has all gradients. Returns this rank's loss.
absl::StatusOr<double> TrainStep(const Trainer& trainer, const AdultBatch& batch) {
  Worker& worker = trainer.layers.worker();
  PSD_ASSIGN_OR_RETURN(Context context, worker.NewContext());
  CallOptions options;
  options.context = &context;
  PSD_ASSIGN_OR_RETURN(const std::vector<Variable> layers, trainer.layers.Variables(context));
  PSD_ASSIGN_OR_RETURN(const Variable logits,
                       ComputeLogits(worker, trainer.tables, layers, batch, options));
  const Variable loss = CrossEntropy(logits, batch.labels);
  PSD_RETURN_IF_ERROR(context.Backward({loss}));
  PSD_RETURN_IF_ERROR(trainer.averaging->AllReduceGradients(context));
  PSD_RETURN_IF_ERROR(trainer.layers_optimizer->Step(context));
  PSD_RETURN_IF_ERROR(trainer.tables_optimizer->Step(context));
  return loss.tensor().data<float>()[0];
}

// Returns this rank's part of the people of a step: every size()-th of them.
std::vector<int32_t> PartOfStep(const std::vector<int32_t>& order, int64_t step, int64_t batch,
                                const Group& group) {
  std::vector<int32_t> people = PartIndices(batch * group.size(), group.rank(), group.size());
  for (int32_t& person : people)
    person = order[static_cast<size_t>(step * batch * group.size() + person)];
  return people;
}

absl::Status TrainLoop(const Trainer& trainer, const AdultDataset& dataset) {
  Group& group = *trainer.group;
  const int64_t batch_size = absl::GetFlag(FLAGS_batch);
  const int64_t steps = dataset.train_size() / (batch_size * group.size());
  if (steps == 0) return absl::InvalidArgumentError("there are fewer people than --batch per rank");
  const std::vector<int32_t> everybody = PartIndices(dataset.train_size(), 0, 1);
  for (int epoch = 0; epoch < absl::GetFlag(FLAGS_epochs); ++epoch) {
    const std::vector<int32_t> order = Shuffled(everybody, absl::GetFlag(FLAGS_seed), epoch);
    double losses = 0;
    for (int64_t step = 0; step < steps; ++step) {
      PSD_ASSIGN_OR_RETURN(const AdultBatch batch,
                           dataset.TrainBatch(PartOfStep(order, step, batch_size, group)));
      PSD_ASSIGN_OR_RETURN(const double loss, TrainStep(trainer, batch));
      losses += loss;
    }
    PSD_ASSIGN_OR_RETURN(const double mean,
                         MeanOverRanks(group, losses / static_cast<double>(steps)));
    if (group.rank() == 0) std::printf("epoch %d: loss %.5f\n", epoch + 1, mean);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

// Returns how many people of the test all ranks together classify correctly.
absl::StatusOr<int64_t> CountCorrectOfAll(const Trainer& trainer, const AdultDataset& dataset) {
  constexpr size_t kBatch = 1024;
  Group& group = *trainer.group;
  PSD_ASSIGN_OR_RETURN(const std::vector<Tensor> elements, trainer.layers.Elements());
  const std::vector<Variable> layers(elements.begin(), elements.end());
  const std::vector<int32_t> mine = PartIndices(dataset.test_size(), group.rank(), group.size());
  int64_t correct = 0;
  for (size_t first = 0; first < mine.size(); first += kBatch) {
    PSD_ASSIGN_OR_RETURN(const AdultBatch batch,
                         dataset.TestBatch(absl::MakeConstSpan(mine).subspan(first, kBatch)));
    PSD_ASSIGN_OR_RETURN(const Variable logits,
                         ComputeLogits(trainer.layers.worker(), trainer.tables, layers, batch, {}));
    correct += CountCorrect(logits.tensor(), batch.labels);
  }
  PSD_ASSIGN_OR_RETURN(const Tensor sum, group.AllReduce(Tensor::Of<int64_t>({1}, {correct})));
  return sum.data<int64_t>()[0];
}

absl::Status TrainRank(Worker& worker, const std::shared_ptr<Group>& group,
                       const AdultDataset& dataset) {
  PSD_ASSIGN_OR_RETURN(const Trainer trainer, CreateTrainer(worker, group, dataset));
  PSD_RETURN_IF_ERROR(TrainLoop(trainer, dataset));
  PSD_ASSIGN_OR_RETURN(const int64_t correct, CountCorrectOfAll(trainer, dataset));
  if (group->rank() == 0) {
    std::printf("test accuracy: %.4f\n",
                static_cast<double>(correct) / static_cast<double>(dataset.test_size()));
  }
  return absl::OkStatus();
}

absl::Status Train() {
  if (absl::GetFlag(FLAGS_epochs) < 1 || absl::GetFlag(FLAGS_batch) < 1)
    return absl::InvalidArgumentError("--epochs and --batch start at 1");
  PSD_ASSIGN_OR_RETURN(std::vector<Person> people, ReadAdult(absl::GetFlag(FLAGS_data)));
  PSD_ASSIGN_OR_RETURN(const AdultDataset dataset, AdultDataset::Create(std::move(people)));
  return RunRank([&](Worker& worker, const std::shared_ptr<Group>& group) {
    return TrainRank(worker, group, dataset);
  });
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::SetProgramUsageMessage(
      "trains on UCI Adult with replicas of the layers; psctl run starts the ranks");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = psd::examples::Train();
  if (!status.ok()) std::fprintf(stderr, "train_replicas: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
