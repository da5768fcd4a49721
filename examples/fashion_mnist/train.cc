// A trainer. It trains the model on its part of the data, together with any number of other
// trainers, and does not wait for them. The parameters and the optimizer live on the owners.
//
//   train --name=trainer0 --owners=owner0=127.0.0.1:7071 --part=0/2

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/synchronization/mutex.h"
#include "client/psd.h"
#include "core/base/clock.h"
#include "examples/fashion_mnist/arguments.h"
#include "examples/fashion_mnist/dataset.h"
#include "examples/fashion_mnist/model.h"
#include "examples/fashion_mnist/progress.h"

ABSL_FLAG(std::string, name, "trainer0", "This trainer's name, unique in the job.");
ABSL_FLAG(std::string, owners, "owner0=127.0.0.1:7071", "name=host:port of every owner.");
ABSL_FLAG(std::string, data, "/usr/share/datasets/fashion-mnist", "Folder of the data set.");
ABSL_FLAG(std::string, part, "0/1", "k/n: train on the k-th of n parts of the data.");
ABSL_FLAG(int, epochs, 10, "Passes over the data.");
ABSL_FLAG(int, batch, 128, "Images per step.");
ABSL_FLAG(double, lr, 5e-4, "Adam's learning rate.");
ABSL_FLAG(uint64_t, seed, 1, "Of the initial parameters and of the order of the data.");
ABSL_FLAG(std::string, device, "cpu",
          "Where the owners keep the parameters: 'auto', or one of their --devices.");
ABSL_FLAG(double, seconds, 0, "Stop training after so many seconds; 0: no limit.");
ABSL_FLAG(bool, start_afresh, false,
          "Begin the optimizer anew if an owner was restarted and has lost its part of it.");
ABSL_FLAG(bool, progress_for_programs, false, "Print progress for another program to read.");

namespace psd::examples {
namespace {

struct TrainerOptions {
  std::string name;
  std::vector<OwnerAddress> owners;
  std::string data;
  Part part;
  int epochs = 0;
  int64_t batch = 0;
  double lr = 0;
  uint64_t seed = 0;
  absl::Duration limit;
  ProgressStyle progress = ProgressStyle::kAuto;
};

absl::StatusOr<TrainerOptions> OptionsFromFlags() {
  TrainerOptions options;
  options.name = absl::GetFlag(FLAGS_name);
  options.data = absl::GetFlag(FLAGS_data);
  options.epochs = absl::GetFlag(FLAGS_epochs);
  options.batch = absl::GetFlag(FLAGS_batch);
  options.lr = absl::GetFlag(FLAGS_lr);
  options.seed = absl::GetFlag(FLAGS_seed);
  PSD_ASSIGN_OR_RETURN(options.owners, ParseOwners(absl::GetFlag(FLAGS_owners)));
  PSD_ASSIGN_OR_RETURN(options.part, ParsePart(absl::GetFlag(FLAGS_part)));
  if (options.epochs < 1 || options.batch < 1 || absl::GetFlag(FLAGS_seconds) < 0) {
    return absl::InvalidArgumentError("--epochs and --batch start at 1, --seconds at 0");
  }
  const double seconds = absl::GetFlag(FLAGS_seconds);
  options.limit = seconds > 0 ? absl::Seconds(seconds) : absl::InfiniteDuration();
  if (absl::GetFlag(FLAGS_progress_for_programs)) options.progress = ProgressStyle::kPrograms;
  return options;
}

// Takes one step: pulls the parameters, computes loss and gradients, and steps the optimizer on the
// owners. Returns the loss.
absl::StatusOr<double> TrainStep(Worker& worker, DistributedOptimizer& optimizer,
                                 const std::vector<RRef>& parameters, const Batch& batch) {
  PSD_ASSIGN_OR_RETURN(Context context, worker.NewContext());
  PSD_ASSIGN_OR_RETURN(const std::vector<Variable> values, worker.ToHere(parameters, context));
  const Variable loss = CrossEntropy(Forward(batch.images, values), batch.labels);
  PSD_RETURN_IF_ERROR(context.Backward({loss}));
  PSD_RETURN_IF_ERROR(optimizer.Step(context));
  return loss.tensor().data<float>()[0];
}

absl::Status TrainLoop(const TrainerOptions& options, const Dataset& dataset, Worker& worker,
                       DistributedOptimizer& optimizer, const std::vector<RRef>& parameters) {
  const Clock& clock = Clock::Steady();
  const std::vector<int32_t> mine =
      PartIndices(dataset.size(), options.part.part, options.part.parts);
  const auto images = static_cast<int64_t>(mine.size());
  if (images == 0) return absl::InvalidArgumentError("this part of the data is empty");
  const int64_t steps_per_epoch = (images + options.batch - 1) / options.batch;
  const absl::Time start = clock.Now();
  ProgressMeter meter(options.epochs, steps_per_epoch, options.limit, start);
  ProgressPrinter printer(stdout, options.progress);
  std::vector<int32_t> order;
  for (int64_t step = 0; step < options.epochs * steps_per_epoch; ++step) {
    if (meter.OutOfTime(clock.Now())) break;
    const int64_t step_of_epoch = step % steps_per_epoch;
    if (step_of_epoch == 0) {
      order = Shuffled(mine, options.seed, static_cast<int>(step / steps_per_epoch));
    }
    const auto indices = absl::MakeConstSpan(order).subspan(
        static_cast<size_t>(step_of_epoch * options.batch), static_cast<size_t>(options.batch));
    PSD_ASSIGN_OR_RETURN(const Batch batch, dataset.MakeBatch(indices));
    PSD_ASSIGN_OR_RETURN(const double loss, TrainStep(worker, optimizer, parameters, batch));
    meter.AddStep(batch.labels.NumElements(), loss);
    printer.Update(meter, clock.Now());
  }
  printer.Finish(meter, clock.Now());
  std::printf("trained: seconds=%.2f images=%lld\n", absl::ToDoubleSeconds(clock.Now() - start),
              static_cast<long long>(meter.images()));
  return absl::OkStatus();
}

absl::Status Train() {
  PSD_ASSIGN_OR_RETURN(const TrainerOptions options, OptionsFromFlags());
  PSD_ASSIGN_OR_RETURN(const Dataset dataset, Dataset::LoadTraining(options.data));

  WorkerOptions worker_options;
  worker_options.name = options.name;
  worker_options.owners = options.owners;
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, Worker::Start(std::move(worker_options)));
  PSD_ASSIGN_OR_RETURN(const std::vector<RRef> parameters,
                       AttachModel(*worker, PlanModel(NamesOf(options.owners)), options.seed,
                                   absl::GetFlag(FLAGS_device)));
  Adam adam;
  adam.lr = options.lr;
  JoinOptions join;
  join.start_afresh = absl::GetFlag(FLAGS_start_afresh);
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<DistributedOptimizer> optimizer,
                       DistributedOptimizer::Create(*worker, "main", adam, parameters, {}, join));
  PSD_RETURN_IF_ERROR(TrainLoop(options, dataset, *worker, *optimizer, parameters));
  return worker->Shutdown();
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::SetProgramUsageMessage("trains on Fashion-MNIST; the model lives on psd owners");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = psd::examples::Train();
  if (!status.ok()) std::fprintf(stderr, "train: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
