// A trainer that tests kill and stop: trainer_main NAME MODE OWNER=ADDRESS[,OWNER=ADDRESS…]
//
//   train  steps for ever. Prints "pull", "backward" and "step" before these phases, and "done N"
//          after step N. If a phase fails, prints "error CODE MESSAGE", looks up all objects again
//          and goes on.
//   hold   keeps an anonymous value, a context with its gradients and the fetched parameters of the
//          first owner. Prints "holding", then reads the value again and again and prints "read"
//          each time. When a read fails, prints "error …" and goes on as in the mode train.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/psd.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

constexpr int64_t kElements = 1 << 20;

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void SayError(const absl::Status& error) {
  Say(absl::StrCat("error ", absl::StatusCodeToString(error.code()), " ", error.message()));
}

absl::Status TrainOnce(Training& training) {
  Say("pull");
  PSD_RETURN_IF_ERROR(training.Pull());
  Say("backward");
  PSD_RETURN_IF_ERROR(training.Backward());
  Say("step");
  return training.Step().status();
}

absl::Status Train(Worker& worker, const std::vector<std::string>& owners, int* steps) {
  PSD_ASSIGN_OR_RETURN(Training training, Training::Create(worker, owners, kElements));
  for (;;) {
    PSD_RETURN_IF_ERROR(TrainOnce(training));
    Say(absl::StrCat("done ", ++*steps));
  }
}

absl::Status Hold(Worker& worker, const std::vector<std::string>& owners) {
  PSD_ASSIGN_OR_RETURN(Training training, Training::Create(worker, {owners[0]}, kElements));
  PSD_RETURN_IF_ERROR(training.Pull());
  PSD_RETURN_IF_ERROR(training.Backward());
  PSD_ASSIGN_OR_RETURN(RRef anonymous,
                       worker.Remote(owners[0], Function::Operator("neg", 1),
                                     {Variable(*Tensor::Full({kElements}, DType::kF32, 7))}));
  PSD_RETURN_IF_ERROR(worker.ToHere({anonymous}));
  Say("holding");
  for (;;) {
    PSD_RETURN_IF_ERROR(worker.ToHere({anonymous}));
    Say("read");
    absl::SleepFor(absl::Milliseconds(10));
  }
}

int Run(const std::string& name, const std::string& mode, const std::string& owners) {
  std::vector<OwnerAddress> addresses;
  std::vector<std::string> names;
  for (absl::string_view owner : absl::StrSplit(owners, ',')) {
    const std::vector<std::string> parts = absl::StrSplit(owner, absl::MaxSplits('=', 1));
    addresses.push_back({parts[0], parts[1]});
    names.push_back(parts[0]);
  }
  auto worker = Worker::Start(TrainerOptions(name, addresses));
  if (!worker.ok()) {
    SayError(worker.status());
    return 1;
  }
  Say("ready");
  if (mode == "hold") SayError(Hold(**worker, names));
  for (int steps = 0;;) {
    SayError(Train(**worker, names, &steps));
    absl::SleepFor(absl::Milliseconds(20));
  }
}

}  // namespace
}  // namespace psd::crash

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return psd::crash::Run(argv[1], argv[2], argv[3]);
}
