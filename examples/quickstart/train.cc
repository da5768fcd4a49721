// Learns y = 3x - 1 with the parameters on a psd owner. Start one with `psd --dev`, then run this.

#include <cstdio>
#include <memory>
#include <vector>

#include "client/psd.h"

absl::Status Train(const char* address) {
  psd::WorkerOptions options;
  options.name = "trainer0";
  options.owners = {{"owner0", address}};
  PSD_ASSIGN_OR_RETURN(auto worker, psd::Worker::Start(options));

  // The first trainer creates the parameters. They stay on the owner when this program ends.
  psd::CreateOptions parameter;
  parameter.requires_grad = true;
  PSD_ASSIGN_OR_RETURN(psd::RRef w,
                       worker->GetOrCreate("owner0", "line/w", psd::Zeros({1, 1}), parameter));
  PSD_ASSIGN_OR_RETURN(psd::RRef b,
                       worker->GetOrCreate("owner0", "line/b", psd::Zeros({1}), parameter));
  psd::Sgd sgd;
  sgd.lr = 0.1;
  PSD_ASSIGN_OR_RETURN(auto optimizer,
                       psd::DistributedOptimizer::Create(*worker, "line", sgd, {w, b}));

  const psd::Tensor x = psd::Tensor::Of<float>({4, 1}, {-1, 0, 1, 2});
  const psd::Tensor y = psd::Tensor::Of<float>({4, 1}, {-4, -1, 2, 5});
  for (int step = 0; step <= 100; ++step) {
    PSD_ASSIGN_OR_RETURN(psd::Context context, worker->NewContext());
    // One exchange for each owner.
    PSD_ASSIGN_OR_RETURN(auto values, worker->ToHere({w, b}, context));
    const psd::Variable loss = psd::Mse(psd::Linear(x, values[0], values[1]), y);
    // Gradients stay with their owners, and the optimizer steps where the parameters live.
    PSD_RETURN_IF_ERROR(context.Backward({loss}));
    PSD_RETURN_IF_ERROR(optimizer->Step(context));
    if (step % 20 == 0) {
      std::printf("step %3d  loss %.6f  y = %.3f x + %.3f\n", step, loss.tensor().data<float>()[0],
                  values[0].tensor().data<float>()[0], values[1].tensor().data<float>()[0]);
    }
  }
  return worker->Shutdown();
}

int main(int argc, char** argv) {
  const absl::Status status = Train(argc > 1 ? argv[1] : "127.0.0.1:7071");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
