// A rank of a sharded training that tests kill and stop:
//
//   training_rank_main NAME OWNER=ADDRESS MEMBER[,MEMBER…] TIMEOUT [STAGE]
//
// Prints "joining", joins a group with these members, and prints "joined SIZE", or "not joined" and
// the error, with which it ends. Then it takes steps for ever: gradients are averaged over the
// ranks, every rank steps its shard, and the optimizer's state is gathered on rank 0. After step N
// it prints "step N DIGEST"; ranks with equal parameters print equal digests. If a call fails, it
// prints "error CODE WORKER", where WORKER is the one that the error names, builds the group again
// without that worker, takes over the parameters of rank 0, and goes on with a new optimizer at
// step 1. It ends if it is that worker itself. TIMEOUT is that of the calls, such as "60s".
//
// With a STAGE it kills itself in step 3: before-average, after-average, or in one of the calls
// average, step and consolidation. In a call it dies when it should send elements for the first
// time (as in-average), or for the second time, after the first were handed to the carrier (as
// further-in-average).

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/collectives/digest.h"
#include "client/collectives/group.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/ddp/replica.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/status.h"
#include "core/carrier/carrier.h"
#include "tests/crash/mortal_carrier.h"
#include "tests/crash/rank_lines.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

constexpr int kLastStep = 3;  // of a rank that kills itself

// A message with more bytes has elements of parameters, gradients or state.
constexpr size_t kElementsBytes = 64 << 10;

// Kills the process at a stage of a step. Thread-safe.
class Killer {
 public:
  explicit Killer(std::string stage) : stage_(std::move(stage)) {}

  void At(const std::string& stage, int step) const {
    if (step == kLastStep && stage == stage_) Die();
  }
  // Runs a call, in which the process dies if that is its stage.
  absl::Status In(const std::string& call, int step, const std::function<absl::Status()>& run) {
    if (step == kLastStep && stage_ == absl::StrCat("in-", call)) sends_left_ = 1;
    if (step == kLastStep && stage_ == absl::StrCat("further-in-", call)) sends_left_ = 2;
    absl::Status status = run();
    sends_left_ = 0;  // a rank that has not died in the call lives on, and the test fails
    return status;
  }
  // To be called before a message is sent.
  void BeforeSending(const carrier::Message& message) {
    if (message.BufferBytes() > kElementsBytes && sends_left_ > 0 && --sends_left_ == 0) Die();
  }

 private:
  const std::string stage_;
  std::atomic<int> sends_left_{0};  // messages with elements up to the death; 0: there is none
};

absl::StatusOr<Replica> CreateReplica(Worker& worker) {
  std::vector<ReplicaParameter> parameters;
  for (const int64_t elements : {400'000, 7, 300'000}) {
    ReplicaParameter& parameter = parameters.emplace_back();
    parameter.name = absl::StrCat("p", parameters.size());
    PSD_ASSIGN_OR_RETURN(parameter.elements, Tensor::Full({elements}, DType::kF32, 1));
  }
  return Replica::Create(worker, std::move(parameters));
}

absl::StatusOr<std::string> DigestOf(const Replica& replica) {
  PSD_ASSIGN_OR_RETURN(const std::vector<Tensor> elements, replica.Elements());
  Digest digest;
  for (const Tensor& tensor : elements)
    digest.Add({reinterpret_cast<const char*>(tensor.raw_data()), tensor.NumBytes()});
  return digest.Short();
}

// Gradients that differ between ranks and steps.
absl::StatusOr<Context> ContextOf(const Replica& replica, int rank, int step) {
  PSD_ASSIGN_OR_RETURN(Context context, replica.worker().NewContext());
  std::vector<Tensor> gradients;
  for (const ReplicatedParameter& parameter : replica.parameters()) {
    PSD_ASSIGN_OR_RETURN(gradients.emplace_back(),
                         Tensor::Full(parameter.shape, DType::kF32, 0.1 * (rank + 1) + step));
  }
  PSD_RETURN_IF_ERROR(replica.SetGradients(context, gradients));
  return context;
}

// Returns the first error.
absl::Status Train(const std::shared_ptr<Group>& group, const Replica& replica, Killer& killer) {
  PSD_ASSIGN_OR_RETURN(const auto averaging, BufferedDataParallel::Create(group, replica));
  PSD_ASSIGN_OR_RETURN(const auto zero, ZeroRedundancyOptimizer::Create(group, replica, Adam{}));
  for (int step = 1;; ++step) {
    PSD_ASSIGN_OR_RETURN(const Context context, ContextOf(replica, group->rank(), step));
    killer.At("before-average", step);
    PSD_RETURN_IF_ERROR(
        killer.In("average", step, [&] { return averaging->AllReduceGradients(context); }));
    killer.At("after-average", step);
    // Elements that are sent from here on belong to the step.
    PSD_RETURN_IF_ERROR(group->Barrier());
    PSD_RETURN_IF_ERROR(killer.In("step", step, [&] { return zero->Step(context); }));
    PSD_ASSIGN_OR_RETURN(const std::string digest, DigestOf(replica));
    Say(absl::StrCat("step ", step, " ", digest));
    PSD_RETURN_IF_ERROR(killer.In("consolidation", step, [&] { return zero->Consolidate(0); }));
  }
}

absl::Status Run(const std::string& name, const std::string& owner, const std::string& members,
                 absl::Duration timeout, const std::string& stage) {
  const std::vector<std::string> parts = absl::StrSplit(owner, absl::MaxSplits('=', 1));
  WorkerOptions options = TrainerOptions(name, {{parts[0], parts[1]}});
  options.listen = "127.0.0.1:0";
  options.session.lease = absl::Hours(1);  // a rank that is stopped comes back within it
  Killer killer(stage);
  PSD_ASSIGN_OR_RETURN(
      auto carrier,
      MortalCarrier([&killer](const carrier::Message& message) { killer.BeforeSending(message); },
                    options.logger));
  PSD_ASSIGN_OR_RETURN(auto worker, StartWithCarrier(std::move(carrier), std::move(options)));
  PSD_ASSIGN_OR_RETURN(Replica replica, CreateReplica(*worker));
  GroupOptions join;
  join.members = absl::StrSplit(members, ',');
  join.timeout = timeout;
  join.join_timeout = absl::Seconds(15);
  Say("joining");
  auto joined = Group::Join(*worker, "ranks", join);
  if (!joined.ok()) {
    Say(absl::StrCat("not joined ", joined.status().message()));
    return absl::OkStatus();
  }
  for (std::shared_ptr<Group> group = *std::move(joined);;) {
    Say(absl::StrCat("joined ", group->size()));
    const std::string lost = SayError(Train(group, replica, killer));
    if (lost == name) return absl::OkStatus();
    PSD_ASSIGN_OR_RETURN(group, group->Rebuild(*worker, {lost}));
    PSD_RETURN_IF_ERROR(replica.Synchronize(*group, 0));
  }
}

}  // namespace
}  // namespace psd::crash

int main(int argc, char** argv) {
  absl::Duration timeout;
  if ((argc != 5 && argc != 6) || !absl::ParseDuration(argv[4], &timeout)) return 2;
  const absl::Status status =
      psd::crash::Run(argv[1], argv[2], argv[3], timeout, argc == 6 ? argv[5] : "");
  if (!status.ok()) psd::crash::SayError(status);
  return status.ok() ? 0 : 1;
}
