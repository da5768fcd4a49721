// Pulls the model that trainers have left on the owners and prints its accuracy on the test images.
//
//   evaluate --owners=owner0=127.0.0.1:7071

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
#include "examples/fashion_mnist/dataset.h"
#include "examples/fashion_mnist/model.h"

ABSL_FLAG(std::string, name, "evaluator", "This worker's name, unique in the job.");
ABSL_FLAG(std::string, owners, "owner0=127.0.0.1:7071", "name=host:port of every owner.");
ABSL_FLAG(std::string, data, "/usr/share/datasets/fashion-mnist", "Folder of the data set.");

namespace psd::examples {
namespace {

constexpr int64_t kBatch = 1000;

// Returns the present parameters of the owners, as constants.
absl::StatusOr<std::vector<Variable>> PullModel(Worker& worker,
                                                const std::vector<ParameterPlan>& plan) {
  std::vector<RRef> parameters;
  for (const ParameterPlan& parameter : plan) {
    PSD_ASSIGN_OR_RETURN(RRef rref, worker.Lookup(parameter.owner, parameter.name));
    parameters.push_back(std::move(rref));
  }
  PSD_ASSIGN_OR_RETURN(const Values values, worker.ToHere(parameters));
  std::vector<Variable> model;
  for (const Value& value : values) {
    const auto* tensor = value.As<Variable>();
    if (tensor == nullptr) return absl::InternalError("a parameter is not a tensor");
    model.push_back(tensor->Detach());
  }
  return model;
}

absl::StatusOr<int64_t> CountCorrect(const Dataset& dataset, const std::vector<Variable>& model) {
  int64_t correct = 0;
  for (int64_t first = 0; first < dataset.size(); first += kBatch) {
    std::vector<int32_t> indices(static_cast<size_t>(std::min(kBatch, dataset.size() - first)));
    std::iota(indices.begin(), indices.end(), static_cast<int32_t>(first));
    PSD_ASSIGN_OR_RETURN(const Batch batch, dataset.MakeBatch(indices));
    const Variable logits = Forward(batch.images, model);
    PSD_RETURN_IF_ERROR(logits.status());
    const float* row = logits.tensor().data<float>();
    for (int32_t index : indices) {
      correct += std::max_element(row, row + kClasses) - row == dataset.label(index);
      row += kClasses;
    }
  }
  return correct;
}

absl::Status Evaluate() {
  PSD_ASSIGN_OR_RETURN(const Dataset dataset, Dataset::LoadTest(absl::GetFlag(FLAGS_data)));
  WorkerOptions options;
  options.name = absl::GetFlag(FLAGS_name);
  PSD_ASSIGN_OR_RETURN(options.owners, ParseOwners(absl::GetFlag(FLAGS_owners)));
  const std::vector<ParameterPlan> plan = PlanModel(NamesOf(options.owners));
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, Worker::Start(std::move(options)));
  PSD_ASSIGN_OR_RETURN(const std::vector<Variable> model, PullModel(*worker, plan));
  PSD_ASSIGN_OR_RETURN(const int64_t correct, CountCorrect(dataset, model));
  std::printf("accuracy=%.4f images=%lld\n",
              static_cast<double>(correct) / static_cast<double>(dataset.size()),
              static_cast<long long>(dataset.size()));
  return worker->Shutdown();
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  absl::SetProgramUsageMessage("prints the test accuracy of the model on the owners");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = psd::examples::Evaluate();
  if (!status.ok()) std::fprintf(stderr, "evaluate: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
