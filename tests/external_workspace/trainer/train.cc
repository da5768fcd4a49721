// Calls a function of the daemon in this workspace, and learns y = 2x with the parameter on it.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "client/psd.h"

constexpr char kOwner[] = "owner0";

absl::StatusOr<int64_t> CallTwice(psd::Worker& worker, int64_t x) {
  PSD_ASSIGN_OR_RETURN(const psd::Values results,
                       worker.RpcSync(kOwner, psd::Function::Registered("twice"), {x}));
  return psd::ReadValue<int64_t>(results[0]);
}

absl::StatusOr<float> Learn(psd::Worker& worker) {
  psd::CreateOptions parameter;
  parameter.requires_grad = true;
  PSD_ASSIGN_OR_RETURN(psd::RRef w, worker.GetOrCreate(kOwner, "w", psd::Zeros({1, 1}), parameter));
  psd::Sgd sgd;
  sgd.lr = 0.1;
  PSD_ASSIGN_OR_RETURN(auto optimizer, psd::DistributedOptimizer::Create(worker, "main", sgd, {w}));

  const std::vector<float> x = {1, 2, 3};
  const std::vector<float> y = {2, 4, 6};
  for (int step = 0; step < 20; ++step) {
    PSD_ASSIGN_OR_RETURN(psd::Context context, worker.NewContext());
    PSD_ASSIGN_OR_RETURN(auto values, worker.ToHere({w}, context));
    const psd::Variable predicted = psd::Linear(psd::Tensor::Of({3, 1}, x), values[0]);
    const psd::Variable loss = psd::Mse(predicted, psd::Tensor::Of({3, 1}, y));
    PSD_RETURN_IF_ERROR(context.Backward({loss}));
    PSD_RETURN_IF_ERROR(optimizer->Step(context));
  }
  PSD_ASSIGN_OR_RETURN(const psd::Context context, worker.NewContext());
  PSD_ASSIGN_OR_RETURN(const auto values, worker.ToHere({w}, context));
  return values[0].tensor().data<float>()[0];
}

absl::Status Run(const char* address) {
  psd::WorkerOptions options;
  options.name = "trainer0";
  options.owners = {{kOwner, address}};
  PSD_ASSIGN_OR_RETURN(const auto worker, psd::Worker::Start(options));
  PSD_ASSIGN_OR_RETURN(const int64_t twice, CallTwice(*worker, 21));
  PSD_ASSIGN_OR_RETURN(const float w, Learn(*worker));
  std::printf("twice 21 is %d, and y = %.2f x\n", static_cast<int>(twice), w);
  return worker->Shutdown();
}

int main(int argc, char** argv) {
  const absl::Status status = Run(argc > 1 ? argv[1] : "127.0.0.1:7071");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
