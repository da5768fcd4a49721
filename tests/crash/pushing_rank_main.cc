// A rank of a group with a hierarchical push, which tests kill and stop:
//
//   pushing_rank_main NAME OWNER=ADDRESS MEMBER[,MEMBER…] TRAINERS TIMEOUT [STAGE]
//
// Joins a group with these members and prints "joined SIZE". Then it meets the other ranks and the
// worker "observer" at the barrier "begin", and takes steps for ever. The optimizer is synchronous
// for TRAINERS trainers. The gradients and the learning rate are 1, so a step subtracts 1 from the
// parameter "w" for every rank of the group. After step N it prints "step N ELEMENT", with an
// element of "w". If a call fails, it prints "error CODE WORKER", where WORKER is the one that the
// error names, "fate known" or "fate unknown", and "lost RANK", where RANK is the one for which the
// group has failed. It builds the group again without that rank, and goes on at step 1. It ends if
// it is that rank itself. TIMEOUT is that of the steps and of the calls of the group, such as
// "60s".
//
// With a STAGE the rank kills itself in its third step as the pusher, when it should send a message
// of that stage:
//   agreement  what it has, to another rank
//   sum        a part of the gradients, to another rank
//   push       the sums, to the owner
//   step       the step, to the owner
//   outcome    what came of the step, to another rank
// "further-" in front of the stage means the second such message, and "stop-" in front of all that
// the rank stops (SIGSTOP) instead.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/ddp/hierarchical_push.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/status.h"
#include "core/carrier/carrier.h"
#include "tests/crash/mortal_carrier.h"
#include "tests/crash/rank_lines.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

constexpr int kLastStep = 3;  // of a pusher that is to be interrupted
constexpr int64_t kElements = 200'000;
// A message between ranks with more bytes has gradients.
constexpr size_t kGradientBytes = 64 << 10;

struct Arguments {
  std::string name, owner;
  std::vector<std::string> members;
  uint32_t trainers = 0;
  absl::Duration timeout;
  std::string stage;
};

bool IsOfStage(const carrier::Message& message, absl::string_view stage) {
  const auto has = [&](absl::string_view text) { return absl::StrContains(message.header, text); };
  if (stage == "agreement") return has("hierarchical step");
  if (stage == "sum") return message.BufferBytes() > kGradientBytes;
  if (stage == "push") return has("gradient.push");
  if (stage == "step") return has("optimizer.step");
  return stage == "outcome" && has("outcome of the step");
}

// Kills or stops the process at a stage. Thread-safe.
class Interruption {
 public:
  explicit Interruption(absl::string_view stage)
      : stops_(absl::ConsumePrefix(&stage, "stop-")),
        sends_left_(absl::ConsumePrefix(&stage, "further-") ? 2 : 1),
        stage_(stage) {}

  // To be called before a step.
  void Begin(int step) { armed_ = step == kLastStep; }
  // To be called before a message is sent.
  void BeforeSending(const carrier::Message& message) {
    if (!armed_ || !IsOfStage(message, stage_) || --sends_left_ != 0) return;
    if (!stops_) Die();
    Halt();
  }

 private:
  const bool stops_;
  std::atomic<int> sends_left_;  // messages of the stage up to the interruption
  std::atomic<bool> armed_{false};
  const std::string stage_;
};

absl::StatusOr<std::unique_ptr<Worker>> StartWorker(const Arguments& arguments,
                                                    Interruption& interruption) {
  const std::vector<std::string> owner = absl::StrSplit(arguments.owner, absl::MaxSplits('=', 1));
  WorkerOptions options = TrainerOptions(arguments.name, {{owner[0], owner[1]}});
  options.listen = "127.0.0.1:0";
  options.session.lease = absl::Hours(1);  // a rank that is stopped comes back within it
  PSD_ASSIGN_OR_RETURN(auto carrier, MortalCarrier(
                                         [&interruption](const carrier::Message& message) {
                                           interruption.BeforeSending(message);
                                         },
                                         options.logger));
  return StartWithCarrier(std::move(carrier), std::move(options));
}

// Returns the first error.
absl::Status Train(Worker& worker, const std::shared_ptr<Group>& group, Training& training,
                   absl::Duration timeout, Interruption& interruption) {
  HierarchicalOptions options;
  options.call.timeout = timeout;
  options.step_timeout = timeout;
  PSD_ASSIGN_OR_RETURN(const auto push,
                       HierarchicalPush::Create(worker, group, training.optimizer(),
                                                training.parameters(), options));
  for (int step = 1;; ++step) {
    interruption.Begin(step);
    PSD_ASSIGN_OR_RETURN(Context context, worker.NewContext());
    PSD_ASSIGN_OR_RETURN(const std::vector<Variable> variables, push->Variables(context));
    PSD_RETURN_IF_ERROR(context.Backward({Sum(variables[0])}));
    PSD_RETURN_IF_ERROR(push->Step(context));
    // No rank steps again before this one does.
    PSD_ASSIGN_OR_RETURN(const auto pulled, worker.Pull(training.parameters()));
    Say(absl::StrCat("step ", step, " ", pulled[0].elements.data<float>()[kElements - 1]));
  }
}

ErrorDetail DetailOf(const absl::Status& error) {
  return GetDetail(error).value_or(ErrorDetail{});
}

absl::Status Run(const Arguments& arguments) {
  Interruption interruption(arguments.stage);
  PSD_ASSIGN_OR_RETURN(const auto worker, StartWorker(arguments, interruption));
  const std::string owner = arguments.owner.substr(0, arguments.owner.find('='));
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(arguments.trainers, UpdateMode::Reduction::kSum);
  PSD_ASSIGN_OR_RETURN(Training training,
                       Training::Create(*worker, {owner}, kElements, {}, settings));
  GroupOptions join;
  join.members = arguments.members;
  join.timeout = arguments.timeout;
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Group> group, Group::Join(*worker, "host", join));
  for (;;) {
    Say(absl::StrCat("joined ", group->size()));
    std::vector<std::string> all = group->members();
    all.push_back("observer");
    PSD_RETURN_IF_ERROR(worker->Barrier("begin", all));
    const absl::Status failed = Train(*worker, group, training, arguments.timeout, interruption);
    SayError(failed);
    Say(DetailOf(failed).fate_unknown ? "fate unknown" : "fate known");
    // A rank that was stopped may learn only by its next call that the others have gone on.
    const absl::Status of_group = group->status().ok() ? group->Barrier() : group->status();
    const std::string lost = DetailOf(of_group).worker;
    Say(absl::StrCat("lost ", lost));
    if (lost == arguments.name) return absl::OkStatus();
    PSD_ASSIGN_OR_RETURN(group, group->Rebuild(*worker, {lost}));
  }
}

}  // namespace
}  // namespace psd::crash

int main(int argc, char** argv) {
  psd::crash::Arguments arguments;
  if ((argc != 6 && argc != 7) || !absl::SimpleAtoi(argv[4], &arguments.trainers) ||
      !absl::ParseDuration(argv[5], &arguments.timeout)) {
    return 2;
  }
  arguments.name = argv[1];
  arguments.owner = argv[2];
  arguments.members = absl::StrSplit(argv[3], ',');
  if (argc == 7) arguments.stage = argv[6];
  const absl::Status status = psd::crash::Run(arguments);
  if (!status.ok()) psd::crash::SayError(status);
  return status.ok() ? 0 : 1;
}
