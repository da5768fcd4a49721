#include "bench/gpu/device_job.h"

#include <utility>

#include "core/base/status.h"

namespace psd::bench {

absl::StatusOr<std::unique_ptr<Worker>> StartOnDevices(const Environment& environment,
                                                       const std::string& name,
                                                       std::vector<OwnerAddress> owners) {
  WorkerOptions options;
  options.name = name;
  options.owners = std::move(owners);
  options.listen = "127.0.0.1:0";
  options.shared_memory = environment.carrier == "shm";
  options.devices = environment.devices;
  return Worker::Start(std::move(options));
}

absl::StatusOr<RRef> CreateOn(Worker& worker, const std::string& owner, const std::string& name,
                              const Program& create, const std::string& device) {
  CreateOptions options;
  options.requires_grad = true;
  options.device = device;
  return worker.GetOrCreate(owner, name, create, options);
}

absl::StatusOr<std::vector<Variable>> FetchTo(Worker& worker, const std::vector<RRef>& values,
                                              const std::string& device, const Context* context) {
  CallOptions options;
  options.device = device;
  options.context = context;
  PSD_ASSIGN_OR_RETURN(const Values fetched, worker.ToHere(values, options));
  std::vector<Variable> variables;
  for (const Value& value : fetched) {
    const auto* const variable = value.As<Variable>();
    if (variable == nullptr) return absl::InternalError("fetched something else than a tensor");
    variables.push_back(*variable);
  }
  return variables;
}

}  // namespace psd::bench
