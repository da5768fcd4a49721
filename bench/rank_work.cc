#include "bench/rank_work.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/job.h"
#include "bench/train_step.h"
#include "client/collectives/group.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/ddp/replica.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/status.h"
#include "core/tensor/tensor.h"

namespace psd::bench {
namespace {

std::string NameOf(int rank) {
  return absl::StrCat("rank", rank);
}

using Work = std::function<absl::Status()>;

absl::StatusOr<Work> AllReduces(std::shared_ptr<Group> group, int64_t elements) {
  PSD_ASSIGN_OR_RETURN(const Tensor input,
                       Tensor::Full({elements}, DType::kF32, 1 + group->rank()));
  return [group = std::move(group), input] { return group->AllReduce(input).status(); };
}

absl::StatusOr<Replica> CreateReplica(Worker& worker, const RankOptions& options) {
  std::vector<ReplicaParameter> parameters;
  for (int i = 0; i < options.tensors; ++i) {
    ReplicaParameter& parameter = parameters.emplace_back();
    parameter.name = absl::StrCat("p", i);
    PSD_ASSIGN_OR_RETURN(parameter.elements, Tensor::Full({options.elements}, DType::kF32, 0.5));
  }
  return Replica::Create(worker, std::move(parameters));
}

// A step of data parallelism, of which every rank has the whole optimizer.
struct DdpStep {
  Replica replica;
  LinearLoss loss;
  std::unique_ptr<BufferedDataParallel> averaging;
  std::unique_ptr<DistributedOptimizer> optimizer;

  absl::Status Run() const {
    PSD_ASSIGN_OR_RETURN(Context context, replica.worker().NewContext());
    PSD_ASSIGN_OR_RETURN(const std::vector<Variable> parameters, replica.Variables(context));
    PSD_RETURN_IF_ERROR(context.Backward({loss.Of(parameters)}));
    PSD_RETURN_IF_ERROR(averaging->AllReduceGradients(context));
    return optimizer->Step(context);
  }
};

absl::StatusOr<Work> DdpSteps(const std::shared_ptr<Group>& group, const Replica& replica,
                              const RankOptions& options) {
  PSD_ASSIGN_OR_RETURN(LinearLoss loss, LinearLoss::Create(replica.size(), options.elements));
  PSD_ASSIGN_OR_RETURN(auto averaging, BufferedDataParallel::Create(group, replica));
  PSD_ASSIGN_OR_RETURN(auto optimizer,
                       DistributedOptimizer::Create(replica.worker(), Adam{}, replica.values()));
  const auto step = std::make_shared<DdpStep>(
      DdpStep{replica, std::move(loss), std::move(averaging), std::move(optimizer)});
  return [step] { return step->Run(); };
}

// The gradients stay in one context, so that only the steps are measured.
absl::StatusOr<Work> ZeroSteps(const std::shared_ptr<Group>& group, const Replica& replica,
                               const RankOptions& options) {
  std::vector<Tensor> gradients(replica.size());
  for (Tensor& gradient : gradients) {
    PSD_ASSIGN_OR_RETURN(gradient, Tensor::Full({options.elements}, DType::kF32, 1e-3));
  }
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<ZeroRedundancyOptimizer> zero,
                       ZeroRedundancyOptimizer::Create(group, replica, Adam{}));
  PSD_ASSIGN_OR_RETURN(Context created, replica.worker().NewContext());
  auto context = std::make_shared<Context>(std::move(created));
  PSD_RETURN_IF_ERROR(replica.SetGradients(*context, gradients));
  return [zero = std::move(zero), context = std::move(context)] { return zero->Step(*context); };
}

absl::StatusOr<Work> WorkOf(Worker& worker, const std::shared_ptr<Group>& group,
                            const RankOptions& options) {
  if (options.task == "allreduce") return AllReduces(group, options.elements);
  PSD_ASSIGN_OR_RETURN(const Replica replica, CreateReplica(worker, options));
  if (options.task == "ddp_step") return DdpSteps(group, replica, options);
  if (options.task == "zero_step") return ZeroSteps(group, replica, options);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown task '", options.task, "'; known: allreduce, ddp_step and zero_step"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> RankWork::Join(const RankOptions& options) {
  auto work = std::make_unique<RankWork>();
  WorkerOptions worker;
  worker.name = NameOf(options.rank);
  worker.owners = {{kOwner, options.owner}};
  worker.listen = "127.0.0.1:0";
  worker.shared_memory = options.shared_memory;
  PSD_ASSIGN_OR_RETURN(work->worker_, Worker::Start(std::move(worker)));
  GroupOptions members;
  for (int rank = 0; rank < options.ranks; ++rank) members.members.push_back(NameOf(rank));
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Group> group,
                       Group::Join(*work->worker_, "bench", members));
  PSD_ASSIGN_OR_RETURN(work->run_, WorkOf(*work->worker_, group, options));
  return work;
}

}  // namespace psd::bench
