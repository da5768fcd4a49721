// One rank of a training with gradient accumulation: the gradients of several micro-batches add up
// in one context, are averaged over the ranks once, and are stepped by an optimizer whose state is
// spread over the ranks (ZeRO). The model predicts the next character of a text from the 8 before
// it (Bengio et al., "A neural probabilistic language model", 2003). A launcher starts the ranks:
//
//   psctl run -n 2 -- bazel-bin/examples/tinyshakespeare/train --micro_batches=4
//
// A step learns from ranks x micro_batches x batch characters. However that product is shared
// between the three, the step is the same, apart from the rounding of sums. At the end rank 0
// prints the loss for the part of the text that was not used for training.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
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
#include "core/tensor/ops/random.h"
#include "examples/replicas/rank.h"
#include "examples/tinyshakespeare/text.h"

ABSL_FLAG(std::string, data, "examples/tinyshakespeare/excerpt.txt", "A text.");
ABSL_FLAG(int, steps, 1000, "Steps of the optimizer.");
ABSL_FLAG(int, micro_batches, 4, "Micro-batches per rank and step.");
ABSL_FLAG(int, batch, 32, "Characters per micro-batch.");
ABSL_FLAG(double, lr, 5e-3, "Adam's learning rate.");
ABSL_FLAG(uint64_t, seed, 1, "Of the initial parameters and of the places in the text.");

namespace psd::examples {
namespace {

constexpr int64_t kWidth = 16;     // of a character's embedding
constexpr int64_t kHidden = 128;   // the units of the hidden layer
constexpr int kReportEvery = 100;  // steps

// The same elements on all ranks.
absl::StatusOr<Replica> CreateModel(Worker& worker, int64_t characters, uint64_t seed) {
  const double in = 1 / std::sqrt(kContext * kWidth), hidden = 1 / std::sqrt(kHidden);
  struct Plan {
    std::string name;
    Shape shape;
    double bound;
  };
  std::vector<ReplicaParameter> parameters;
  for (const Plan& plan :
       {Plan{"embedding", {characters, kWidth}, 0.5},
        Plan{"hidden/weight", {kHidden, kContext * kWidth}, in}, Plan{"hidden/bias", {kHidden}, in},
        Plan{"out/weight", {characters, kHidden}, hidden},
        Plan{"out/bias", {characters}, hidden}}) {
    PSD_ASSIGN_OR_RETURN(
        ReplicaParameter parameter,
        UniformParameter("shakespeare/" + plan.name, plan.shape, plan.bound, ++seed));
    parameters.push_back(std::move(parameter));
  }
  return Replica::Create(worker, std::move(parameters));
}

// Returns the mean loss of a batch, in nats per character.
Variable Loss(const std::vector<Variable>& parameters, const CharacterBatch& batch) {
  const Variable characters = Embedding(parameters[0], batch.contexts);
  const Variable context = Reshape(characters, {-1, kContext * kWidth});
  const Variable hidden = Tanh(Linear(context, parameters[1], parameters[2]));
  return CrossEntropy(Linear(hidden, parameters[3], parameters[4]), batch.next);
}

// Draws the places of all characters of a step, which all ranks do alike, and returns the parts of
// this rank: one for each micro-batch.
absl::StatusOr<std::vector<std::vector<int64_t>>> DrawPlaces(const Text& text, const Group& group,
                                                             int step) {
  const int64_t batch = absl::GetFlag(FLAGS_batch);
  const int64_t mine = batch * absl::GetFlag(FLAGS_micro_batches);
  const uint64_t seed = absl::GetFlag(FLAGS_seed) * 1'000'003 + static_cast<uint64_t>(step);
  PSD_ASSIGN_OR_RETURN(const Tensor numbers,
                       ops::Uniform({group.size() * mine}, 0, 1, seed, DType::kF64));
  const double* number = numbers.data<double>() + group.rank() * mine;
  std::vector<std::vector<int64_t>> places(static_cast<size_t>(absl::GetFlag(FLAGS_micro_batches)));
  for (std::vector<int64_t>& part : places) {
    for (int64_t i = 0; i < batch; ++i)
      part.push_back(static_cast<int64_t>(*number++ * static_cast<double>(text.train_size())));
  }
  return places;
}

// Takes one step. Returns this rank's loss.
absl::StatusOr<double> TrainStep(const Text& text, const Replica& model, BufferedDataParallel& ddp,
                                 ZeroRedundancyOptimizer& zero, int step) {
  PSD_ASSIGN_OR_RETURN(const auto places, DrawPlaces(text, ddp.group(), step));
  PSD_ASSIGN_OR_RETURN(Context context, model.worker().NewContext());
  double losses = 0;
  for (size_t micro = 0; micro < places.size(); ++micro) {
    PSD_ASSIGN_OR_RETURN(const CharacterBatch batch, text.TrainBatch(places[micro]));
    PSD_ASSIGN_OR_RETURN(const std::vector<Variable> parameters, model.Variables(context));
    // Gradients add up, so each micro-batch counts by its share of the characters.
    const Variable loss = Loss(parameters, batch) * (1.0 / static_cast<double>(places.size()));
    PSD_RETURN_IF_ERROR(context.Backward({loss}));
    losses += loss.tensor().data<float>()[0];
    std::optional<BufferedDataParallel::NoSyncScope> adding_up;
    if (micro + 1 < places.size()) adding_up.emplace(ddp.NoSync());
    PSD_RETURN_IF_ERROR(ddp.AllReduceGradients(context));  // does nothing until the last one
  }
  PSD_RETURN_IF_ERROR(zero.Step(context));
  return losses;
}

absl::Status TrainLoop(const Text& text, const Replica& model, BufferedDataParallel& ddp,
                       ZeroRedundancyOptimizer& zero) {
  double losses = 0;
  for (int step = 1; step <= absl::GetFlag(FLAGS_steps); ++step) {
    PSD_ASSIGN_OR_RETURN(const double loss, TrainStep(text, model, ddp, zero, step));
    losses += loss;
    if (step % kReportEvery != 0) continue;
    PSD_ASSIGN_OR_RETURN(const double mean, MeanOverRanks(ddp.group(), losses / kReportEvery));
    if (ddp.group().rank() == 0) std::printf("step %d: loss %.4f\n", step, mean);
    std::fflush(stdout);
    losses = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<double> TestLoss(const Text& text, const Replica& model) {
  constexpr int64_t kBatch = 1000;
  PSD_ASSIGN_OR_RETURN(const std::vector<Tensor> elements, model.Elements());
  const std::vector<Variable> parameters(elements.begin(), elements.end());
  double losses = 0;
  for (int64_t first = 0; first < text.test_size(); first += kBatch) {
    std::vector<int64_t> places(static_cast<size_t>(std::min(kBatch, text.test_size() - first)));
    std::iota(places.begin(), places.end(), first);
    PSD_ASSIGN_OR_RETURN(const CharacterBatch batch, text.TestBatch(places));
    const Variable loss = Loss(parameters, batch);
    PSD_RETURN_IF_ERROR(loss.status());
    losses += loss.tensor().data<float>()[0] * static_cast<double>(places.size());
  }
  return losses / static_cast<double>(text.test_size());
}

absl::Status TrainRank(Worker& worker, const std::shared_ptr<Group>& group, const Text& text) {
  PSD_ASSIGN_OR_RETURN(const Replica model,
                       CreateModel(worker, text.characters(), absl::GetFlag(FLAGS_seed)));
  PSD_ASSIGN_OR_RETURN(const auto ddp, BufferedDataParallel::Create(group, model));
  Adam adam;
  adam.lr = absl::GetFlag(FLAGS_lr);
  PSD_ASSIGN_OR_RETURN(const auto zero, ZeroRedundancyOptimizer::Create(group, model, adam));
  PSD_RETURN_IF_ERROR(TrainLoop(text, model, *ddp, *zero));
  if (group->rank() != 0) return absl::OkStatus();
  PSD_ASSIGN_OR_RETURN(const double loss, TestLoss(text, model));
  std::printf("test loss: %.4f nats per character; by frequency alone: %.4f\n", loss,
              text.LossByFrequency());
  return absl::OkStatus();
}

absl::Status Train() {
  if (absl::GetFlag(FLAGS_steps) < 1 || absl::GetFlag(FLAGS_micro_batches) < 1 ||
      absl::GetFlag(FLAGS_batch) < 1)
    return absl::InvalidArgumentError("--steps, --micro_batches and --batch start at 1");
  PSD_ASSIGN_OR_RETURN(const Text text, Text::Read(absl::GetFlag(FLAGS_data)));
  return RunRank([&](Worker& worker, const std::shared_ptr<Group>& group) {
    return TrainRank(worker, group, text);
  });
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::SetProgramUsageMessage(
      "trains a model of characters with gradient accumulation; psctl run starts the ranks");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = psd::examples::Train();
  if (!status.ok()) std::fprintf(stderr, "train: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
