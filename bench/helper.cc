// The processes at the other end of a benchmark:
//
//   helper echo                    a bare gRPC echo; prints its port
//   helper tcp                     a bare TCP sender; prints its port
//   helper trainer NAME ADDRESS    a trainer; reads a number, takes that many small steps, and
//                                  prints "done"
//   helper rank RANK RANKS ADDRESS CARRIER TASK TENSORS ELEMENTS
//                                  a rank of a group (bench/rank_work.h); reads a number, works so
//                                  often, and prints "done"
//
// Each ends when its input is closed.

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "bench/job.h"
#include "bench/rank_work.h"
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

// `arguments` are those behind "rank".
absl::Status RunRank(char** arguments) {
  RankOptions options;
  options.owner = arguments[2];
  options.shared_memory = std::string(arguments[3]) == "shm";
  options.task = arguments[4];
  if (!absl::SimpleAtoi(arguments[0], &options.rank) ||
      !absl::SimpleAtoi(arguments[1], &options.ranks) ||
      !absl::SimpleAtoi(arguments[5], &options.tensors) ||
      !absl::SimpleAtoi(arguments[6], &options.elements)) {
    return absl::InvalidArgumentError("RANK, RANKS, TENSORS and ELEMENTS are numbers");
  }
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<RankWork> work, RankWork::Join(options));
  for (int runs = 0; std::cin >> runs;) {
    for (; runs > 0; --runs) PSD_RETURN_IF_ERROR(work->Run());
    std::puts("done");
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

int Finish(const absl::Status& status) {
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

int Main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "echo" && argc == 2) return ServeEcho();
  if (role == "tcp" && argc == 2) return ServeTcp();
  if (role == "trainer" && argc == 4) return Finish(RunTrainer(argv[2], argv[3]));
  if (role == "rank" && argc == 9) return Finish(RunRank(argv + 2));
  std::fputs(
      "usage: helper echo | tcp | trainer NAME ADDRESS | rank RANK RANKS ADDRESS CARRIER "
      "TASK TENSORS ELEMENTS\n",
      stderr);
  return 2;
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return psd::bench::Main(argc, argv);
}
