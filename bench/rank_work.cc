#include "bench/rank_work.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/job.h"
#include "client/collectives/group.h"
#include "client/ddp/replica.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/status.h"
#include "core/tensor/tensor.h"

namespace psd::bench {
namespace {

std::string NameOf(int rank) {
  return absl::StrCat("rank", rank);
}

absl::StatusOr<std::function<absl::Status()>> AllReduces(std::shared_ptr<Group> group,
                                                         int64_t elements) {
  PSD_ASSIGN_OR_RETURN(const Tensor input,
                       Tensor::Full({elements}, DType::kF32, 1 + group->rank()));
  return [group = std::move(group), input] { return group->AllReduce(input).status(); };
}

// The gradients stay in one context, so that only the steps are measured.
absl::StatusOr<std::function<absl::Status()>> ZeroSteps(Worker& worker,
                                                        const std::shared_ptr<Group>& group) {
  std::vector<ReplicaParameter> parameters;
  std::vector<Tensor> gradients;
  for (int i = 0; i < kZeroParameters; ++i) {
    ReplicaParameter& parameter = parameters.emplace_back();
    parameter.name = absl::StrCat("p", i);
    PSD_ASSIGN_OR_RETURN(parameter.elements, Tensor::Full({kZeroElements}, DType::kF32, 0.5));
    PSD_ASSIGN_OR_RETURN(gradients.emplace_back(),
                         Tensor::Full({kZeroElements}, DType::kF32, 1e-3));
  }
  PSD_ASSIGN_OR_RETURN(const Replica replica, Replica::Create(worker, std::move(parameters)));
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<ZeroRedundancyOptimizer> zero,
                       ZeroRedundancyOptimizer::Create(group, replica, Adam{}));
  PSD_ASSIGN_OR_RETURN(Context created, worker.NewContext());
  auto context = std::make_shared<Context>(std::move(created));
  PSD_RETURN_IF_ERROR(replica.SetGradients(*context, gradients));
  return [zero = std::move(zero), context = std::move(context)] { return zero->Step(*context); };
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
  if (options.elements > 0) {
    PSD_ASSIGN_OR_RETURN(work->run_, AllReduces(group, options.elements));
  } else {
    PSD_ASSIGN_OR_RETURN(work->run_, ZeroSteps(*work->worker_, group));
  }
  return work;
}

}  // namespace psd::bench
