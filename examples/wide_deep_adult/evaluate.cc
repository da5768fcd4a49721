// Prints the accuracy of the model that trainers have left on the owners, for the people who were
// not used for training.
//
//   evaluate --owners=owner0=127.0.0.1:7071 --data=adult.data

#include <algorithm>
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
#include "examples/fashion_mnist/arguments.h"
#include "examples/wide_deep_adult/adult_reader.h"
#include "examples/wide_deep_adult/dataset.h"
#include "examples/wide_deep_adult/model.h"

ABSL_FLAG(std::string, name, "evaluator", "This worker's name, unique in the job.");
ABSL_FLAG(std::string, owners, "owner0=127.0.0.1:7071", "name=host:port of every owner.");
ABSL_FLAG(std::string, data, "adult.data", "UCI's file adult.data.");

namespace psd::examples {
namespace {

constexpr int64_t kBatch = 1024;

absl::StatusOr<int64_t> CountAll(Worker& worker, const WideDeepModel& model,
                                 const AdultDataset& dataset) {
  int64_t correct = 0;
  for (int64_t first = 0; first < dataset.test_size(); first += kBatch) {
    std::vector<int32_t> indices(
        static_cast<size_t>(std::min(kBatch, dataset.test_size() - first)));
    std::iota(indices.begin(), indices.end(), static_cast<int32_t>(first));
    PSD_ASSIGN_OR_RETURN(const AdultBatch batch, dataset.TestBatch(indices));
    PSD_ASSIGN_OR_RETURN(const Variable logits, model.Forward(worker, batch, {}));
    correct += CountCorrect(logits.tensor(), batch.labels);
  }
  return correct;
}

absl::Status Evaluate() {
  PSD_ASSIGN_OR_RETURN(std::vector<Person> people, ReadAdult(absl::GetFlag(FLAGS_data)));
  PSD_ASSIGN_OR_RETURN(const AdultDataset dataset, AdultDataset::Create(std::move(people)));
  WorkerOptions options;
  options.name = absl::GetFlag(FLAGS_name);
  PSD_ASSIGN_OR_RETURN(options.owners, ParseOwners(absl::GetFlag(FLAGS_owners)));
  const std::vector<std::string> owners = NamesOf(options.owners);
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Start(std::move(options)));
  PSD_ASSIGN_OR_RETURN(const WideDeepModel model,
                       WideDeepModel::Attach(*worker, owners, dataset, /*seed=*/1));
  PSD_ASSIGN_OR_RETURN(const int64_t correct, CountAll(*worker, model, dataset));
  std::printf("accuracy=%.4f rows=%lld\n",
              static_cast<double>(correct) / static_cast<double>(dataset.test_size()),
              static_cast<long long>(dataset.test_size()));
  return worker->Shutdown();
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::SetProgramUsageMessage("prints the test accuracy of the wide and deep model on the owners");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = psd::examples::Evaluate();
  if (!status.ok()) std::fprintf(stderr, "evaluate: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
