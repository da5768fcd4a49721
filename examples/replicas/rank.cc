#include "examples/replicas/rank.h"

#include <utility>

#include "core/base/status.h"
#include "core/tensor/ops/random.h"
#include "core/tensor/tensor.h"

namespace psd::examples {

absl::Status RunRank(
    const std::function<absl::Status(Worker& worker, const std::shared_ptr<Group>& group)>& work) {
  PSD_ASSIGN_OR_RETURN(WorkerOptions options, WorkerOptions::FromEnvironment());
  options.listen = "127.0.0.1:0";  // the ranks call each other
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Start(std::move(options)));
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Group> group, Group::Join(*worker, "ranks"));
  absl::Status worked = work(*worker, group);
  if (!worked.ok()) worked = group->Fail(worked);
  group->Leave();
  const absl::Status ended = worker->Shutdown();
  return worked.ok() ? ended : worked;
}

absl::StatusOr<ReplicaParameter> UniformParameter(std::string name, const Shape& shape,
                                                  double bound, uint64_t seed) {
  ReplicaParameter parameter;
  parameter.name = std::move(name);
  PSD_ASSIGN_OR_RETURN(parameter.elements, ops::Uniform(shape, -bound, bound, seed));
  return parameter;
}

absl::StatusOr<double> MeanOverRanks(Group& group, double number) {
  PSD_ASSIGN_OR_RETURN(const Tensor mean,
                       group.AllReduce(Tensor::Of<double>({1}, {number}), Reduction::kMean));
  return mean.data<double>()[0];
}

}  // namespace psd::examples
