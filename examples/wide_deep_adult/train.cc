// A trainer. It trains the model on its part of the people, together with any number of other
// trainers, and does not wait for them. Embeddings, layers and optimizers live on the owners.
//
//   train --name=trainer0 --owners=owner0=127.0.0.1:7071 --data=adult.data --part=0/2

#include <cstdio>
#include <memory>
#include <numeric>
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
#include "examples/fashion_mnist/progress.h"
#include "examples/wide_deep_adult/adult_reader.h"
#include "examples/wide_deep_adult/dataset.h"
#include "examples/wide_deep_adult/model.h"

ABSL_FLAG(std::string, name, "trainer0", "This trainer's name, unique in the job.");
ABSL_FLAG(std::string, owners, "owner0=127.0.0.1:7071", "name=host:port of every owner.");
ABSL_FLAG(std::string, data, "adult.data", "UCI's file adult.data.");
ABSL_FLAG(std::string, part, "0/1", "k/n: train on the k-th of n parts of the data.");
ABSL_FLAG(int, epochs, 10, "Passes over the data.");
ABSL_FLAG(int, batch, 256, "People per step.");
ABSL_FLAG(double, lr, 1e-3, "Adam's learning rate, of the layers.");
ABSL_FLAG(double, table_lr, 0.02, "Row-wise Adagrad's learning rate, of the embeddings.");
ABSL_FLAG(uint64_t, seed, 1, "Of the initial model and of the order of the data.");
ABSL_FLAG(double, seconds, 0, "Stop training after so many seconds; 0: no limit.");
ABSL_FLAG(bool, start_afresh, false,
          "Begin the optimizer anew if an owner was restarted and has lost its part of it.");
ABSL_FLAG(bool, progress_for_programs, false, "Print progress for another program to read.");

namespace psd::examples {
namespace {

struct Training {
  int epochs = 0;
  int64_t batch = 0;
  uint64_t seed = 0;
  Part part;
  absl::Duration limit;
};

absl::StatusOr<Training> TrainingFromFlags() {
  Training training;
  training.epochs = absl::GetFlag(FLAGS_epochs);
  training.batch = absl::GetFlag(FLAGS_batch);
  training.seed = absl::GetFlag(FLAGS_seed);
  PSD_ASSIGN_OR_RETURN(training.part, ParsePart(absl::GetFlag(FLAGS_part)));
  const double seconds = absl::GetFlag(FLAGS_seconds);
  if (training.epochs < 1 || training.batch < 1 || seconds < 0) {
    return absl::InvalidArgumentError("--epochs and --batch start at 1, --seconds at 0");
  }
  training.limit = seconds > 0 ? absl::Seconds(seconds) : absl::InfiniteDuration();
  return training;
}

absl::Status TrainLoop(const Training& training, const AdultDataset& dataset, Worker& worker,
                       const WideDeepModel& model, const WideDeepOptimizers& optimizers) {
  const Clock& clock = Clock::Steady();
  const std::vector<int32_t> mine =
      PartIndices(dataset.train_size(), training.part.part, training.part.parts);
  const auto people = static_cast<int64_t>(mine.size());
  if (people == 0) return absl::InvalidArgumentError("this part of the data is empty");
  const int64_t steps_per_epoch = (people + training.batch - 1) / training.batch;
  const absl::Time start = clock.Now();
  ProgressMeter meter(training.epochs, steps_per_epoch, training.limit, start, "rows");
  const bool programs = absl::GetFlag(FLAGS_progress_for_programs);
  ProgressPrinter printer(stdout, programs ? ProgressStyle::kPrograms : ProgressStyle::kAuto);
  std::vector<int32_t> order;
  for (int64_t step = 0; step < training.epochs * steps_per_epoch; ++step) {
    if (meter.OutOfTime(clock.Now())) break;
    const int64_t step_of_epoch = step % steps_per_epoch;
    if (step_of_epoch == 0)
      order = Shuffled(mine, training.seed, static_cast<int>(step / steps_per_epoch));
    const auto indices = absl::MakeConstSpan(order).subspan(
        static_cast<size_t>(step_of_epoch * training.batch), static_cast<size_t>(training.batch));
    PSD_ASSIGN_OR_RETURN(const AdultBatch batch, dataset.TrainBatch(indices));
    PSD_ASSIGN_OR_RETURN(const double loss, TrainStep(worker, model, optimizers, batch));
    meter.AddStep(batch.labels.NumElements(), loss);
    printer.Update(meter, clock.Now());
  }
  printer.Finish(meter, clock.Now());
  std::printf("trained: seconds=%.2f rows=%lld\n", absl::ToDoubleSeconds(clock.Now() - start),
              static_cast<long long>(meter.images()));
  return absl::OkStatus();
}

absl::Status Train() {
  PSD_ASSIGN_OR_RETURN(const Training training, TrainingFromFlags());
  PSD_ASSIGN_OR_RETURN(std::vector<Person> people, ReadAdult(absl::GetFlag(FLAGS_data)));
  PSD_ASSIGN_OR_RETURN(const AdultDataset dataset, AdultDataset::Create(std::move(people)));
  WorkerOptions options;
  options.name = absl::GetFlag(FLAGS_name);
  PSD_ASSIGN_OR_RETURN(options.owners, ParseOwners(absl::GetFlag(FLAGS_owners)));
  const std::vector<std::string> owners = NamesOf(options.owners);
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Start(std::move(options)));
  PSD_ASSIGN_OR_RETURN(const WideDeepModel model,
                       WideDeepModel::Attach(*worker, owners, dataset, training.seed));
  JoinOptions join;
  join.start_afresh = absl::GetFlag(FLAGS_start_afresh);
  PSD_ASSIGN_OR_RETURN(const WideDeepOptimizers optimizers,
                       CreateOptimizers(*worker, model, absl::GetFlag(FLAGS_lr),
                                        absl::GetFlag(FLAGS_table_lr), join));
  PSD_RETURN_IF_ERROR(TrainLoop(training, dataset, *worker, model, optimizers));
  return worker->Shutdown();
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::SetProgramUsageMessage("trains on UCI Adult; embeddings and layers live on psd owners");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = psd::examples::Train();
  if (!status.ok()) std::fprintf(stderr, "train: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
