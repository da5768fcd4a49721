// The processes at the other end of a benchmark:
//
//   helper echo                    a bare gRPC echo; prints its port
//   helper tcp                     a bare TCP sender; prints its port
//   helper trainer NAME ADDRESS    a trainer; reads a number, takes that many small steps, and
//                                  prints "done"
//
// Each ends when its input is closed.

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "bench/job.h"
#include "bench/train_step.h"
#include "bench/wire_floors.h"

namespace psd::bench {
namespace {

absl::Status RunTrainer(const std::string& name, const std::string& address) {
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Attach(name, address));
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<TrainStep> step,
                       TrainStep::Create(*worker, kSmallStep, Sgd{}));
  std::puts("ready");
  std::fflush(stdout);
  for (int steps = 0; std::cin >> steps;) {
    for (; steps > 0; --steps) PSD_RETURN_IF_ERROR(step->Run());
    std::puts("done");
    std::fflush(stdout);
  }
  return worker->Shutdown();
}

int Main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "echo" && argc == 2) return ServeEcho();
  if (role == "tcp" && argc == 2) return ServeTcp();
  if (role == "trainer" && argc == 4) {
    const absl::Status status = RunTrainer(argv[2], argv[3]);
    if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
    return status.ok() ? 0 : 1;
  }
  std::fputs("usage: helper echo | tcp | trainer NAME ADDRESS\n", stderr);
  return 2;
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return psd::bench::Main(argc, argv);
}
