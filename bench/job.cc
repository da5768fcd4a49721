#include "bench/job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/host_port.h"

namespace psd::bench {

absl::StatusOr<std::unique_ptr<Server>> StartOwner(const Environment& environment,
                                                   const std::vector<std::string>& flags) {
  const bool loopback = HostPort{environment.network.host}.IsLoopback();
  std::vector<std::string> command = {
      environment.daemon,
      absl::StrCat("--name=", kOwner),
      absl::StrCat("--listen=", environment.network.host, ":0"),
      absl::StrCat("--insecure=", loopback ? "false" : "true"),
      "--log_level=warning",
      absl::StrCat("--shared_memory=", environment.carrier == "shm" ? "true" : "false"),
      "--ready_fd=1"};
  command.insert(command.end(), flags.begin(), flags.end());
  return Server::Start(environment, command);
}

absl::StatusOr<std::unique_ptr<Job>> Job::Start(const Environment& environment,
                                                const std::vector<std::string>& flags) {
  auto job = std::make_unique<Job>();
  PSD_ASSIGN_OR_RETURN(job->owner_, StartOwner(environment, flags));
  PSD_ASSIGN_OR_RETURN(job->worker_, Attach("bench", job->address()));
  return job;
}

absl::StatusOr<std::unique_ptr<Worker>> Attach(const std::string& name,
                                               const std::string& address) {
  WorkerOptions options;
  options.name = name;
  options.owners = {{kOwner, address}};
  return Worker::Start(std::move(options));
}

absl::StatusOr<std::vector<RRef>> CreateParameters(Worker& worker, const std::string& prefix,
                                                   int count, int64_t elements) {
  CreateOptions options;
  options.requires_grad = true;
  std::vector<RRef> parameters;
  for (int i = 0; i < count; ++i) {
    const Program create = Uniform({elements}, -0.1, 0.1, static_cast<uint64_t>(i));
    PSD_ASSIGN_OR_RETURN(RRef parameter,
                         worker.GetOrCreate(kOwner, absl::StrCat(prefix, i), create, options));
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

absl::StatusOr<std::vector<double>> TimeEach(int count,
                                             const std::function<absl::Status()>& operation) {
  const Clock& clock = Clock::Steady();
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    const absl::Time start = clock.Now();
    PSD_RETURN_IF_ERROR(operation());
    seconds.push_back(absl::ToDoubleSeconds(clock.Now() - start));
  }
  return seconds;
}

}  // namespace psd::bench
