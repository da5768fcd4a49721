// The processes at the other end of a benchmark:
//
//   helper echo HOST               a bare gRPC echo on an address of its host; prints HOST:PORT
//   helper tcp HOST                the same, bare TCP that carries bytes either way
//   helper route TARGET DELAY      a TCP proxy to HOST:PORT that delays every byte; prints its own
//                                  address
//   helper trainer NAME ADDRESS    a trainer; reads a number, takes that many small steps, and
//                                  prints "done"
//   helper rank RANK RANKS ADDRESS CARRIER TASK TENSORS ELEMENTS
//                                  a rank of a group (bench/rank_work.h); reads a number, works so
//                                  often, and prints "done"
//
// Each but tcp ends when its input is closed; tcp ends with its one connection.

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "bench/job.h"
#include "bench/rank_work.h"
#include "bench/train_step.h"
#include "bench/wire_floors.h"
#include "core/carrier/faulty/tcp_route.h"

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

absl::Status RunRoute(const std::string& target, const std::string& delay) {
  absl::Duration one_way;
  if (!absl::ParseDuration(delay, &one_way)) {
    return absl::InvalidArgumentError("DELAY is a time, such as 10ms");
  }
  const carrier::TcpRoute route(target, one_way);
  std::printf("%s\n", route.address().c_str());
  std::fflush(stdout);
  std::cin.get();
  return absl::OkStatus();
}

int Finish(const absl::Status& status) {
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

int Main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "echo" && argc == 3) return ServeEcho(argv[2]);
  if (role == "tcp" && argc == 3) return ServeTcp(argv[2]);
  if (role == "route" && argc == 4) return Finish(RunRoute(argv[2], argv[3]));
  if (role == "trainer" && argc == 4) return Finish(RunTrainer(argv[2], argv[3]));
  if (role == "rank" && argc == 9) return Finish(RunRank(argv + 2));
  std::fputs(
      "usage: helper echo HOST | tcp HOST | route TARGET DELAY | trainer NAME ADDRESS | "
      "rank RANK RANKS ADDRESS CARRIER TASK TENSORS ELEMENTS\n",
      stderr);
  return 2;
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return psd::bench::Main(argc, argv);
}
