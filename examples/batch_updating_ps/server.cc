// A parameter server that updates its model once per batch. Each of two trainers sends a gradient
// and waits. When both gradients are there, the server steps with their mean and answers both
// trainers with the new model. So no trainer works on an old model, and no thread waits for the
// slowest.
//
//   bazel build -c opt //examples/batch_updating_ps:all
//   bazel-bin/examples/batch_updating_ps/server --dev &
//   bazel-bin/examples/batch_updating_ps/train 0 & bazel-bin/examples/batch_updating_ps/train 1

#include <memory>

#include "client/psd.h"
#include "examples/batch_updating_ps/batch_updater.h"
#include "examples/batch_updating_ps/functions.h"
#include "examples/batch_updating_ps/trainer.h"
#include "server/daemon/daemon.h"

int main(int argc, char** argv) {
  using psd::examples::BatchUpdater;
  auto updater = std::make_shared<BatchUpdater>(psd::examples::InitialModel(),
                                                psd::examples::kTrainers, /*lr=*/0.2);
  return psd::server::RunDaemon(argc, argv, {psd::examples::MakeFunctions(updater)});
}
